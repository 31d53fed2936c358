"""Compiled functions: a function of objects, lowered for one structure of its arguments.

A compiled function takes the raw values, each as an argument, then plain arguments, and returns what it wrote. What a
trace wrote is known only to that trace, and another trace (other shapes) may write other variables: the first outcome
of a compiled function, if it wrote no more than values, returns one flat list, its values and then the output, or the
bare output where it wrote nothing; any other returns an ``Other``, which has it. An output of arrays is the pytree that
it is. One of new objects, such as gradients, is a list of their values, and is built anew around those at each call;
arguments that are returned are the caller's own.

Where each object is an argument of its own (a ``Layout``), plain arguments go to JAX as the pytrees that they are. Its
cache compares their structure, in C++, and the trace sees what it is. Where a container holds objects, all leaves are
passed flat, for one structure of all arguments.

Donation: JAX must be told before compiling which buffers it may take over, and only variables that are written may be
given away, or a variable that is only read would be left without a buffer. So a donating function is traced once more,
beforehand, to find out what it writes; those values are then always returned, whatever a later trace does. It keeps
arguments that the program does not use, or the runtime could not see that one of them shares a donated buffer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..._compat import jax_settings
from ...core.objects.filters import Predicate
from ...core.objects.variables import make_variable
from ...core.tools.module_names import names_in_program
from ...errors import ArgumentError
from ..call.body import Body
from ..call.call import ALL, Strong
from ..call.enter import rebuild
from ..call.gather import Gathered, Structure
from ..call.outcome import INPUT, Address, Outcome, at
from ..call.prefixes import Prefix
from .shardings import CallShardings


@dataclasses.dataclass(frozen=True)
class TraceSignature:
    """What a trace depended on: the structure of the arguments, and shape and dtype of each array in them.

    Attributes:
        is_cleared: whether ``clear_cache()`` of the jitted function has dropped what was compiled.
    """

    structure: Structure
    values: tuple[str, ...]
    plain: tuple[str, ...]
    settings: dict[str, Any] = dataclasses.field(default_factory=jax_settings, compare=False)
    is_cleared: bool = dataclasses.field(default=False, compare=False)


# Called at each trace with the function, the signature of the trace, and those of its earlier traces.
trace_listeners: list[Callable[[Callable[..., Any], TraceSignature, list[TraceSignature]], Any]] = []


def _short_aval(value: Any) -> str:
    avals = map(jax.typeof, jax.tree.leaves(value))
    return ", ".join(aval.str_short(short_dtypes=False) + " of weak type" * aval.weak_type for aval in avals)


@dataclasses.dataclass(frozen=True)
class Donation:
    """What a caller lets a compiled function take over.

    Attributes:
        numbers, names: arguments, by position and by name.
        predicate: which written variables of all other arguments; ``None`` for none of them.
    """

    numbers: frozenset[int]
    names: frozenset[str]
    predicate: Predicate | None

    def donates_argument(self, path: Any) -> bool:
        """Whether the leaf at this JAX path of ``(args, kwargs)`` belongs to a donated argument."""
        first = path[1]
        return getattr(first, "idx", None) in self.numbers or getattr(first, "key", None) in self.names


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a call passes its objects: each one as an argument of its own.

    Attributes:
        count: number of positional arguments.
        names: of the keyword arguments, sorted.
        objects: which arguments are objects; keyword arguments count on after the positional ones.
    """

    count: int
    names: tuple[str, ...]
    objects: tuple[int, ...]

    def split(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments that are no objects."""
        return (
            [value for i, value in enumerate(args) if i not in self.objects],
            {name: kwargs[name] for i, name in enumerate(self.names, self.count) if i not in self.objects},
        )

    def join(self, objects: Sequence[Any], plain: Sequence[Any], named: dict[str, Any]) -> Any:
        """The inverse of ``split``: args and kwargs."""
        supply, rest = iter(objects), iter(plain)
        args = tuple(next(supply) if i in self.objects else next(rest) for i in range(self.count))
        kwargs = {
            name: next(supply) if i in self.objects else named[name] for i, name in enumerate(self.names, self.count)
        }
        return args, kwargs


class _Hole:
    """Stands where an object stood."""

    def __init__(self, graphdef: Any) -> None:
        self.graphdef = graphdef


def _traced_structure(
    layout: Layout, graphdefs: Sequence[Any], plain: Sequence[Any], named: dict[str, Any]
) -> tuple[Structure, list[Any]]:
    """The structure of a call of which so far only JAX has seen the plain arguments, and their leaves."""
    tree = layout.join([_Hole(graphdef) for graphdef in graphdefs], plain, named)
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    found = tuple(leaf.graphdef if type(leaf) is _Hole else None for leaf in leaves)
    return Structure(treedef, found), [leaf for leaf in leaves if type(leaf) is not _Hole]


class Compiled:
    """A function of objects, for one structure of the objects among its arguments.

    Attributes:
        f: the function of objects.
        jitted: JAX's function of what ``arguments`` gives.
        layout: how calls pass their objects; ``None`` where they are inside containers, so that plain leaves are
            passed flat, for one structure of all arguments.
        first: what its first trace did; ``None`` before it.
        returned: the arguments that are returned: index in the output → number of the object.
        is_quick: whether its first trace did no more than write values, and return what ``built`` can make.
        shardings: of the arguments, where something was said about them.
        donated: positions of the values whose buffers it takes over; ``None`` where nothing is donated.
    """

    __slots__ = (
        "count", "donated", "donation", "f", "first", "history", "is_quick", "jitted", "layout", "options", "returned",
        "shardings", "structure", "updates",
    )  # fmt: skip

    def __init__(
        self,
        f: Callable[..., Any],
        gathered: Gathered,
        options: dict[str, Any],
        history: list[TraceSignature],
        donation: Donation | None,
        updates: bool,
        layout: Layout | None,
        shardings: CallShardings | None = None,
    ) -> None:
        self.f = f
        self.first: Outcome | None = None
        self.is_quick = False
        self.returned: dict[int, int] = {}
        self.layout = layout
        self.shardings = shardings
        self.donated: tuple[int, ...] | None = None
        self.donation, self.options, self.history, self.updates = donation, options, history, updates
        self.structure, self.count = gathered.structure, len(gathered.values())
        self.jitted: Any = self.make(gathered)

    def make(self, gathered: Gathered) -> Any:
        """What is called with the values, for a first call with these arguments."""
        if self.donation is not None:
            self.donated = self.find_donated(gathered)
        return self.make_jitted()

    def find_donated(self, gathered: Gathered) -> tuple[int, ...]:
        """The positions of the values that may be given away. The function is traced for it."""
        assert self.donation is not None
        written = _written_positions(self.f, gathered, self.updates)
        return tuple(position for position in written if _may_donate(gathered, position, self.donation))

    def make_jitted(self) -> Any:
        """JAX's function of what ``arguments`` gives."""
        f, history, updates, shardings, layout = self.f, self.history, self.updates, self.shardings, self.layout
        structure, count, options = self.structure, self.count, self.options
        graphdefs = [graphdef for graphdef in structure.graphdefs if graphdef is not None]
        returned = frozenset(self.donated or ())
        if self.donation is not None:
            options = {
                **options,
                "keep_unused": True,
                **_donated_arguments(self.donation, self.donated or (), count, structure, layout),
            }
        if shardings is not None:
            plain_shardings = shardings.plain
            if layout is not None:
                plain_shardings = [s for i, s in enumerate(shardings.arguments) if i not in layout.objects]
            options = {**options, "in_shardings": (*shardings.values, *plain_shardings)}

        # JAX takes a keyword argument for the parameter of that name, so no user's argument may have these names.
        def pure(*_plait_given: Any, **_plait_named: Any) -> Any:
            values, plain = _plait_given[:count], _plait_given[count:]
            whole, leaves = structure, plain
            if layout is not None:
                whole, leaves = _traced_structure(layout, graphdefs, plain, _plait_named)
            signature = TraceSignature(whole, tuple(map(_short_aval, values)), tuple(map(_short_aval, leaves)))
            for listener in list(trace_listeners):
                listener(f, signature, history)
            outputs, outcome = _run(f, whole, values, leaves, returned, updates, shardings)
            history.append(signature)
            return self._returned(outputs, outcome, values, outcome.returned_arguments(structure))

        pure.__name__ = pure.__qualname__ = getattr(f, "__name__", type(f).__name__)
        return jax.jit(pure, **options)

    @property
    def traceable(self) -> Any:
        """JAX's jitted function, which has its stages."""
        return self.jitted

    def clear(self) -> None:
        """Forget what was compiled."""
        self.jitted.clear_cache()

    def arguments(
        self, gathered: Gathered, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """What ``jitted`` takes for a call: by position, and by name.

        Raises:
            ArgumentError: two variables hold one buffer that would be donated. Nothing is lost.
        """
        values = gathered.values()
        if self.donated:
            check_separate_buffers(self.f, [values[i] for i in self.donated], values, gathered)
        plain, named = (gathered.plain, {}) if self.layout is None else self.layout.split(args, kwargs)
        return [*values, *plain], named

    def _returned(
        self, outputs: Sequence[list[Any]], outcome: Outcome, inputs: Sequence[Any], arguments: dict[int, int] | None
    ) -> Any:
        """What JAX gets: a flat list, where the first trace did no more than write values, and this one the same."""
        if arguments is None:
            if self.first is None:
                self.first = outcome
            return Other(outcome, outputs)
        assert outcome.output is not None
        plain = [at(outputs, where) for where in outcome.plain]
        values = [at(outputs, where) for _, where in outcome.written]
        flat = Outcome(tuple((position, Address(0, i)) for i, (position, _) in enumerate(outcome.written)))
        if not outcome.returns_objects:
            output: Any = jax.tree_util.tree_unflatten(outcome.output.treedef, plain)
        else:
            output = [
                inputs[place] if port == INPUT else outputs[port][place] for port, place in outcome.output_sources
            ]
            flat = dataclasses.replace(
                flat,
                output=outcome.output,
                output_sources=tuple(Address(1, i) for i in range(len(output))),
                plain=tuple(Address(1, len(output) + i) for i in range(len(plain))),
                moved=outcome.moved,
            )
            output += plain
        if self.first is None:
            self.first, self.returned, self.is_quick = flat, arguments, True
        if self.first == flat:
            return [*values, output] if values else output
        return Other(flat, (values, output))

    def outcome_of(self, returned: Any) -> tuple[Outcome, Any, Any]:
        """What a call returned, taken apart: its outcome, the ports, and a plain output."""
        if type(returned) is Other:
            return returned.outcome, returned.outputs, returned.plain
        assert self.first is not None
        values, output = (returned[:-1], returned[-1]) if self.first.written else ((), returned)
        return self.first, (values, output), output

    def built(self, output: Sequence[Any], objects: Sequence[Any]) -> Any:
        """The output of a quick call that returns objects; ``objects`` are those of the arguments."""
        assert self.first is not None
        assert self.first.output is not None
        count = len(self.first.output_sources)
        known = {index: objects[number] for index, number in self.returned.items()} if self.returned else None
        return rebuild(self.first.output, output[:count], output[count:], known)


class Other:
    """What a compiled function returns for other outcomes than a plain first one."""

    __slots__ = ("outcome", "outputs")

    def __init__(self, outcome: Outcome, outputs: Any) -> None:
        self.outcome = outcome
        self.outputs = outputs

    @property
    def plain(self) -> Any:
        """The output, where it is plain."""
        return self.outputs[1] if self.outcome.output is None else None


jax.tree_util.register_pytree_node(
    Other,
    lambda other: ((other.outputs,), other.outcome),
    lambda outcome, children: Other(outcome, *children),
)


def _run(
    f: Callable[..., Any],
    structure: Structure,
    values: Sequence[Any],
    plain: Sequence[Any],
    donated: frozenset[int],
    updates: bool,
    shardings: CallShardings | None = None,
) -> tuple[Sequence[list[Any]], Outcome]:
    """Run the function inside: one port for all, or one for each sharding."""
    options = {"structural": updates, "donated": donated, "returns_inputs": True}
    if shardings is not None:
        with names_in_program():
            return shardings.run_inside(f, structure, values, plain, options)
    outs = Prefix("jit", "the output", jax.tree_util.tree_structure(0), (ALL,))
    ports = (0,) * len(values), (0,) * len(plain)
    body = Body("jit", Strong(f), structure, (ALL,), *ports, (ALL,) * len(structure.roots), outs, **options)
    with names_in_program():
        return body(([*values, *plain],))


def check_separate_buffers(f: Any, given: list[Any], values: list[Any], gathered: Gathered) -> None:
    """Refuse to donate a buffer that another variable holds too.

    Raises:
        ArgumentError: names both paths.
    """
    if len(set(map(id, values))) == len(values):
        return
    held: dict[int, int] = {}
    ids = set(map(id, given))
    for position, value in enumerate(values):
        first = held.setdefault(id(value), position)
        if first != position and id(value) in ids:
            labels = gathered.structure.value_labels(gathered.structure.labels(f)[0])
            raise ArgumentError(
                "two variables hold one buffer, which cannot be donated",
                at=f"{labels[first]} and {labels[position]}",
                found="the same array in both",
                expected="a buffer of its own for each donated variable",
                do="copy one of them first: variable.value = jnp.copy(variable.value), or model = plait.clone(model, "
                "arrays=True) for all of a model",
            )


def _written_positions(f: Callable[..., Any], gathered: Gathered, updates: bool) -> tuple[int, ...]:
    """The variables that a trace for these arguments writes; none when it changes structure."""
    found: list[Outcome] = []

    def probe(values: Any, plain: Any) -> None:
        found.append(_run(f, gathered.structure, values, plain, frozenset(), updates)[1])

    jax.eval_shape(probe, gathered.values(), gathered.plain)
    (outcome,) = found
    if outcome.arguments is not None:
        return ()
    kept = {address.place for address in outcome.output_sources if address.port == INPUT}
    return tuple(position for position, _ in outcome.written if position not in kept)


def _may_donate(gathered: Gathered, position: int, donation: Donation) -> bool:
    walk = gathered.walk
    assert walk is not None
    if donation.predicate is not None:
        cls, cell = walk.types[position], walk.cells[position]
        if cls is not None and donation.predicate(
            walk.paths()[position], make_variable(cls, cell.raw, cell.metadata, None)
        ):
            return True
    start = 0
    for root_path, count in zip(_root_paths(gathered.structure), walk.counts, strict=True):
        if start <= position < start + count:
            return donation.donates_argument(root_path)
        start += count
    return False


def _root_paths(structure: Structure) -> list[Any]:
    return [
        path for path, graphdef in zip(structure.places(), structure.graphdefs, strict=True) if graphdef is not None
    ]


def _donated_arguments(
    donation: Donation, donated: Sequence[int], count: int, structure: Structure, layout: Layout | None
) -> dict[str, Any]:
    """The options of ``jax.jit`` for what is donated: values by their positions, and plain arguments after those."""
    names: list[str] = []
    if layout is None:
        paths = zip(structure.places(), structure.graphdefs, strict=True)
        flags = [donation.donates_argument(path) for path, graphdef in paths if graphdef is None]
    else:
        flags = [i in donation.numbers for i in range(layout.count) if i not in layout.objects]
        slots = enumerate(layout.names, layout.count)
        names = [name for i, name in slots if name in donation.names and i not in layout.objects]
    plain = (i for i, flag in enumerate(flags, count) if flag)
    return {"donate_argnums": (*donated, *plain), "donate_argnames": names or None}
