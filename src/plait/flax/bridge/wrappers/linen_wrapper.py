"""``ToLinen``: a plait class as a Linen module. Importing this file imports flax. (rules B27 to B31)"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flax import linen
from flax.core import FrozenDict, unfreeze

from ....core.functional.split import state
from ....core.intermediates.sowing import keeping_sown
from ....core.nodes.module import Module
from ....core.rngs import Rngs, RngState
from ....core.states.state import to_flat_state
from ....core.variables.filters import Not
from ....core.variables.variables import Variable
from ....errors import ArgumentTypeError
from ....partitioning.boxes import AxisMetadata, unbox
from ....util.notices import warn
from ....util.paths import Path, describe_path
from ....util.sentinels import NOTHING
from ..variables.boxed_variables import raw_value, to_linen_var, to_nnx_var
from ..variables.collection_types import BARE_COLLECTIONS, collection_of, is_bare
from ..variables.collections import (
    find_bare,
    find_leaf,
    immutable_changed,
    iter_leaves,
    path_in_linen,
    put_leaf,
)
from .lazy import initializing
from .linen import outside_linen
from .rngs import linen_rngs_dict, root_keys, with_default
from .stored_modules import abstract_module, check_no_parameter, fill
from .to_nnx import ToNNX

# (collection, path) -> the value that Linen stores.
Leaves = dict[tuple[str, Path], Any]


class ToLinen(linen.Module):
    """A Linen module around a plait class.

    ``init`` makes the plait module and stores its variables, each in the collection of its class, and its arrays
    outside of variables in collections named after their types, as Flax does (``ArrayImpl``). ``apply`` rebuilds the
    module from the stored values, calls it, and stores changes in mutable collections. Random state is not stored; it
    comes from the ``rngs`` of each call: a stream without a key of its name from ``default``, or else from ``params``,
    which one key for all streams is.

    Args:
        nnx_class: the plait class, or any function that makes a module.
        args: positional arguments of the class.
        kwargs: keyword arguments of the class; readable as attributes.
        skip_rng: whether the class takes no ``rngs``.
        metadata_fn: returns the value that Linen stores for a variable; ``None`` stores bare values.
        abstract_init: whether ``apply`` runs the constructor on shapes only, which allocates no memory. Set it to
            False if the constructor reads the values of arrays.
        same_keys: whether an outermost module draws from exactly the keys passed to ``init``: ``init(key, x)`` then
            gives the parameters of ``nnx_class(..., rngs=plait.Rngs(params=key))``.

    Example:
        >>> model = plait.bridge.ToLinen(plait.Linear, args=(32, 64))
        >>> y, variables = model.init_with_output(jax.random.key(0), jnp.ones((1, 32)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((1, 64), (32, 64))
    """

    nnx_class: Callable[..., Module]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = FrozenDict()  # frozen
    skip_rng: bool = False
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var
    abstract_init: bool = True
    same_keys: bool = False

    @linen.compact
    def __call__(self, *args: Any, nnx_method: Any = None, **kwargs: Any) -> Any:
        """Call the plait module.

        Args:
            nnx_method: a method of the class, or its name; by default ``__call__``.
        """
        method = _method_of(self.nnx_class, nnx_method)
        stored = self._stored()
        keys = self._keys()
        if self.is_initializing() and not any(stored.values()):
            return self._initialize(keys, method, args, kwargs)
        return self._apply(stored, keys, method, args, kwargs)

    @linen.nowrap
    def _stored(self) -> dict[str, Any]:
        variables: Any = self.variables
        return unfreeze(variables)

    @linen.nowrap
    def _keys(self) -> dict[str, Any]:
        if self.same_keys and not self.path:
            return with_default(root_keys(self))
        return linen_rngs_dict(self, add_default=True)

    @linen.nowrap
    def _construct(self, rngs: Rngs) -> Any:
        if isinstance(self.nnx_class, Module):
            class_name = type(self.nnx_class).__name__
            raise ArgumentTypeError(
                "to_linen takes a class, whose constructor makes the variables",
                found=f"an instance of {class_name}",
                expected="a class or a function that makes a module, and its arguments",
                do=f"bridge.to_linen({class_name}, ...); to run an existing module from Linen code, "
                "get its variables with bridge.to_collections",
            )
        kwargs = unfreeze(FrozenDict(self.kwargs))
        with outside_linen():
            return self.nnx_class(*self.args, **kwargs, **({} if self.skip_rng else {"rngs": rngs}))

    @linen.nowrap
    def _initialize(self, keys: Mapping[str, Any], method: Any, args: Any, kwargs: Any) -> Any:
        module = self._construct(Rngs(keys))
        born = self._stored_leaves(module, {})
        self._put({}, born)
        with initializing(module, again=False), keeping_sown():
            out = method(module, *args, **kwargs)
        every = self._stored_leaves(module, {})
        late = {place: leaf for place, leaf in every.items() if place not in born and place[0] not in BARE_COLLECTIONS}
        if late:
            self._put(self._stored(), late)
            _remember(self.nnx_class, late)
        return out

    @linen.nowrap
    def _apply(self, stored: dict[str, Any], keys: Any, method: Any, args: Any, kwargs: Any) -> Any:
        used: Leaves = {}

        def supply(path: Path, leaf: Any) -> Any:
            path = path_in_linen(path)
            collection, found = _find(stored, path, leaf)
            if found is NOTHING:
                if isinstance(leaf, Variable) and not self.is_mutable_collection(collection):
                    check_no_parameter(collection, path, "/".join(self.path) or type(module).__name__)
                return NOTHING
            value = unbox(found)
            used[collection, path] = (found, value)
            return value

        if self.abstract_init:
            module = abstract_module(self._construct, keys, "pass abstract_init=False to to_linen (or ToLinen)")
            identity = (self.nnx_class, self.args, FrozenDict(self.kwargs), self.skip_rng)
        else:
            module, identity = self._construct(Rngs(keys)), None
        fill(module, self._construct, keys, supply, identity)
        attached = _attach(module, stored, used)
        before = {place: _raw(leaf) for place, leaf in _leaves_of(module, used)}
        born = self._stored_leaves(module, used) if self.is_initializing() else {}
        with keeping_sown():
            out = method(module, *args, **kwargs)
        after = self._stored_leaves(module, used)
        if self.is_initializing():
            # The initial values are those before the first call that has them. (rule B29)
            made = {place: leaf for place, leaf in after.items() if _is_storable_at_init(stored, place)}
            after = {place: leaf if place[0] in _OF_CALLS else born.get(place, leaf) for place, leaf in made.items()}
            _remember(self.nnx_class, after.keys() - born.keys())
        else:
            self._check_immutable(before, module, used)
        _warn_of_unknown(attached, self.nnx_class)
        self._put(stored, after)
        return out

    @linen.nowrap
    def _stored_leaves(self, module: Any, used: Leaves) -> Leaves:
        """The values to store in mutable collections; an unchanged input is the same object."""
        leaves: Leaves = {}
        for (collection, path), variable in _leaves_of(module, used):
            if not self.is_mutable_collection(collection):
                continue
            found, value = used.get((collection, path), (None, NOTHING))
            raw = raw_value(variable) if isinstance(variable, Variable) else variable
            if raw is value:
                leaves[collection, path] = found
            elif isinstance(found, AxisMetadata):
                leaves[collection, path] = found.replace_boxed(raw)
            else:
                box = self.metadata_fn if isinstance(variable, Variable) else None
                leaves[collection, path] = raw if box is None else box(variable)
        return leaves

    @linen.nowrap
    def _put(self, stored: dict[str, Any], leaves: Leaves) -> None:
        """Store leaves, and keep other existing leaves."""
        changed: set[tuple[str, Any]] = set()
        for (collection, path), leaf in leaves.items():
            put_leaf(stored, (collection, *path), leaf)
            changed.add((collection, path[0]))
        for collection, name in sorted(changed, key=str):
            self.put_variable(collection, name, stored[collection][name])

    @linen.nowrap
    def _check_immutable(self, before: Mapping[Any, Any], module: Any, used: Leaves) -> None:
        """Raise if a collection not listed as mutable has changed; ``mutable=False`` discards changes."""
        mutable = None if self.scope is None else self.scope.mutable
        if mutable is False:
            return
        for (collection, path), leaf in _leaves_of(module, used):
            old = before.get((collection, path), NOTHING)
            if old is not NOTHING and old is not _raw(leaf) and not self.is_mutable_collection(collection):
                place = f"{'/'.join(self.path) or type(self).__name__}, {describe_path(path)}"
                raise immutable_changed(collection, place, leaf, mutable)

    def __getattr__(self, name: str) -> Any:
        kwargs = self.__dict__.get("kwargs") or {}
        if name in kwargs:
            return kwargs[name]
        nnx_class = self.__dict__.get("nnx_class")
        function = None if name.startswith("__") else inspect.getattr_static(nnx_class, name, None)
        if inspect.isfunction(function):
            return functools.partial(self.__call__, nnx_method=function)
        return super().__getattr__(name)


def _method_of(nnx_class: Any, method: Any) -> Callable[..., Any]:
    """The method, as a function whose first argument is the module.

    Raises:
        ArgumentTypeError: names class and attribute.
    """
    named = "__call__" if method is None else method
    found = getattr(nnx_class, named, None) if isinstance(named, str) and isinstance(nnx_class, type) else named
    if isinstance(named, str) and not isinstance(nnx_class, type):
        return lambda module, *args, **kwargs: _method_of(type(module), named)(module, *args, **kwargs)
    if not callable(found):
        raise ArgumentTypeError(
            "nnx_method is not a method of the plait class",
            at=f"{getattr(nnx_class, '__name__', nnx_class)}.{named}",
            found=f"{found!r:.80} of type {type(found).__name__}",
            expected="a callable that takes the module first, or the name of a method",
            do="for example nnx_method='encode'",
        )
    return found


def _leaves_of(module: Any, used: Leaves) -> list[tuple[tuple[str, Path], Any]]:
    """The variables and bare arrays stored by Linen, each once, with collection and path.

    Args:
        used: what the module was filled with; an array stays in the collection where it was found.
    """
    found = {path: collection for collection, path in used if collection in BARE_COLLECTIONS}
    leaves: list[tuple[tuple[str, Path], Any]] = []
    for path, leaf in to_flat_state(state(module, Not(RngState), graph=True)):
        path = path_in_linen(path)
        if isinstance(leaf, Variable):
            leaves.append(((collection_of(leaf), path), leaf))
        elif is_bare(leaf):
            leaves.append(((found.get(path) or collection_of(leaf), path), leaf))
    return leaves


def _raw(leaf: Any) -> Any:
    return leaf.get_raw_value() if isinstance(leaf, Variable) else leaf


def _find(stored: Mapping[str, Any], path: Path, leaf: Any) -> tuple[str, Any]:
    """The stored value of a leaf of the module, with its collection."""
    if not isinstance(leaf, Variable):
        return find_bare(stored, path)
    collection = collection_of(leaf)
    found = find_leaf(stored, (collection, *path))
    if isinstance(found, Mapping) and not isinstance(leaf.get_raw_value(), Mapping):
        found = NOTHING
    return collection, found


# Collections of values that a call makes.
_OF_CALLS = ("intermediates", "perturbations")


def _is_storable_at_init(stored: Mapping[str, Any], place: tuple[str, Path]) -> bool:
    """Whether a later call while Linen initializes may store a value: there is none yet, or it is a record of calls."""
    collection, path = place
    is_missing = find_leaf(stored, (collection, *path)) is NOTHING
    return collection in _OF_CALLS or (is_missing and collection not in BARE_COLLECTIONS)


def _attach(module: Any, stored: Mapping[str, Any], used: Leaves) -> dict[tuple[str, Path], Any]:
    """Give the module the stored values that its constructor did not make, and return those that are unknown.

    For a ``ToNNX`` these are all of its variables. Elsewhere those that fit as an attribute of a module in the graph
    are set. (rule B30)

    Returns:
        By collection and path: a function that says whether the call has changed the value.
    """
    unknown: dict[tuple[str, Path], Any] = {}
    late: dict[int, tuple[Any, dict[str, Any]]] = {}
    taken = [(collection, *path) for collection, path in used]
    # Flax can have an array in two collections: its types differ in and out of a compiled function.
    taken += [(other, *path) for name, path in used if name in BARE_COLLECTIONS for other in BARE_COLLECTIONS]
    for place, leaf in iter_leaves(stored):
        if any(place[: len(path)] == path for path in taken):
            continue
        collection, path = place[0], place[1:]
        owner, rest = _owner(module, path)
        fits = isinstance(owner, Module) and len(rest) == 1
        if not isinstance(owner, ToNNX):
            unknown[collection, path] = functools.partial(_is_changed, owner, rest[0], leaf) if fits else bool
        if isinstance(owner, ToNNX) or fits:
            bare = collection in BARE_COLLECTIONS and not isinstance(owner, ToNNX)
            _, attrs = late.setdefault(id(owner), (owner, {}))
            put_leaf(attrs, rest, unbox(leaf) if bare else to_nnx_var(collection, leaf))
    for owner, attrs in late.values():
        for name, value in attrs.items():
            setattr(owner, name, value)
    return unknown


def _is_changed(owner: Any, name: str, leaf: Any) -> bool:
    now = owner.__dict__.get(name, NOTHING)
    return (raw_value(now) if isinstance(now, Variable) else now) is not unbox(leaf)


# What init() has stored after a call, by class: known, though no constructor makes it. Lives as long as the class.
_made_in_calls: weakref.WeakKeyDictionary[Any, set[tuple[str, Path]]] = weakref.WeakKeyDictionary()


def _remember(nnx_class: Any, places: Iterable[tuple[str, Path]]) -> None:
    with contextlib.suppress(TypeError):  # some callables have no weak references
        _made_in_calls.setdefault(nnx_class, set()).update(places)


def _warn_of_unknown(attached: Mapping[tuple[str, Path], Any], nnx_class: Any) -> None:
    """Warn of stored values that the module did not need. What a call makes or changes is not unknown. (rule B30)"""
    if not attached:
        return
    try:
        known = _made_in_calls.get(nnx_class, set())
    except TypeError:
        known = set()
    unknown = [
        path
        for (collection, path), is_changed in attached.items()
        if collection not in _OF_CALLS and (collection, path) not in known and not is_changed()
    ]
    if unknown:
        listed = "".join(f"\n  - {describe_path(path)}" for path in unknown)
        warn(UserWarning, f"Found unknown module paths in incoming state:{listed}")


def _owner(module: Any, path: Path) -> tuple[Any, Path]:
    """The deepest node on a path, and the rest of the path."""
    node: Any = module
    for place, key in enumerate(path):
        if isinstance(node, Module) and isinstance(key, str):
            child = node.__dict__.get(key, NOTHING)
        else:
            container: Any = node
            try:
                child = container[key]
            except (KeyError, IndexError, TypeError):
                child = NOTHING
        if child is NOTHING or isinstance(child, Variable):
            return node, path[place:]
        node = child
    return node, ()


def partial_class(nnx_class: Any, metadata_fn: Any, skip_rng: bool, defaults: Mapping[str, Any]) -> type[ToLinen]:
    """A subclass of ``ToLinen`` whose instances take the arguments of ``nnx_class``."""
    body = {"__module__": getattr(nnx_class, "__module__", __name__), "__doc__": nnx_class.__doc__}
    made: Any = type(getattr(nnx_class, "__name__", "ToLinenPartial"), (ToLinen,), body)
    fields = {"nnx_class": nnx_class, "metadata_fn": metadata_fn, "skip_rng": skip_rng}
    known = set(made.__dataclass_fields__)
    plain_init = made.__init__

    def __init__(self: Any, *args: Any, **given: Any) -> None:
        own = {**fields, **{name: value for name, value in given.items() if name in known}}
        own["args"] = args or own.get("args", ())
        overrides = {name: value for name, value in given.items() if name not in known}
        own["kwargs"] = FrozenDict({**defaults, **own.get("kwargs", {}), **overrides})
        plain_init(self, **own)

    made.__init__ = __init__
    return made
