"""Model surgery: selecting parts of a model by path and filter, and reading, freezing or replacing them in one call.

Everything happens in place, on the given model. Parts that are not selected do not change: they remain the same objects
with the same arrays.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.update import children_by_key
from ..core.nodes.nodes import Kind, children_of, iter_variables, kind_of, visit
from ..core.nodes.pytree import Pytree, copied_buffers
from ..core.rngs import Rngs, RngState
from ..core.states.pure_dicts import plain_value
from ..core.variables.filters import All, to_predicate
from ..core.variables.variable_kinds import Param
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..nn.stacks.stacking import over_layers
from ..typing import FilterLiteral
from ..util.path_patterns import PathPattern
from ..util.paths import Path, describe_path
from ..util.words import describe_type, first_few
from .parts import Part, parts_of


def trainable(path: Path, value: Any) -> bool:
    """The filter for ``Param``s that are not frozen, as in ``wrt=plait.trainable``.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> _ = plait.select(model, "kernel").freeze()
        >>> list(plait.state(model, plait.trainable))
        ['bias']
    """
    return isinstance(value, Param) and not value.get_metadata("frozen", False)


def select(model: Any, /, *filters: FilterLiteral) -> Selection:
    """Select parts of a model, to read or change them in one call.

    Args:
        model: a module, or a container of modules and variables.
        *filters: a part must match all of them. A string is a path pattern: ``"encoder.layers[*].attention"``,
            ``"layers[:6]"``, ``"**.kernel"``; ``*`` matches any single key and ``**`` any number of keys. Everything
            else is a filter as elsewhere, and is applied to modules, containers, variables, arrays and static values:
            ``plait.Linear``, ``plait.Param``, ``plait.WithTag("dropout")``; a list or tuple matches if any of its
            entries matches.

    Returns:
        The parts in the order of the graph. A shared part is selected once, if the filters match any of its paths;
        parts below it are matched by the first of these paths.

    Raises:
        ArgumentError: nothing matches; the message names the closest paths.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> model = plait.Sequential(plait.Linear(2, 3, rngs=rngs), plait.relu, plait.Linear(3, 1, rngs=rngs))
        >>> plait.select(model, plait.Linear)
        <Selection of 2>
        layers[0]: a Linear
        layers[2]: a Linear
        >>> plait.select(model, "layers[0].**", plait.Param).freeze().paths
        (('layers', 0, 'bias'), ('layers', 0, 'kernel'))
    """
    predicates = [to_predicate(with_patterns(filter)) for filter in filters]
    matches, parts = All(*predicates), parts_of(model)
    chosen = [part for part in parts if any(matches(path, part.value) for path in part.paths)]
    if not chosen:
        raise _nothing_matches(model, predicates, parts)
    return Selection(model, chosen)


def with_patterns(filter: Any) -> Any:
    """A filter with path patterns in place of strings."""
    if isinstance(filter, str):
        return PathPattern(filter)
    if isinstance(filter, (list, tuple)):
        return tuple(with_patterns(entry) for entry in filter)
    return filter


class Selection:
    """Parts of a model, from ``plait.select``."""

    def __init__(self, model: Any, parts: list[Part]) -> None:
        self._model, self._parts = model, parts

    @property
    def paths(self) -> tuple[Path, ...]:
        """The path of each part."""
        return tuple(part.paths[0] for part in self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        return ((part.paths[0], part.value) for part in self._parts)

    def __repr__(self) -> str:
        lines = [f"{describe_path(path)}: {describe_type(value)}" for path, value in self]
        return "\n".join([f"<Selection of {len(self)}>", *lines])

    def get(self) -> dict[Path, Any]:
        """The parts themselves, by path.

        Example:
            >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
            >>> plait.select(model, "bias").get()[("bias",)] is model.bias
            True
        """
        return dict(self)

    def replace(self, function: Callable[[Path, Any], Any], /) -> Selection:
        """Replace each part by a different object, to wrap, exchange or remove it.

        A shared part is passed once, and its replacement is put in all its places. A part in the blocks of a ``Stack``
        is passed once for each layer, as a copy, and the replacements are stacked; the order is that of a list.

        Args:
            function: ``(path, part) -> replacement``. All replacements are computed before the first one is stored.

        Returns:
            The selection of the replacements, each with the first path of the part that it replaces.

        Raises:
            ArgumentError: the root of the model is selected.

        Example:
            >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)))
            >>> residual = lambda path, layer: plait.Sequential(layer, plait.relu)
            >>> _ = plait.select(model, plait.Linear).replace(residual)
            >>> type(model.layers[0]).__name__
            'Sequential'
        """
        for part in self._parts:
            if not part.places:
                raise ArgumentError(
                    "the root of the model cannot be replaced",
                    at=describe_path(part.paths[0]),
                    found=f"a selection with {describe_type(part.value)}, the model itself",
                    expected="parts below the root",
                    do="assign to your own name, or add a path pattern such as '*.**' to the selection",
                )
        new = over_layers(function, self._model, [*self])
        return Selection(self._model, [part.put(value) for part, value in zip(self._parts, new, strict=True)])

    def set(self, value: Any, /) -> Selection:
        """Set each part to this value: a variable keeps its identity and metadata; arrays and settings are replaced.

        Args:
            value: the new value; a Python number fills a variable or array, which keeps its shape and dtype.

        Raises:
            ArgumentError: a module or container is selected, which has no value.

        Example:
            >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)), plait.Dropout(0.5))
            >>> _ = plait.select(model, "**.kernel").set(0.5)
            >>> _ = plait.select(model, "**.rate").set(0.1)
            >>> model.layers[0].kernel[...].tolist(), model.layers[1].rate
            ([[0.5, 0.5], [0.5, 0.5]], 0.1)
        """
        return self.map(lambda path, old: jnp.full_like(old, value) if _fills(value, old) else value)

    def map(self, function: Callable[[Path, Any], Any], /) -> Selection:
        """Like ``set``, with ``function(path, old value)`` as the new value.

        Example:
            >>> model = plait.Linear(2, 2, rngs=plait.Rngs(0))
            >>> _ = plait.select(model, plait.Param).map(lambda path, value: value.astype(jnp.bfloat16))
            >>> model.kernel.dtype.name
            'bfloat16'
        """
        for path, part in self:
            if kind_of(part) in (Kind.GRAPH, Kind.PYTREE) and part is not None:
                raise ArgumentError(
                    "a module or container has no value to set",
                    at=describe_path(path),
                    found=describe_type(part),
                    expected="variables, arrays and static values",
                    do="add plait.Variable to the selection, or use replace(lambda path, part: ...)",
                )

        old = [part.get_value() if isinstance(part, Variable) else part for _, part in self]
        new = over_layers(function, self._model, [*zip(self.paths, old, strict=True)])
        pairs = [*zip(self._parts, new, strict=True)]
        # Replacements, which may raise, come first; a variable is written in place.
        parts = [part if isinstance(part.value, Variable) else part.put(value) for part, value in pairs]
        for part, value in pairs:
            if isinstance(part.value, Variable):
                part.value.set_value(value)
        return Selection(self._model, parts)

    def freeze(self) -> Selection:
        """Mark the variables of the parts, and of everything below them, as frozen.

        The mark is the metadata ``frozen=True``, which the filter ``plait.trainable`` reads: an
        ``Optimizer(model, tx, wrt=plait.trainable)`` created afterwards has no state for them and never changes them,
        and ``plait.grad`` with ``plait.DiffState(0, plait.trainable)`` computes no gradients for them. Statistics and
        random streams continue to update; use ``eval()`` to stop that.

        Example:
            >>> model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Linear(3, 1, rngs=plait.Rngs(1)))
            >>> _ = plait.select(model, "layers[0]").freeze()
            >>> optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.trainable)
            >>> plait.select(optimizer, "**", plait.optimizer.OptVariable).paths[0][-3:]
            ('layers', 1, 'bias')
        """
        for _, variable in self._variables():
            if not variable.get_metadata("frozen", False):
                variable.set_metadata(frozen=True)
        return self

    def unfreeze(self) -> Selection:
        """Undo ``freeze``. To train the parts, create a new optimizer."""
        for _, variable in self._variables():
            if variable.get_metadata("frozen", None) is not None:
                variable.del_metadata("frozen")
        return self

    def share_with(self, other: Any, /) -> Selection:
        """Replace every part by one object, so that all use the same parameters.

        Args:
            other: a module or variable, or the path pattern of one in the model.

        Raises:
            ArgumentError: the pattern matches several objects, or the parameters of a part have different paths or
                shapes.

        Example:
            >>> rngs = plait.Rngs(0)
            >>> model = plait.Dict(a=plait.Linear(2, 2, rngs=rngs), b=plait.Linear(2, 2, rngs=rngs))
            >>> _ = plait.select(model, "b").share_with("a")
            >>> model["b"] is model["a"]
            True
        """
        if isinstance(other, str):
            found = select(self._model, other)
            if len(found) != 1:
                paths = [*map(describe_path, found.paths)]
                raise ArgumentError(
                    "share_with takes one object",
                    found=f"the pattern {other!r}, which matches {len(found)}: {first_few(paths, 4)}",
                    expected="a pattern that matches one object",
                    do=f"write, for example, share_with({paths[0]!r})",
                )
            other = found._parts[0].value
        theirs = _shapes(other)
        for path, part in self:
            own = _shapes(part)
            if own != theirs:
                raise ArgumentError(
                    "parts with different parameter shapes cannot share parameters",
                    at=describe_path(path),
                    found=f"variables of shapes {_shown(own)}",
                    expected=f"the shapes of {describe_type(other)}: {_shown(theirs)}",
                    do="to replace the part by something else, use replace(lambda path, part: other)",
                )
        return self.replace(lambda path, part: other)

    def copy_from(self, model: Any, /) -> Selection:
        """Copy values from the same paths of another model to the variables of the parts and everything below them.

        Use a newly created model to reset parts to the initial values from its own code. Values are copied, and cast to
        the existing dtype.

        Raises:
            ArgumentError: the other model has no variable at a path, or one with a different shape; nothing is changed.

        Example:
            >>> make = lambda seed: plait.Sequential(*(plait.Linear(2, 2, rngs=plait.Rngs(seed)) for _ in range(2)))
            >>> model, fresh = make(0), make(1)
            >>> _ = plait.select(model, "layers[1]").copy_from(fresh)
            >>> [bool((a.kernel == b.kernel).all()) for a, b in zip(model.layers, fresh.layers)]
            [False, True]
        """
        source = {path: part.value for part in parts_of(model) for path in part.paths}
        self._write([(path, variable, source.get(path)) for path, variable in self._variables()], "the other model")
        return self

    def reinitialize(self, rngs: Rngs, /, **arguments: Any) -> Selection:
        """Reinitialize the modules of the parts and everything below them, in their existing variables.

        Each module with variables is created again by its class, with the constructor arguments that it stores as
        attributes of the same name, except those in its ``derived_arguments``. plait's layers store all arguments
        except initializers and metadata. Random streams do not change.

        Args:
            rngs: the source of the keys.
            **arguments: arguments for the constructors that accept them, such as ``kernel_init``. Layers do not store
                their initializers, so pass those that are not the default again, or use ``copy_from``.

        Raises:
            ArgumentError: a module does not store an argument that its constructor needs, or has variables that its
                constructor does not create, or a part is not a module; nothing is changed.

        Example:
            >>> model = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)), plait.Linear(2, 2, rngs=plait.Rngs(1)))
            >>> _ = plait.select(model, "layers[1]").reinitialize(plait.Rngs(7))
            >>> bool((model.layers[1].kernel == plait.Linear(2, 2, rngs=plait.Rngs(7)).kernel).all())
            True
        """
        for path, part in self:
            if kind_of(part) not in (Kind.GRAPH, Kind.PYTREE) or part is None:
                raise ArgumentError(
                    "only modules can be reinitialized",
                    at=describe_path(path),
                    found=describe_type(part),
                    expected="modules, or containers of them",
                    do="select the module that contains it, or use map(lambda path, value: ...)",
                )
        writes: list[tuple[Path, Variable[Any], Any]] = []
        owners = [*self._holders()]
        made = over_layers(lambda path, owner: _made_again(path, owner, rngs, arguments), self._model, owners)
        for (path, owner), module in zip(owners, made, strict=True):
            fresh = {place.path: place.value for place in visit(module)}
            for key, variable in iter_variables(owner):
                if _is_initialized(variable):
                    writes.append(((*path, *key), variable, fresh.get(key)))
        self._write(writes, "the module from its constructor")
        return self

    def _variables(self) -> Iterator[tuple[Path, Variable[Any]]]:
        """The variables of the parts and below, each once."""
        for (number, *path), variable in iter_variables([part.value for part in self._parts]):
            yield (*self._parts[number].paths[0], *path), variable

    def _holders(self) -> Iterator[tuple[Path, Any]]:
        """The outermost modules that directly contain variables, each once, without random streams."""
        for place in visit([part.value for part in self._parts]):
            if place.enter and any(_is_initialized(child) for _, child in children_of(place.value)):
                place.enter = False
                number, *path = place.path
                yield (*self._parts[number].paths[0], *path), place.value

    def _write(self, writes: list[tuple[Path, Variable[Any], Any]], origin: str) -> None:
        for path, variable, other in writes:
            if not isinstance(other, Variable) or _shapes(other) != _shapes(variable):
                raise ArgumentError(
                    f"{origin} does not have this variable",
                    at=describe_path(path),
                    found=f"shape {jnp.shape(plain_value(other))}"
                    if isinstance(other, Variable)
                    else describe_type(other),
                    expected=f"{describe_type(variable)} of shape {_shown(_shapes(variable))}",
                    do="select only the parts that both have; plait.diff shows how two models differ",
                )
        for _, variable, other in writes:
            variable.set_raw_value(jax.tree.map(_copied_as, plain_value(other), plain_value(variable)))


def _nothing_matches(model: Any, predicates: list[Any], parts: list[Part]) -> ArgumentError:
    counts = [sum(any(p(path, part.value) for path in part.paths) for part in parts) for p in predicates]
    listed = ", ".join(f"{_name(p)} alone matches {count}" for p, count in zip(predicates, counts, strict=True))
    known = [describe_path(path) for part in parts for path in part.paths]
    wanted = [p.text for p, count in zip(predicates, counts, strict=True) if isinstance(p, PathPattern) and not count]
    near = [path for text in wanted for path in difflib.get_close_matches(text, known, cutoff=0.3)]
    return ArgumentError(
        "no part of the model matches the selection",
        at=describe_type(model),
        found=listed or "no filters, and an empty model",
        expected=f"a path of the model; the closest are {', '.join(near)}" if near else "filters that match some part",
        do="list all parts: print(plait.select(model, ...))",
    )


def _name(predicate: Any) -> str:
    return getattr(predicate, "__name__", None) or repr(predicate)


# Values ---------------------------------------------------------------------------------------------------------------


def _fills(value: Any, old: Any) -> bool:
    return isinstance(value, (bool, int, float, complex)) and isinstance(old, jax.Array)


def _shapes(node: Any) -> dict[Path, Any]:
    """The shapes of a part's variables by path, without random streams."""
    initialized = ((path, value) for path, value in iter_variables(node) if _is_initialized(value))
    return {path: jax.tree.map(jnp.shape, plain_value(value)) for path, value in initialized}


def _shown(shapes: dict[Path, Any]) -> str:
    return (
        ", ".join(f"{describe_path(path)} {shape}" if path else str(shape) for path, shape in shapes.items()) or "none"
    )


def _copied_as(value: Any, like: Any) -> Any:
    dtype = getattr(like, "dtype", None)
    return copied_buffers(value) if dtype is None or dtype == value.dtype else value.astype(dtype)


def _is_initialized(value: Any) -> bool:
    """Whether a constructor initializes it: a variable that is not part of a random stream."""
    return isinstance(value, Variable) and not isinstance(value, RngState)


def _made_again(path: Path, module: Any, rngs: Rngs, given: Mapping[str, Any]) -> Any:
    """A module with the same class and arguments, and new initial values.

    Raises:
        ArgumentError: the module does not store an argument that the constructor needs.
    """
    parameters = [*inspect.signature(type(module).__init__).parameters.values()][1:]
    kept, derived = {**children_by_key(module), "rngs": rngs}, getattr(type(module), "derived_arguments", ())
    stored = {key: value for key, value in kept.items() if key not in derived and not isinstance(value, Variable)}
    known = {**stored, **given}
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [name for name in needed if name not in known and name not in derived]
    if missing or not isinstance(module, Pytree):
        raise ArgumentError(
            "a module cannot be re-created: it does not store the arguments of its constructor",
            at=f"{describe_path(path)} ({describe_type(module)})",
            found=f"no attributes {', '.join(missing)}" if missing else "a container of variables, not a module",
            expected="each argument of __init__ as an attribute of the same name",
            do="create a new model and copy its values: plait.select(model, ...).copy_from(new_model)",
        )
    return type(module)(**{p.name: known[p.name] for p in parameters if p.name in known})
