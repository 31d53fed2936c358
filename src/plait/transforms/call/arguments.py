"""Step 1 of a call, gather: the arguments as raw values in walk order, plain leaves, and a static structure.

Also what they are called in messages, those of JAX too, keywords moved to positions, and static ones wrapped.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

import jax
from jax.tree_util import KeyPath, register_static

from ...core import hooks
from ...core.graph.graphdef import GraphDef, LeafDef, NodeDef, NodeRef, VariableDef, iter_places, node_def, path_of
from ...core.graph.walks import CachedWalk, find_walk, is_graph_leaf
from ...core.intermediates.sowing import RECORD
from ...core.nodes.attributes import has_data
from ...core.nodes.nodes import Static, jax_key_to_key
from ...core.settings import put_in_force, touched
from ...core.variables.cells import dict_of
from ...core.variables.variables import make_variables
from ...errors import ArgumentError
from ...typing import Metadata, Node, Tree, TreeDef, Value
from ...util.paths import Path, format_path
from ...util.static_values import static_key
from ...util.words import describe_type

F = TypeVar("F", bound=Callable[..., Any])


def static_argument(transform: str, value: object, name: str) -> Static:
    """A static argument of this name, wrapped so that it is part of the structure.

    Raises:
        ArgumentError: it cannot be hashed, or it is a module or variable, whose values would be constants.
    """
    if any(map(is_graph_leaf, has_data(value))):
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported, nor are modules and variables",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value without arrays, which the compiled program would keep as they are now",
            do="do not mark the argument as static: modules are ordinary arguments",
        )
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            f"{transform}: Non-hashable static arguments are not supported",
            at=f"argument {name}",
            found=describe_type(value),
            expected="a hashable value",
            do="pass a tuple instead of a list, or a dataclass with frozen=True; or do not mark the argument as static",
        ) from error
    return Static(value)


def with_statics(
    transform: str, f: Callable[..., Tree], args: tuple[Tree, ...], argnums: int | Iterable[int]
) -> tuple[Tree, ...]:
    """Positional arguments, with static ones wrapped."""
    statics = {argnums} if isinstance(argnums, int) else set(argnums)
    statics = {number + len(args) if number < 0 else number for number in statics}
    if not statics:
        return args
    names = parameter_names(f)
    return tuple(static_argument(transform, arg, names.at(i)) if i in statics else arg for i, arg in enumerate(args))


def positional(
    f: Callable[..., Tree], args: tuple[Tree, ...], kwargs: dict[str, Tree]
) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
    """Keyword arguments moved to positions, as far as the signature allows. (rule X1)"""
    if not kwargs:
        return args, kwargs
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs


class ParameterNames(NamedTuple):
    """What a function calls its positional arguments.

    Attributes:
        positional: the names of the parameters that take one argument each.
        rest: the name of the parameter that takes all others, such as ``models`` for ``*models``; ``None`` if the
            function has none, or no signature.
    """

    positional: tuple[str, ...] = ()
    rest: str | None = None

    def at(self, position: int) -> str:
        """The name of the argument at a position: ``x``, ``models[0]``; ``args[2]`` if the function has none for it."""
        if position < len(self.positional):
            return self.positional[position]
        return f"args[{position}]" if self.rest is None else f"{self.rest}[{position - len(self.positional)}]"


def parameter_names(function: Callable[..., Tree] | None) -> ParameterNames:
    """What a function calls its positional arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ParameterNames()
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return ParameterNames(names, next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None))


class ArgumentNames(inspect.Signature):
    """The signature of a function of arrays by which JAX calls them as the user does: ``model.kernel``.

    JAX asks for it when it traces the function, and uses the names in errors and programs.

    Args:
        names: returns the positional arguments with a name in place of each value, which may consist of several arrays.
    """

    __slots__ = ("_names",)

    def __init__(self, names: Callable[[], tuple[Tree, ...]]) -> None:
        kinds = {"_plait_given": inspect.Parameter.VAR_POSITIONAL, "_plait_named": inspect.Parameter.VAR_KEYWORD}
        super().__init__([inspect.Parameter(name, kind) for name, kind in kinds.items()])
        self._names = names

    def bind(self, /, *args: Any, **kwargs: Any) -> Any:
        names, treedef = jax.tree.flatten(self._names())
        try:
            found = dict(zip(names, treedef.flatten_up_to(args), strict=True))
        except ValueError:
            found = {}
        if len({*found, *kwargs}) < len(names) + len(kwargs):  # names that are no better than JAX's own
            return super().bind(*args, **kwargs)
        return SimpleNamespace(arguments={**found, **kwargs}, args=args, kwargs=kwargs, apply_defaults=lambda: None)


def named_as_user_s(function: F, f: Callable[..., Tree], names: Callable[[], tuple[Tree, ...]]) -> F:
    """A function of arrays, which JAX calls ``f``; ``names`` as for ``ArgumentNames``."""
    function.__wrapped__, function.__signature__ = f, ArgumentNames(names)  # type: ignore[attr-defined]
    return function


def argument_name(path: KeyPath, names: ParameterNames) -> str:
    """The name of what is at a JAX path in ``(args, kwargs)``: ``batch["x"]``, ``models[1].kernel``.

    Args:
        names: the function's names; if it is not known, positional arguments are ``args[0]``, ``args[1]``, …
    """
    kind, first, *rest = map(jax_key_to_key, path)
    return joined(names.at(first) if kind == 0 else str(first), tuple(rest))


def joined(root: str, path: Path) -> str:
    """The path of an object in an argument: ``model.layers[0].kernel``; what is sown, as an attribute."""
    if RECORD in path:
        place = path.index(RECORD)
        path = (*path[:place], *path[place + 2 :])
    text = format_path(path)
    return root + (text if not (root and text) or text.startswith("[") else f".{text}")


@register_static
@dataclasses.dataclass(frozen=True)
class Structure:
    """The static half of a pytree that may contain objects: its treedef, and a graphdef for each leaf that is an
    object."""

    treedef: TreeDef
    graphdefs: tuple[GraphDef | None, ...]

    @functools.cached_property
    def roots(self) -> tuple[GraphDef, ...]:
        """The graphdefs of the objects."""
        return tuple(graphdef for graphdef in self.graphdefs if graphdef is not None)

    @functools.cached_property
    def variables_only(self) -> tuple[tuple[type, ...], tuple[Metadata, ...], tuple[int | None, ...]] | None:
        """Class, metadata and index of each variable, if all its objects are variables, such as those of a ``State``,
        or references; modules are built by the plan of their graphdef."""
        variables = [root for root in self.roots if isinstance(root, VariableDef)]
        if any(type(root) not in (VariableDef, NodeRef) for root in self.roots):
            return None
        return (
            tuple(variable.type for variable in variables),
            tuple(dict_of(variable.metadata) for variable in variables),
            tuple(variable.index for variable in variables),
        )

    def children(self) -> list[Structure]:
        """The structure of each child, such as each entry of a tuple."""
        graphdefs = iter(self.graphdefs)
        return [Structure(t, tuple(itertools.islice(graphdefs, t.num_leaves))) for t in self.treedef.children()]

    def arguments(self) -> list[Argument]:
        """The positional arguments, if this is the structure of ``(args, kwargs)``."""
        found, values, plain = [], 0, 0
        for each in self.children()[0].children():
            parts = range(values, values := values + sum(root.num_leaves for root in each.roots))
            found.append(Argument(each, parts, range(plain, plain := plain + each.graphdefs.count(None))))
        return found

    def unflatten(
        self, make: Callable[[GraphDef, list[Value]], Node], values: Iterable[Value], plain: Iterable[Value]
    ) -> Tree:
        """The tree with these plain leaves, and with objects that ``make`` makes of graphdefs and their values."""
        values, plain = iter(values), iter(plain)
        leaves = [
            next(plain) if graphdef is None else make(graphdef, list(itertools.islice(values, graphdef.num_leaves)))
            for graphdef in self.graphdefs
        ]
        return jax.tree_util.tree_unflatten(self.treedef, leaves)

    def part_paths(self) -> Iterator[tuple[int, Path, GraphDef]]:
        """For each definition: the number of its object, its path in the object, and the definition."""
        for number, root in enumerate(self.roots):
            yield from ((number, path_of(link), part) for link, part in iter_places(root))

    def leaf_paths(self) -> list[tuple[int, Path]]:
        """For each value: the number of its object, and its path in the object."""
        return [(number, path) for number, path, part in self.part_paths() if isinstance(part, (VariableDef, LeafDef))]

    def places(self) -> list[KeyPath]:
        """The JAX path of each leaf; objects count as leaves."""
        return _places(self.treedef)

    def labels(self, f: Callable[..., Tree]) -> tuple[list[str], list[str]]:
        """The user's names of the objects and plain leaves of ``(args, kwargs)``: ``models[0]``, ``batch["x"]``."""
        pairs = list(zip(_leaf_names(self.treedef, f), self.graphdefs, strict=True))
        return [label for label, g in pairs if g is not None], [label for label, g in pairs if g is None]

    def definitions(self, f: Callable[..., Tree]) -> dict[str, TreeDef | GraphDef]:
        """What is at each place of ``(args, kwargs)``, to find the places in which two structures differ: the treedef
        of each argument, and in objects each definition without those below it."""
        tree = jax.tree_util.tree_unflatten(self.treedef, [object() for _ in self.graphdefs])
        tops = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: all(x is not y for y in (tree, *tree)))[0]
        names, (roots, _) = parameter_names(f), self.labels(f)
        found = {argument_name(path, names): jax.tree_util.tree_structure(argument) for path, argument in tops}
        for number, path, part in self.part_paths():
            is_node = isinstance(part, NodeDef)
            found[joined(roots[number], path)] = node_def(part.type, part.index, (), part.metadata) if is_node else part
        return found

    def value_labels(self, roots: Sequence[str]) -> list[str]:
        """The path of each value, for objects with these names: ``model.layers[0].kernel``."""
        return [joined(roots[number], path) for number, path in self.leaf_paths()]


class Argument(NamedTuple):
    """The structure of an argument, and the positions of its values and plain leaves among those of all."""

    structure: Structure
    values: range
    plain: range


def _places(treedef: TreeDef) -> list[KeyPath]:
    tree = jax.tree_util.tree_unflatten(treedef, [object() for _ in range(treedef.num_leaves)])
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _leaf_names(treedef: TreeDef, f: Callable[..., Tree] | None) -> list[str]:
    """The names of the leaves of ``(args, kwargs)``: ``model``, or ``args[0]`` where the function is not known."""
    names = parameter_names(f)
    return [argument_name(path, names) if len(path) > 1 else "" for path in _places(treedef)]


@dataclasses.dataclass
class Gathered:
    """The flattened arguments of one call.

    Attributes:
        roots: the objects.
        walk: the walk over all of them, with one index; ``None`` if there are none.
        plain: the other leaves.
    """

    structure: Structure
    roots: tuple[Node, ...]
    walk: CachedWalk | None
    plain: list[Value]

    def values(self) -> list[Value]:
        """The raw values of all variables and array attributes, in walk order."""
        return [] if self.walk is None else self.walk.raw_values()

    def parts(self) -> tuple[Structure, list[Value], list[Value]]:
        """The structure, the values of the objects, and the other leaves."""
        return self.structure, self.values(), self.plain

    def scope(self, names: Sequence[Callable[[], Sequence[str]]]) -> AbstractContextManager[None]:
        """The context in which a call with these objects runs; ``names`` name them in each function that is traced."""
        return nullcontext() if hooks.around_call is None else hooks.around_call(self, [*names])

    def replace_value(self, position: int, value: Value) -> None:
        """Store an equal value, such as a resharded one, in the caller's own variable at a position."""
        assert self.walk is not None
        self.walk.cells[position].raw = value

    def leaf_places(self) -> list[tuple[int, int, Path, Value]]:
        """For each value: its position, the number of its object, its path in the object, and a leaf to apply filters
        to."""
        walk = self.walk
        if walk is None:
            return []
        leaves: list[Value] = [cell.raw for cell in walk.cells]
        kept = [(position, cls) for position, cls in enumerate(walk.types) if cls is not None]
        raws, metadata = [leaves[each] for each, _ in kept], [walk.cells[each].metadata for each, _ in kept]
        made = make_variables([cls for _, cls in kept], raws, metadata)
        for (position, _), variable in zip(kept, made, strict=True):
            leaves[position] = variable
        numbers = [number for number, count in enumerate(walk.counts) for _ in range(count)]
        return [*zip(range(len(leaves)), numbers, walk.paths(), leaves, strict=True)]


def gather(tree: Tree, f: Callable[..., Tree] | None = None) -> Gathered:
    """Flatten a pytree with objects: first down to modules and variables, then those are walked.

    Args:
        f: the function whose ``(args, kwargs)`` the tree is, for the names of its arguments in errors.

    Raises:
        SharingError: a layer of a stack is among the objects twice.
    """
    if touched.ever:
        put_in_force()
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=is_graph_leaf)
    flags = [is_graph_leaf(leaf) for leaf in leaves]
    roots = tuple(itertools.compress(leaves, flags))
    plain = [leaf for leaf, is_object in zip(leaves, flags, strict=True) if not is_object]
    walk = find_walk(roots, lambda: list(itertools.compress(_leaf_names(treedef, f), flags))) if roots else None
    supply = iter(walk.graphdefs if walk is not None else ())
    graphdefs = tuple(next(supply) if is_object else None for is_object in flags)
    return Gathered(Structure(treedef, graphdefs), roots, walk, plain)
