"""Compiled functions: a function of objects, lowered for one structure of its arguments.

A compiled function takes raw values and plain leaves, and returns what it wrote. What a trace wrote is known only to
that trace, and another trace (other shapes) may write other variables: the first outcome of a compiled function returns
its values as a plain list; a later, different one returns a dict whose only key is the number of its outcome.

Donation: JAX must be told before compiling which buffers it may take over, and only variables that are written may be
given away, or a variable that is only read would be left without a buffer. So a donating function is traced once more,
beforehand, to find out what it writes; those values are then always returned, whatever a later trace does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.filters import Predicate
from ..core.variables import make_variable
from ..errors import ArgumentError
from ..paths import describe_path
from .crossing import Gathered, Outcome, Structure, run_inside


@dataclasses.dataclass(frozen=True)
class TraceSignature:
    """What a trace depended on: the structure of the arguments, and shape and dtype of each array in them."""

    structure: Structure
    values: tuple[str, ...]
    plain: tuple[str, ...]


# Called at each trace with the function, the signature of the trace, and those of its earlier traces.
trace_listeners: list[Callable[[Callable[..., Any], TraceSignature, list[TraceSignature]], Any]] = []


def _short_aval(value: Any) -> str:
    return ", ".join(jax.typeof(leaf).str_short(short_dtypes=False) for leaf in jax.tree.leaves(value))


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


class Compiled:
    """A function of objects, for one structure of arguments.

    Attributes:
        run: the compiled function, of the raw values and the plain leaves.
        jitted: the same for JAX's own stages, which takes what ``arguments`` makes of values and plain leaves.
        outcomes: what its traces did, in the order of the first trace of each kind.
        donated: positions of the values whose buffers it takes over; ``None`` where nothing is donated.
    """

    __slots__ = ("_plain_flags", "arguments", "donated", "jitted", "kept", "outcomes", "run")

    def __init__(
        self,
        f: Callable[..., Any],
        gathered: Gathered,
        options: dict[str, Any],
        history: list[TraceSignature],
        donation: Donation | None,
        updates: bool,
    ) -> None:
        self.outcomes: list[Outcome] = []
        outcomes = self.outcomes
        structure = gathered.structure
        self.donated: tuple[int, ...] | None = None
        self.kept: tuple[int, ...] = ()
        returned: frozenset[int] = frozenset()
        if donation is not None:
            written = _written_positions(f, gathered, updates)
            self.donated = tuple(p for p in written if _may_donate(gathered, p, donation))
            self.kept = tuple(p for p in range(len(gathered.values())) if p not in self.donated)
            self._plain_flags = _donated_plain(structure, donation)
            returned = frozenset(self.donated)

        def pure(values: Sequence[Any], plain: Sequence[Any]) -> Any:
            signature = TraceSignature(structure, tuple(map(_short_aval, values)), tuple(map(_short_aval, plain)))
            for listener in list(trace_listeners):
                listener(f, signature, history)
            result = run_inside(f, structure, values, plain, "jit", returned=returned, updates=updates)
            history.append(signature)
            outcome = result.outcome
            if outcome not in outcomes:
                outcomes.append(outcome)
            number = outcomes.index(outcome)
            if number == 0 and outcome.is_plain:
                return result.plain, result.values
            return result.plain, {number: result.values}

        pure.__name__ = pure.__qualname__ = getattr(f, "__name__", type(f).__name__)
        if self.donated is None:
            self.jitted: Any = jax.jit(pure, **options)
            self.run = self.jitted
            self.arguments = lambda values, plain: (values, plain)
        else:
            self._compile_donating(pure, options)

    def _compile_donating(self, pure: Callable[..., Any], options: dict[str, Any]) -> None:
        donated, kept, flags = self.donated, self.kept, self._plain_flags
        assert donated is not None

        def rejoined(given: list[Any], values: list[Any], given_plain: list[Any], plain: list[Any]) -> Any:
            whole: list[Any] = [None] * (len(given) + len(values))
            for position, value in zip((*donated, *kept), (*given, *values), strict=True):
                whole[position] = value
            first, second = iter(given_plain), iter(plain)
            return pure(whole, [next(first) if flag else next(second) for flag in flags])

        rejoined.__name__ = rejoined.__qualname__ = pure.__name__
        self.jitted = jax.jit(rejoined, donate_argnums=(0, 2), **options)

        def arguments(values: list[Any], plain: list[Any]) -> tuple[list[Any], ...]:
            given = [values[i] for i in donated]
            check_separate_buffers(given, values)
            return (
                given,
                [values[i] for i in kept],
                [value for value, flag in zip(plain, flags, strict=True) if flag],
                [value for value, flag in zip(plain, flags, strict=True) if not flag],
            )

        jitted = self.jitted
        self.arguments = arguments
        self.run = lambda values, plain: jitted(*arguments(values, plain))

    def outcome_of(self, returned: Any) -> tuple[Outcome, list[Any]]:
        """Which outcome the second part of a result belongs to, and its values."""
        if type(returned) is list:
            return self.outcomes[0], returned
        ((number, values),) = returned.items()
        return self.outcomes[number], values


class SharedBufferError(ArgumentError):
    """One buffer was to be donated and used a second time; carries the positions until the paths are known."""


def check_separate_buffers(given: list[Any], values: list[Any]) -> None:
    """Refuse to donate a buffer that another variable holds too. Runs before the call, so nothing is lost."""
    leaves = values
    if len(set(map(id, leaves))) != len(leaves):
        held: dict[int, int] = {}
        ids = set(map(id, given))
        for position, value in enumerate(values):
            first = held.setdefault(id(value), position)
            if first != position and id(value) in ids:
                error = SharedBufferError("two variables hold one buffer, which cannot be donated")
                error.positions = (first, position)  # type: ignore[attr-defined]
                raise error


def name_shared_buffer(error: SharedBufferError, gathered: Gathered) -> ArgumentError:
    """The error with the paths of both variables."""
    assert gathered.walk is not None
    paths = gathered.walk.paths()
    first, second = error.positions  # type: ignore[attr-defined]
    return ArgumentError(
        error.message,
        at=f"{describe_path(paths[first])} and {describe_path(paths[second])}",
        found="the same array in both",
        expected="a buffer of its own for each donated variable",
        do="copy one of them first: variable.value = jnp.copy(variable.value)",
    )


def _written_positions(f: Callable[..., Any], gathered: Gathered, updates: bool) -> tuple[int, ...]:
    """The variables that a trace for these arguments writes; none when it changes structure."""
    found: list[Outcome] = []

    def probe(values: Any, plain: Any) -> None:
        found.append(run_inside(f, gathered.structure, values, plain, "jit", updates=updates).outcome)

    jax.eval_shape(probe, gathered.values(), gathered.plain)
    (outcome,) = found
    if outcome.arguments is not None:
        return ()
    return tuple(position for position in outcome.written if -1 - position not in outcome.output_sources)


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


def _argument_paths(structure: Structure) -> list[Any]:
    markers = [object() for _ in structure.graphdefs]
    tree = jax.tree_util.tree_unflatten(structure.treedef, markers)
    return [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]


def _root_paths(structure: Structure) -> list[Any]:
    return [
        path
        for path, graphdef in zip(_argument_paths(structure), structure.graphdefs, strict=True)
        if graphdef is not None
    ]


def _donated_plain(structure: Structure, donation: Donation) -> tuple[bool, ...]:
    return tuple(
        donation.donates_argument(path)
        for path, graphdef in zip(_argument_paths(structure), structure.graphdefs, strict=True)
        if graphdef is None
    )
