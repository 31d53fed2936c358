"""Where two outcomes of one program part: the first step that differs, path by path."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.differential.interpreter import Outcome
from tests.differential.observation import ArraySeen, Failure, Seen
from tests.differential.program import Program

# Two ways to sum the same numbers.
RTOL, ATOL = 1e-5, 1e-6


@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing in which the libraries differ.

    Attributes:
        step: the text of the step after which it was seen.
        kind: "error" (one fails, or both by other classes), "there" (a path that only one has), "text" (types, static
            values, metadata), "dtype", "shape", "weak", "sharding", "value", "bits" (values that are close), "traces".
        path: the name shown and the path below it.
        flax: what is there with Flax.
        plait: what is there with plait.
        warned: the classes of plait's warnings.
    """

    step: str
    kind: str
    path: str
    flax: str
    plait: str
    warned: frozenset[str]

    def __str__(self) -> str:
        return f"[{self.kind}] {self.path}\n  flax:  {self.flax}\n  plait: {self.plait}"


def compare(program: Program, flax: Outcome, plait: Outcome) -> list[Difference]:
    """The differences of the first step that has some; those after it may follow from them.

    A function that plait traces less often than Flax is no difference.
    """
    steps = [step.text for step in program.steps]
    for number, step in enumerate(steps):
        found = list(_compare_step(number, flax, plait))
        if found:
            return [
                Difference(step, kind, path, str(one), str(other), plait.warned) for kind, path, one, other in found
            ]
        if number >= len(flax.shown):
            return []
    if any(count > flax.traces.get(name, 0) for name, count in plait.traces.items()):
        return [Difference(steps[-1], "traces", "traces", str(flax.traces), str(plait.traces), plait.warned)]
    return []


def _compare_step(number: int, flax: Outcome, plait: Outcome) -> Iterator[tuple[str, str, Any, Any]]:
    ends = number >= len(flax.shown), number >= len(plait.shown)
    if any(ends):
        if not all(ends) or not _same_class(flax.failure, plait.failure):
            yield "error", "", flax.failure if ends[0] else "no error", plait.failure if ends[1] else "no error"
        return
    for name, seen in flax.shown[number].items():
        yield from _compare_seen(name, seen, plait.shown[number][name])


def _same_class(flax: Failure | None, plait: Failure | None) -> bool:
    """Whoever catches Flax's error catches plait's: by its builtin class, and by its own name where both have one."""
    assert flax is not None
    assert plait is not None
    return flax.builtin in plait.names and (flax.name not in SHARED_ERRORS or flax.name in plait.names)


# Classes of flax.errors that plait.errors has too.
SHARED_ERRORS = ("TraceContextError", "ScopeParamShapeError", "AxisNameMismatchError", "PartitioningUnspecifiedError")


def _compare_seen(name: str, flax: Seen, plait: Seen) -> Iterator[tuple[str, str, Any, Any]]:
    for path in [*flax, *(path for path in plait if path not in flax)]:
        one, other = flax.get(path, "nothing"), plait.get(path, "nothing")
        if one == other:
            continue
        yield _kind(one, other, path in flax and path in plait), f"{name}{path}", one, other


def _kind(one: Any, other: Any, both: bool) -> str:
    if not both:
        return "there"
    if not isinstance(one, ArraySeen) or not isinstance(other, ArraySeen) or one.kind != other.kind:
        return "text"
    for kind in ("dtype", "shape", "weak", "sharding"):
        if getattr(one, kind) != getattr(other, kind):
            return kind
    return "bits" if _close(one.numbers(), other.numbers()) else "value"


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind in "iub" or other.dtype.kind in "iub":
        return False
    wide = (one.astype(np.complex128), other.astype(np.complex128))
    return bool(np.allclose(*wide, rtol=RTOL, atol=ATOL, equal_nan=True))
