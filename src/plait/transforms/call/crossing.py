"""The crossing: one passage from the world of objects through a pure function and back.

Every transform is this, with another JAX transform in the middle:

1. **gather** (outside): the arguments are flattened as a pytree that stops at modules and variables; those are walked
   under one index, so that sharing across arguments is seen once. What remains are raw values in walk order, plain
   leaves, and a static ``Structure``.
2. **enter** (inside): private copies of the objects are built around the traced values. The caller's own objects are
   never touched while a function is traced.
3. **leave** (inside): after the function ran, arguments and output are walked again, under one new index. What changed
   is a static ``Outcome``; the values that the function wrote, and only those, are returned as arrays.
4. **write back** (outside): the outcome is applied to the caller's own objects: values are written into the same
   variables and, where the structure changed, nodes are refilled in place. Objects that were there before stay the
   same objects; new ones appear once.

Nothing outside changes before step 4, so a function that raises changes nothing. The outcome is static and hashable,
because a compiled function that is called again runs only steps 1 and 4. (rules U8 to U23, U27)
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import jax
from jax.tree_util import register_static

from ..._compat import current_trace, describe_trace, top_level_trace, trace_state
from ...core.functional.modes import check_mode, graph_mode
from ...core.functional.traversal import find_duplicates
from ...core.graph.flatten import Walk, path_of
from ...core.graph.graphdef import GraphDef, LeafDef, NodeDef, VariableDef, iter_parts
from ...core.graph.locate import describe_place, path_within
from ...core.graph.unflatten import UNTOUCHED, Builder
from ...core.graph.walks import CachedWalk, find_walk
from ...core.objects.module import Pytree
from ...core.objects.nodes import Static
from ...core.objects.statics import HashableMapping
from ...core.objects.variables import Variable
from ...errors import ArgumentError, ArgumentTypeError, StaticValueError
from ...paths import Path, format_path
from ...words import describe_type, with_article
from .arguments import objects_by_name
from .captures import captures_objects, watch_captured_containers
from .prefixes import choose, is_graph_leaf

F = TypeVar("F", bound=Callable[..., Any])


@register_static
@dataclasses.dataclass(frozen=True)
class Structure:
    """The static half of a pytree of arguments: its treedef, and a graphdef for each leaf that is an object."""

    treedef: Any
    graphdefs: tuple[GraphDef | None, ...]

    def leaf_paths(self) -> list[tuple[int, Path]]:
        """For each value: the number of the object that it belongs to, and its path in there."""
        found: list[tuple[int, Path]] = []
        roots = [graphdef for graphdef in self.graphdefs if graphdef is not None]
        for number, root in enumerate(roots):
            stack: list[tuple[Path, Any]] = [((), root)]
            while stack:
                path, part = stack.pop()
                if isinstance(part, (VariableDef, LeafDef)):
                    found.append((number, path))
                elif isinstance(part, NodeDef):
                    children = [(entry.key, getattr(entry, "value", None)) for entry in part.attributes]
                    stack.extend(((*path, key), child) for key, child in reversed(children))
        return found


@dataclasses.dataclass
class Gathered:
    """The arguments of one call, taken apart (step 1)."""

    structure: Structure
    roots: tuple[Any, ...]
    walk: CachedWalk | None
    plain: list[Any]

    def values(self) -> list[Any]:
        """The raw values of all variables and array attributes, in walk order."""
        return [] if self.walk is None else self.walk.raw_values()


def gather(tree: Any) -> Gathered:
    """Take a pytree that holds objects apart."""
    leaves, treedef = jax.tree_util.tree_flatten(tree, is_leaf=is_graph_leaf)
    flags = [is_graph_leaf(leaf) for leaf in leaves]
    roots = tuple(leaf for leaf, is_object in zip(leaves, flags, strict=True) if is_object)
    plain = [leaf for leaf, is_object in zip(leaves, flags, strict=True) if not is_object]
    walk = find_walk(roots) if roots else None
    supply = iter(walk.graphdefs if walk is not None else ())
    graphdefs = tuple(next(supply) if is_object else None for is_object in flags)
    return Gathered(Structure(treedef, graphdefs), roots, walk, plain)


def gather_checked(name: str, f: Callable[..., Any], tree: Any, graph: bool | None, updates: bool) -> Gathered:
    """Take the arguments of ``f`` apart, which must fit the modes in force.

    Raises:
        GraphError: tree mode is in force, and the pytree is a graph.
        ArgumentError: only values are carried out, and two paths lead to one variable.
    """
    check_arguments(name, f, tree, graph, updates)
    return gather(tree)


class Entered:
    """The arguments inside the transformed function (step 2).

    Attributes:
        tree: the arguments, with private objects.
        index_ref: outer index → private object.
        values: the traced values that the objects were built around.
    """

    __slots__ = ("index_ref", "roots", "structure", "tree", "values")

    def variables(self) -> list[Any]:
        """The private variable at each position of the values; ``None`` for array attributes."""
        return [
            self.index_ref[part.index] if isinstance(part, VariableDef) else None  # type: ignore[index]
            for graphdef in self.structure.graphdefs
            if graphdef is not None
            for part in iter_parts(graphdef)
            if isinstance(part, (VariableDef, LeafDef))
        ]

    def __init__(self, structure: Structure, values: Sequence[Any], plain: Sequence[Any]) -> None:
        self.structure = structure
        self.values = list(values)
        self.index_ref: dict[int, Any] = {}
        builder = Builder(self.index_ref)
        supply = iter(plain)
        position = 0
        leaves, roots = [], []
        for graphdef in structure.graphdefs:
            if graphdef is None:
                leaves.append(next(supply))
                continue
            count = graphdef.num_leaves
            root = builder.build(graphdef, self.values[position : position + count])
            position += count
            leaves.append(root)
            roots.append(root)
        self.roots = tuple(roots)
        self.tree = jax.tree_util.tree_unflatten(structure.treedef, leaves)


@register_static
@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a function did to its arguments and what it returned, as far as it is static (step 3).

    Attributes:
        written: positions, among the input values, of the variables that were written.
        arguments: the graphdefs of the arguments afterwards, or ``None`` when their structure is as it was.
        argument_sources: for each leaf of those, where its value comes from: ``i >= 0`` is the i-th returned value,
            ``-1 - j`` the j-th input value.
        output: the structure of an output that holds objects, or ``None`` for a plain one.
        output_sources: the same for its leaves.
        mapping: new index → outer index, for the objects that were there before.
    """

    written: tuple[int, ...]
    arguments: tuple[GraphDef, ...] | None = None
    argument_sources: tuple[int, ...] = ()
    output: Structure | None = None
    output_sources: tuple[int, ...] = ()
    mapping: HashableMapping[int, int] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether only values of existing variables were written and the output holds no objects."""
        return self.arguments is None and self.output is None


class Left(NamedTuple):
    """What step 3 found.

    Attributes:
        outcome: the static half.
        values: the values to return.
        plain: the plain part of the output: the output itself when it holds no objects, else its plain leaves.
        walk: over arguments and output.
        ends: how many leaves the walk had after each root: the arguments, then the objects of the output.
        origins: where each value comes from: ``i >= 0`` is the i-th leaf of the walk, ``-1 - j`` the j-th input value.
    """

    outcome: Outcome
    values: list[Any]
    plain: Any
    walk: Walk
    ends: list[int]
    origins: list[int]

    def positions(self, variables: Sequence[Any]) -> list[int | None]:
        """For each value the input position of its variable, or ``None`` for a new one.

        Args:
            variables: those that came in, as ``Entered.variables`` gives them.
        """
        known = {id(variable): position for position, variable in enumerate(variables) if variable is not None}
        return [-1 - origin if origin < 0 else known.get(id(self.walk.leaves[origin])) for origin in self.origins]

    def prefix_of(self, leaf: int, prefixes: Sequence[Any]) -> Any:
        """The prefix of a leaf of the walk, by that of the root that it belongs to: arguments, then output."""
        root = next(number for number, end in enumerate(self.ends) if leaf < end)
        return choose(prefixes[root], path_of(self.walk.links[leaf]), self.walk.leaves[leaf])


def leave(entered: Entered, out: Any, name: str, returned: frozenset[int] = frozenset()) -> Left:
    """Walk arguments and output again (step 3).

    Args:
        name: the transform, for errors.
        returned: positions of input values that must be returned whether written or not, because the compiled function
            takes their buffers over (donation).

    Raises:
        ArgumentError: the output holds an object of another trace, such as a captured model.
    """
    walk = Walk()
    ends: list[int] = []

    def add(root: Any) -> GraphDef:
        graphdef = walk.add(root)
        ends.append(len(walk.leaves))
        return graphdef

    arguments = tuple(map(add, entered.roots))
    argument_count = len(walk.leaves)
    unchanged = arguments == tuple(g for g in entered.structure.graphdefs if g is not None) and all(
        walk.refs.get(inner) == outer for outer, inner in entered.index_ref.items()
    )
    unchanged = unchanged and len(walk.refs) == len(entered.index_ref)
    values: list[Any] = []
    origins: list[int] = []
    inputs = {id(value): position for position, value in enumerate(entered.values) if position not in returned}

    def source(number: int, raw: Any) -> int:
        """The input that a leaf still holds, or a new returned value."""
        position = inputs.get(id(raw))
        if position is not None:
            return -1 - position
        values.append(raw)
        origins.append(number)
        return len(values) - 1

    raws = [leaf._cell.raw if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    if unchanged and any(
        raw is not before and not isinstance(leaf, Variable)
        for raw, before, leaf in zip(raws, entered.values, walk.leaves, strict=True)
    ):
        unchanged = False  # an array attribute was replaced
    written: tuple[int, ...] = ()
    argument_sources: tuple[int, ...] = ()
    if unchanged:
        written = tuple(
            position
            for position, (raw, before) in enumerate(zip(raws, entered.values, strict=True))
            if raw is not before or position in returned
        )
        values.extend(raws[position] for position in written)
        origins.extend(-1 - position for position in written)
    else:
        argument_sources = tuple(itertools.starmap(source, enumerate(raws)))
    leaves, treedef = jax.tree_util.tree_flatten(out, is_leaf=is_graph_leaf)
    output = None
    output_sources: tuple[int, ...] = ()
    plain = out
    if any(map(is_graph_leaf, leaves)):
        graphdefs = tuple(add(leaf) if is_graph_leaf(leaf) else None for leaf in leaves)
        output = Structure(treedef, graphdefs)
        plain = [leaf for leaf in leaves if not is_graph_leaf(leaf)]
        output_sources = tuple(
            source(number, leaf._cell.raw if isinstance(leaf, Variable) else leaf)
            for number, leaf in enumerate(walk.leaves[argument_count:], argument_count)
        )
    if unchanged and output is None:
        return Left(Outcome(written), values, plain, walk, ends, origins)
    _check_no_captives(walk, entered, out, name)
    mapping = HashableMapping(
        {new: outer for outer, inner in entered.index_ref.items() if (new := walk.refs.get(inner)) is not None}
    )
    outcome = Outcome(written, None if unchanged else arguments, argument_sources, output, output_sources, mapping)
    return Left(outcome, values, plain, walk, ends, origins)


def leave_values_only(entered: Entered, out: Any, name: str, returned: frozenset[int] = frozenset()) -> Left:
    """Step 3 without structural updates: only values of the variables that came in are carried out. (rule U32)

    Raises:
        ArgumentError: an input variable is returned.
    """
    variables = entered.variables()
    written = tuple(
        position
        for position, (variable, before) in enumerate(zip(variables, entered.values, strict=True))
        if variable is not None and (variable._cell.raw is not before or position in returned)
    )
    values = [variables[position]._cell.raw for position in written]
    origins = [-1 - position for position in written]
    leaves, treedef = jax.tree_util.tree_flatten(out, is_leaf=is_graph_leaf)
    walk = Walk()
    ends = [0] * len(entered.roots)
    if not any(map(is_graph_leaf, leaves)):
        return Left(Outcome(written), values, out, walk, ends, origins)
    graphdefs = []
    for leaf in leaves:
        graphdefs.append(walk.add(leaf) if is_graph_leaf(leaf) else None)
        if is_graph_leaf(leaf):
            ends.append(len(walk.leaves))
    _check_no_captives(walk, entered, out, name)
    positions = {id(variable): position for position, variable in enumerate(variables) if variable is not None}
    for leaf in walk.leaves:
        if id(leaf) in positions:
            path = entered.structure.leaf_paths()[positions[id(leaf)]][1]
            raise ArgumentError(
                f"{name} with graph_updates=False was asked to return an input variable",
                at=f"{format_path(path)} ({with_article(type(leaf).__name__)})" if path else describe_place(leaf),
                found=f"the {type(leaf).__name__} that was passed in",
                expected="new objects, or values",
                do="return variable.value" + _or_updates(name),
            )
    sources = tuple(range(len(values), len(values) + len(walk.leaves)))
    values += [leaf._cell.raw if isinstance(leaf, Variable) else leaf for leaf in walk.leaves]
    origins += range(len(walk.leaves))
    plain = [leaf for leaf in leaves if not is_graph_leaf(leaf)]
    outcome = Outcome(written, None, (), Structure(treedef, tuple(graphdefs)), sources, HashableMapping({}))
    return Left(outcome, values, plain, walk, ends, origins)


def check_arguments(name: str, f: Callable[..., Any], tree: Any, graph: bool | None, updates: bool) -> None:
    """Refuse arguments ``(args, kwargs)`` that do not fit the modes in force. (rule U32)

    Raises:
        GraphError: tree mode is in force, and the arguments are a graph.
        ArgumentError: only values are carried out, and two paths lead to one variable; names both.
    """
    if updates and graph_mode(graph):
        return
    objects = objects_by_name(f, tree)
    check_mode(objects, graph)
    if updates:
        return
    for paths in find_duplicates(objects, only=_holds_variables)[:1]:
        one, other, *_ = map(format_path, paths)
        raise ArgumentError(
            f"{name} with graph_updates=False takes no shared variables",
            at=f"{one} and {other}",
            found="one variable at both (a duplicate)",
            expected="each variable once",
            do=f"give each place its own: {other} = plait.clone({one})" + _or_updates(name),
        )


def _or_updates(name: str) -> str:
    """The other way out, for transforms that have it."""
    always = ("vjp", "jvp", "linearize", "custom_jvp", "make_jaxpr", "jit_partial")
    return "" if name in always else "; or use graph_updates=True"


def _holds_variables(path: Any, value: Any) -> bool:
    """Whether an object is a variable, or leads to one."""
    if isinstance(value, Variable):
        return True
    walk = Walk()
    walk.add(value)
    return any(isinstance(leaf, Variable) for leaf in walk.leaves)


def _check_no_captives(walk: Walk, entered: Entered, out: Any, name: str) -> None:
    """Refuse to carry out an object that was not made, or passed in, here. (rule U26)"""
    known = set(map(id, entered.index_ref.values()))
    here = current_trace()
    for item in walk.refs:
        if isinstance(item, Variable):
            trace = item._cell.trace
        else:
            trace = item._info.trace if isinstance(item, Pytree) else here
        if trace is not here and id(item) not in known:
            path = path_within([*entered.roots, out], item)
            raise ArgumentError(
                f"{name} was asked to carry out an object that it captured from outside",
                at=describe_place(item),
                found=f"{describe_type(item)} of {describe_trace(trace)}"
                + (f", reached as {format_path(path[1:])}" if path and len(path) > 1 else ""),
                expected="objects that were passed in as arguments, or made inside",
                do=f"make the model an argument of the function: plait.{name}(f)(model, x)",
            )


def write_back(outcome: Outcome, gathered: Gathered, values: Sequence[Any], plain: Any) -> Any:
    """Apply an outcome to the caller's own objects (step 4). Returns the output."""
    walk = gathered.walk
    cells = [] if walk is None else walk.cells
    if outcome.is_plain:
        for position, value in zip(outcome.written, values, strict=True):
            cells[position].raw = value
        return plain
    inputs = [cell.raw for cell in cells]
    outer = Walk()
    for root in gathered.roots:
        outer.add(root)
    objects = {index: item for item, index in outer.refs.items()}
    assert outcome.mapping is not None
    cache = {new: objects[old] for new, old in outcome.mapping.items()}
    own = {id(leaf): position for position, leaf in enumerate(outer.leaves) if isinstance(leaf, Variable)}

    for position, value in zip(outcome.written, values, strict=False):
        cells[position].raw = value
    builder = Builder({}, cache)
    if outcome.arguments is not None:
        position = 0
        for graphdef in outcome.arguments:
            sources = outcome.argument_sources[position : position + graphdef.num_leaves]
            position += graphdef.num_leaves
            builder.build(graphdef, _leaves(graphdef, sources, values, inputs, cache, own))
    else:
        builder.index_ref.update(cache)
    if outcome.output is None:
        return plain
    supply = iter(plain)
    leaves = []
    position = 0
    for graphdef in outcome.output.graphdefs:
        if graphdef is None:
            leaves.append(next(supply))
            continue
        sources = outcome.output_sources[position : position + graphdef.num_leaves]
        position += graphdef.num_leaves
        leaves.append(builder.build(graphdef, _leaves(graphdef, sources, values, inputs, cache, own)))
    return jax.tree_util.tree_unflatten(outcome.output.treedef, leaves)


def _leaves(
    graphdef: GraphDef,
    sources: Sequence[int],
    values: Sequence[Any],
    inputs: Sequence[Any],
    cache: dict[int, Any],
    own: dict[int, int],
) -> list[Any]:
    """The leaves for a graphdef; a variable that still holds its own input value is left untouched."""
    leaves = []
    supply = iter(sources)
    for part in iter_parts(graphdef):
        if not isinstance(part, (VariableDef, LeafDef)):
            continue
        source = next(supply)
        if source >= 0:
            leaves.append(values[source])
            continue
        cached = cache.get(part.index) if part.index is not None else None
        if cached is not None and own.get(id(cached)) == -1 - source:
            leaves.append(UNTOUCHED)
        else:
            leaves.append(inputs[-1 - source])
    return leaves


class Result:
    """What a lifted function returns to JAX: values and plain output as children, the outcome as static part."""

    __slots__ = ("outcome", "plain", "values")

    def __init__(self, values: Any, plain: Any, outcome: Outcome) -> None:
        self.values = values
        self.plain = plain
        self.outcome = outcome


jax.tree_util.register_pytree_node(
    Result,
    lambda result: ((result.values, result.plain), result.outcome),
    lambda outcome, children: Result(*children, outcome),
)


def run_inside(
    f: Callable[..., Any],
    structure: Structure,
    values: Sequence[Any],
    plain: Sequence[Any],
    name: str,
    *,
    returned: frozenset[int] = frozenset(),
    updates: bool = True,
) -> Result:
    """Steps 2 and 3 around one call of ``f(*args, **kwargs)``, whose arguments ``structure`` describes."""
    entered = Entered(structure, values, plain)
    out = call_inside(f, entered)
    left = (leave if updates else leave_values_only)(entered, out, name, returned)
    return Result(left.values, left.plain, left.outcome)


def call_inside(f: Callable[..., Any], entered: Entered) -> Any:
    """Call the user's function with the private objects."""
    args, kwargs = entered.tree
    with watch_captured_containers(f):
        return f(*map(reveal, args), **{key: reveal(value) for key, value in kwargs.items()})


def reveal(argument: Any) -> Any:
    """A static argument travels wrapped, as part of the structure."""
    return argument.value if type(argument) is Static else argument


def curried(transform: F) -> F:
    """A transform that is a decorator too: ``transform(f, **options)``, ``@transform``, ``@transform(**options)``."""

    @functools.wraps(transform)
    def wrapper(f: Any = None, /, *args: Any, **options: Any) -> Any:
        return functools.partial(wrapper, **options) if f is None else transform(f, *args, **options)

    return wrapper  # type: ignore[return-value]


def check_function(f: Any, name: str) -> None:
    """Refuse what a transform cannot lift.

    Raises:
        ArgumentTypeError: ``f`` is not callable.
        ArgumentError: ``f`` is a bound method of a module, whose module would be a hidden constant.
    """
    if not callable(f):
        raise ArgumentTypeError(
            f"{name} takes a function",
            found=describe_type(f),
            expected="a callable",
            do=f"pass the function itself, without calling it: {_call(name, 'f', 'x')}",
        )
    if isinstance(f, MethodType) and is_graph_leaf(f.__self__):
        cls, method = type(f.__self__).__name__, f.__name__
        module = cls.lower()
        if name == "lax_map":
            do = f"pass the module, too: plait.lax_map(lambda x, {module}: {module}.{method}(x), xs, {module})"
        elif name in _FUNCTION_AMONG_OTHERS:
            do = f"pass a function that takes the module: lambda {module}, x: {module}.{method}(x)"
        elif name in _FUNCTION_FIRST:
            do = f"pass the module as an argument: {_call(name, f'{cls}.{method}', f'{module}, x')}"
        else:
            call = _call(name, f"{cls}.{method}", f"{module}, x")
            do = f"decorate the method in the class (@plait.{name}), or call {call}"
        raise ArgumentError(
            f"{name} was given a bound method of a module",
            at=describe_place(f.__self__),
            found=f"the method {method!r} bound to a {cls}",
            expected="a function that takes the module as an argument",
            do=do,
        )


# Functions that take the function with its arguments, and those that take it in the midst of other things.
_FUNCTION_FIRST = ("eval_shape", "vjp", "linearize", "jvp", "jit_partial")
_FUNCTION_AMONG_OTHERS = (
    *("cond", "switch", "while_loop", "fori_loop", "lax_map", "shard_map"),
    *("custom_vjp.defvjp", "custom_jvp.defjvp"),
)


def _call(name: str, f: str, arguments: str) -> str:
    """How a program calls a transform with a function, and the result with arguments."""
    if name == "jvp":
        tangents = ", ".join(f"{each}_tangent" for each in arguments.split(", "))
        return f"plait.jvp({f}, primals=({arguments},), tangents=({tangents},))"
    if name == "transform_metadata":
        return f"plait.transform_metadata({f}, partition='layers')"
    if name == "jit_partial":
        return f"plait.jit_partial({f}, {arguments.replace(', ', ')(', 1)})"
    if name in _FUNCTION_FIRST:
        return f"plait.{name}({f}, {arguments})"
    return f if name in _FUNCTION_AMONG_OTHERS else f"plait.{name}({f})({arguments})"


class Lifted:
    """``f`` as a pure function of (values, plain leaves), for arguments of one structure; made by ``lift``.

    It refers to ``f`` weakly where it is kept for ``f``, or it would keep ``f`` alive.
    """

    def __init__(self, f: Callable[[], Any], *options: Any) -> None:
        self.f = f
        self.options = options

    def __call__(self, values: Sequence[Any], plain: Sequence[Any]) -> Result:
        structure, name, updates, all_returned = self.options
        returned = frozenset(range(len(values))) if all_returned else frozenset[int]()
        return run_inside(self.f(), structure, values, plain, name, returned=returned, updates=updates)


# Who fills it: ``lift``. What empties it: the death of the function. What it holds: structures, which hold no object.
_lifted: weakref.WeakKeyDictionary[Any, dict[Any, Lifted]] = weakref.WeakKeyDictionary()


def lift(
    f: Callable[..., Any], structure: Structure, name: str, *, updates: bool = True, all_returned: bool = False
) -> Lifted:
    """``f`` as a pure function for arguments of one structure.

    While something is traced, the same function for the same structure is the same object again, so that JAX traces it
    once however often it is called, as it does with plain functions: all blocks of a transformer are one trace. Not so
    for a function that captures modules, whose values may have changed since; and not outside of traces, where what a
    function reads from elsewhere can change between two calls.

    Args:
        all_returned: whether every input value is returned, written or not, so that all branches return the same.
    """
    options = (structure, name, updates, all_returned)
    if trace_state.value is not top_level_trace and type(f) is FunctionType and not captures_objects(f):
        try:
            return _lifted.setdefault(f, {}).setdefault(options, Lifted(weakref.ref(f), *options))
        except StaticValueError:
            pass
    return Lifted(lambda: f, *options)
