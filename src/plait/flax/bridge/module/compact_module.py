"""``bridge.Module``: Linen-style modules, with ``setup`` and compact methods, without Linen. (rules B32 to B35)

``init`` and ``apply`` run on a clone that is bound to a ``Scope``. Variables and submodules are attributes of the
clone, as in any plait module, so plait's transforms carry them. The variables passed to ``apply`` stay in nested
dictionaries, under the submodules' names, until each submodule is made.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, dataclass_transform

import jax

from ....core.functional.merge import clone
from ....core.intermediates.sowing import keeping_sown
from ....core.nodes.module import Module as PlaitModule, dataclass as plait_dataclass
from ....core.rngs import Rngs
from ....core.variables.variable_metadata import VariableMetadata
from ....core.variables.variables import Variable
from ....errors import ArgumentError, ArgumentTypeError, ScopeParamShapeError
from ....partitioning.boxes import AxisMetadata, unbox as unbox_tree
from ....util.paths import describe_path
from ....util.sentinels import NOTHING
from ..variables.boxed_variables import to_linen_var, to_nnx_var
from ..variables.collection_types import BARE_COLLECTIONS, variable_type, variable_type_name
from ..variables.collections import (
    Collections,
    find_leaf,
    immutable_changed,
    iter_leaves,
    linen_vars_to_nnx_attrs,
)
from ..wrappers.rngs import PARAMS, with_default
from ..wrappers.scope import Scope, entered
from .children import OWN, Hybrid, attach, bind, bind_children, collect, set_plainly, set_priority
from .running import AttrPriority, ModuleStackEntry, current_context, running

F = TypeVar("F", bound=Callable[..., Any])


class _ModuleType(type):
    """Gives a name and a parent to modules made inside a compact method, or made with a name in ``setup``."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        entry = current_context()
        if entry is None or entry.constructing:
            return super().__call__(*args, **kwargs)
        fields = getattr(cls, "__dataclass_fields__", {})
        parent = kwargs.pop("parent", NOTHING) if "parent" not in fields and entry.in_compact else NOTHING
        if parent is not NOTHING and parent is not None:
            raise ArgumentError(
                "'parent' can only be None inside a compact method",
                at=f"{cls.__name__}(parent=...)",
                found=f"a {type(parent).__name__}",
                expected="None, for a module that is not a submodule here, or no 'parent' at all",
                do=f"{cls.__name__}(...), whose parent is the running module",
            )
        name = kwargs.get("name") if "name" in fields else kwargs.pop("name", None)
        if name is not None and not isinstance(name, str):
            raise ArgumentError(
                "'name' is not a string",
                at=f"{cls.__name__}(name=...)",
                found=f"{name!r} of type {type(name).__name__}",
                expected="a string, or None for a name of class and number",
                do=f"{cls.__name__}(..., name='encoder')",
            )
        # Modules that its constructor makes are not the parent's.
        with running(entry.module, constructing=True):
            module = super().__call__(*args, **kwargs)
        # In setup, the attribute that a module is assigned to names it, unless it has a name.
        is_child = parent is not None if entry.in_compact else name is not None
        return attach(entry, module, name) if is_child else module


@dataclass_transform()
class Module(Hybrid, metaclass=_ModuleType):
    """Base class of Linen-style modules: dataclass fields, ``setup()`` or ``@compact``, ``init`` and ``apply``.

    Example:
        >>> class Dense(plait.bridge.Module):
        ...     features: int
        ...     @plait.bridge.compact
        ...     def __call__(self, x):
        ...         kernel = self.param("kernel", plait.initializers.ones, (x.shape[-1], self.features))
        ...         return x @ kernel[...]
        >>> variables = Dense(3).init(0, jnp.ones((1, 2)))
        >>> Dense(3).apply(variables, jnp.ones((1, 2))).tolist()
        [[2.0, 2.0, 2.0]]
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        plait_dataclass(cls, init="__init__" not in cls.__dict__)

    def __setattr__(self, name: str, value: Any) -> None:
        entry = _entry_of(self)
        if entry is not None:
            value = bind_children(entry, value, self.__dict__.get(name, NOTHING))
        super().__setattr__(name, value)

    def set_attr_priority(self, name: str, value: AttrPriority) -> None:
        """The priority with which an attribute names a variable that several attributes hold."""
        set_priority(self, name, value)

    # While a method runs ----------------------------------------------------------------------------------------------

    def param(self, name: str, init_fn: Callable[..., Any], *args: Any, unbox: bool = True, **kwargs: Any) -> Any:
        """The ``Param`` with this name; ``init_fn(key, *args, **kwargs)`` makes it during ``init``.

        Args:
            unbox: whether to unbox an initial value: the box's value becomes the variable's, its axis names metadata.

        Raises:
            ArgumentError: outside of ``setup`` and compact methods; the name is in use; or there is no such parameter,
                and ``params`` is immutable.
            ScopeParamShapeError: the stored value and the one from ``init_fn`` differ in shape.
        """
        scope = self._bridge__running_scope("param")
        variable = self._bridge__existing("params", name)
        if variable is NOTHING:
            self._bridge__check_mutable("params", name)
            return self._bridge__add("params", name, init_fn(scope.rngs["params"](), *args, **kwargs), unbox)
        expected = jax.eval_shape(lambda: _bare(init_fn(jax.random.key(0), *args, **kwargs)))
        stored = unbox_tree(variable.get_raw_value())
        shapes, found = (jax.tree.map(lambda x: getattr(x, "shape", ()), tree) for tree in (expected, stored))
        if shapes != found:
            raise ScopeParamShapeError(
                "a stored parameter does not have the shape that its initializer returns",
                at=f"{type(self).__name__}, parameter {name!r} of collection 'params'",
                found=f"shape {found}",
                expected=f"shape {shapes}",
                do="pass variables of a module with the same sizes, and inputs with the same sizes",
            )
        return self._bridge__boxed_as(variable, name, unbox)

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *args: Any,
        unbox: bool = True,
        **kwargs: Any,
    ) -> Variable[Any]:
        """The variable with this collection and name; ``init_fn(*args, **kwargs)`` makes it if it is missing.

        Raises:
            ArgumentError: outside of ``setup`` and compact methods; the name is in use; or there is no such variable,
                and the collection is immutable, or there is no ``init_fn``.
        """
        self._bridge__running_scope("variable")
        variable = self._bridge__existing(col, name)
        if variable is not NOTHING:
            return self._bridge__boxed_as(variable, name, unbox)
        self._bridge__check_mutable(col, name, has_init=init_fn is not None)
        assert init_fn is not None
        return self._bridge__add(col, name, init_fn(*args, **kwargs), unbox)

    def make_rng(self, name: str = "default") -> jax.Array:
        """A new key from a stream.

        Raises:
            ArgumentError: outside of ``setup`` and compact methods.
            StreamKeyError: there is no such stream, and no ``default``.
        """
        return self._bridge__running_scope("make_rng").rngs[name]()

    def is_initializing(self) -> bool:
        """Whether ``init`` is running."""
        return self.scope is not None and self.scope.initializing

    @property
    def variables(self) -> Collections:
        """The variables of this module and its submodules, by collection."""
        return collect(self)

    def _bridge__running_scope(self, what: str) -> Scope:
        if _entry_of(self) is None or self.scope is None:
            raise ArgumentError(
                f"{what}() works only while the module's own setup() or @compact method runs",
                at=f"{type(self).__name__}.{what}",
                found="a call from elsewhere",
                expected="a call in `setup()`, or in a method wrapped in `@compact`, during init or apply",
                do=f"mark the method with @bridge.compact, and call {type(self).__name__}(...).init(...) or apply",
            )
        return self.scope

    def _bridge__existing(self, collection: str, name: str) -> Any:
        """The variable with this name, or ``NOTHING``."""
        present = self.__dict__.get(name, NOTHING)
        cls = variable_type(collection)
        if present is NOTHING and getattr(type(self), name, NOTHING) is not NOTHING:
            present = getattr(type(self), name)
        if present is not NOTHING and type(present) is not cls:
            what = "a submodule or a group of variables" if isinstance(present, (dict, PlaitModule)) else "an attribute"
            shown = type(present).__name__ if isinstance(present, Variable) else f"{what}, {present!r:.40}"
            raise ArgumentError(
                f"the name {name!r} of a variable is already in use",
                at=f"{type(self).__name__}.{name}",
                found=shown,
                expected=f"a {cls.__name__}, of collection {collection!r}, or an unused name",
                do="choose another name for one of the two",
            )
        return present

    def _bridge__check_mutable(self, collection: str, name: str, *, has_init: bool = True) -> None:
        scope = self.scope
        assert scope is not None
        if has_init and (scope.initializing or scope.is_mutable(collection)):
            return
        raise ArgumentError(
            f"there is no variable {name!r} in the collection {collection!r}",
            at=f"{type(self).__name__}, {collection}/{name}",
            found=f"the attributes {sorted(self.__dict__.keys() - set(OWN))}, with "
            f"mutable={scope.mutable!r}" + ("" if has_init else ", and no init_fn"),
            expected="a stored variable, or an init_fn and a mutable collection",
            do=f"pass the variables of init(), or apply(..., mutable=[{collection!r}])",
        )

    def _bridge__add(self, collection: str, name: str, value: Any, unbox: bool) -> Any:
        if isinstance(value, AxisMetadata):
            variable = to_nnx_var(collection, value)
        else:
            variable = variable_type(collection)(value)
        set_plainly(self, name, variable)
        set_priority(self, name, AttrPriority.HIGH)
        return self._bridge__boxed_as(variable, name, unbox)

    def _bridge__boxed_as(self, variable: Variable[Any], name: str, unbox: bool) -> Any:
        """The variable itself; with ``unbox=False``, a replacement whose value is the box."""
        if unbox or isinstance(variable.get_raw_value(), AxisMetadata):
            return variable
        box = to_linen_var(variable)
        if not isinstance(box, AxisMetadata):
            return variable
        boxed = type(variable)(box)
        set_plainly(self, name, boxed)
        return boxed

    # From outside -----------------------------------------------------------------------------------------------------

    def init(self, rngs: Any = None, *args: Any, method: Any = "__call__", **kwargs: Any) -> Collections:
        """Call the module once, and return the variables that it makes, by collection.

        Args:
            rngs: ``Rngs``, a seed, a key, or a mapping from names to seeds and keys.
            method: the method to call, or its name.

        Example:
            >>> class Bias(plait.bridge.Module):
            ...     @plait.bridge.compact
            ...     def __call__(self, x):
            ...         return x + self.param("bias", plait.initializers.zeros, x.shape[-1:])
            >>> Bias().init(0, jnp.ones((1, 2)))["params"]["bias"].shape
            (2,)
        """
        return self.init_with_output(rngs, *args, method=method, **kwargs)[1]

    def init_with_output(
        self, rngs: Any = None, *args: Any, method: Any = "__call__", mutable: Any = True, **kwargs: Any
    ) -> tuple[Any, Collections]:
        """Call the module once, and return the output and the variables that it makes."""
        scope = Scope(_streams(rngs, initializing=True), mutable, initializing=True)
        return self._bridge__run(scope, {}, method, args, kwargs)

    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        method: Any = "__call__",
        mutable: Any = False,
        rngs: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method with these variables. The module itself is not changed.

        Args:
            variables: variables by collection, as ``init`` returns them.
            mutable: the collections that may change; ``False`` discards changes.

        Returns:
            The output if ``mutable`` is ``False``; otherwise the output and the mutable collections.

        Raises:
            ArgumentError: a collection that is not in ``mutable`` was changed, and ``mutable`` is not ``False``.
        """
        out, collections = self._bridge__run(Scope(_streams(rngs), mutable), variables, method, args, kwargs)
        return out if mutable is False else (out, collections)

    def _bridge__run(self, scope: Scope, variables: Mapping[str, Any], method: Any, args: Any, kwargs: Any) -> Any:
        module = clone(self, graph=True)
        function = _method_of(module, method)
        attrs = linen_vars_to_nnx_attrs(variables)
        before = [(path, leaf, leaf.get_raw_value()) for path, leaf in iter_leaves(attrs)]
        with keeping_sown(), entered(scope):
            bind(module, scope, attrs)
            with running(module):
                out = function(module, *args, **kwargs)
        collections = collect(module)
        if scope.mutable is not False:
            _check_immutable(scope, before, collections, type(self).__name__)
        return out, {name: tree for name, tree in collections.items() if scope.is_mutable(name)}


def _entry_of(module: Module) -> ModuleStackEntry | None:
    """The context of a module that is running, or of a transform's own copy of it."""
    entry = current_context()
    if entry is None or entry.module is module:
        return entry
    is_copy = type(module) is type(entry.module) and module.scope is not None
    if is_copy and module._pytree__info.trace is not entry.module._pytree__info.trace:
        return dataclasses.replace(entry, module=module)
    return None


def _method_of(module: Module, method: Any) -> Callable[..., Any]:
    found = getattr(type(module), method, None) if isinstance(method, str) else getattr(method, "__func__", method)
    if not callable(found):
        raise ArgumentTypeError(
            "method is not a method of the module",
            at=f"{type(module).__name__}.{method}",
            found=f"{found!r:.80} of type {type(found).__name__}",
            expected="a callable that takes the module first, or the name of a method",
            do="for example method='encode'",
        )
    return found


def _streams(rngs: Any, *, initializing: bool = False) -> Rngs:
    """The streams of a call, in which a missing one depends on ``params``, as in Linen. (rule B32)"""
    if not isinstance(rngs, Rngs):
        return Rngs(with_default(rngs) if isinstance(rngs, Mapping) and PARAMS in rngs else rngs)
    if initializing or PARAMS not in rngs or "default" in rngs:
        return rngs
    streams = Rngs(default=rngs.params())
    for name, stream in rngs.items():
        setattr(streams, name, stream)
    return streams


def _bare(value: Any) -> Any:
    return unbox_tree(value.raw_value if isinstance(value, VariableMetadata) else value)


def _check_immutable(
    scope: Scope, before: list[tuple[Any, Variable[Any], Any]], after: Collections, owner: str
) -> None:
    """Raise if a collection that is not listed as mutable has changed. (rule B33)"""
    for path, variable, old in before:
        collection = variable_type_name(type(variable))
        # An array that is not in a variable was only carried by this one.
        is_bare = collection in BARE_COLLECTIONS
        now = find_leaf(after, (collection, *path)) if is_bare else variable.get_raw_value()
        if now is not old and now is not NOTHING and not scope.is_mutable(collection):
            raise immutable_changed(collection, f"{owner}, {describe_path(path)}", variable, scope.mutable)


def compact(f: F) -> F:
    """Mark a method of a ``bridge.Module`` that may make variables and submodules.

    Raises:
        ArgumentError: in the call, if the class is not a ``bridge.Module``, or outside of ``init`` and ``apply``.

    Example:
        >>> class Scale(plait.bridge.Module):
        ...     @plait.bridge.compact
        ...     def __call__(self, x):
        ...         return x * self.param("scale", plait.initializers.ones, (x.shape[-1],))
        >>> Scale().init(0, jnp.ones((1, 3)))["params"]["scale"].shape
        (3,)
    """

    @functools.wraps(f)
    def compact_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Module):
            raise ArgumentError(
                "compact methods belong to subclasses of plait.bridge.Module",
                at=f"{type(self).__name__}.{getattr(f, '__name__', f)}",
                found=f"a {type(self).__name__}",
                expected="a plait.bridge.Module",
                do=f"class {type(self).__name__}(plait.bridge.Module)",
            )
        if self.scope is None:
            raise ArgumentError(
                "a compact method was called outside of init and apply",
                at=f"{type(self).__name__}.{getattr(f, '__name__', f)}",
                found="a module without variables bound to it",
                expected="a call during init or apply",
                do=f"variables = {type(self).__name__}(...).init(0, x), then apply(variables, x)",
            )
        with running(self, in_compact=True):
            return f(self, *args, **kwargs)

    return compact_method  # type: ignore[return-value]
