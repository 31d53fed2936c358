"""Draws many programs of one area, runs each on both libraries, and sorts the differences by kind."""

from __future__ import annotations

import collections
import dataclasses
import gc
import re

import flax.nnx
import hypothesis

import plait
from tests.differential.areas import AREAS
from tests.differential.comparison import Difference, compare
from tests.differential.interpreter import run
from tests.differential.known import explaining
from tests.differential.program import Program


@dataclasses.dataclass
class Found:
    """Differences of one kind.

    Attributes:
        count: how many programs met it.
        known: the row of the table that explains it, if one does.
        differences: what differs in the shortest of the programs.
        program: the shortest of them.
    """

    count: int
    known: str | None
    differences: list[str]
    program: str

    def add(self, other: Found) -> None:
        """Count another one of the kind, and keep the shorter program."""
        self.count += other.count
        if len(other.program) < len(self.program):
            self.program, self.differences = other.program, other.differences


def sample(area: str, count: int, seed: int, *, live: bool = False) -> tuple[dict[str, int], dict[str, Found]]:
    """Totals by what they count, and what was found by its kind; ``live``: with plait's live states."""
    totals: collections.Counter[str] = collections.Counter()
    found: dict[str, Found] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        derandomize=False,
        phases=[hypothesis.Phase.generate],
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(AREAS[area]())
    def each(program: Program) -> None:
        one = run(program, flax.nnx)
        with plait.compat.live_states(live):
            other = run(program, plait)
        totals.update({"programs": 1, "errors": one.failure is not None, "steps": len(one.shown)})
        differences = compare(program, one, other)
        if differences:
            known = explaining(differences, program, live=live)
            totals[f"known: {known}" if known else "unexplained"] += 1
            entry = Found(1, known, [f"after: {differences[0].step}", *map(str, differences[:6])], program.body())
            kept = found.setdefault(f"{area}: {known or _kind(differences[0])}", entry)
            if kept is not entry:
                kept.add(entry)
        if totals["programs"] % 100 == 0:
            gc.collect()
            gc.freeze()  # what was compiled is not searched again and again

    each()
    return dict(totals), found


def _kind(difference: Difference) -> str:
    """What programs that meet one cause have in common: the last line of the step, or both errors, without numbers."""
    step = difference.step.splitlines()[-1]
    text = f"{difference.flax[:60]} | {difference.plait[:60]}" if difference.kind == "error" else step[:60]
    return f"{difference.kind} " + re.sub(r"\d+", "_", text)
