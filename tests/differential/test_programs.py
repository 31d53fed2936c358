"""Programs over the public surface do the same with Flax and with plait, but for the table of known differences."""

import collections
import types

import hypothesis
import pytest

import plait
from tests.differential.areas import AREAS
from tests.differential.comparison import compare
from tests.differential.interpreter import run
from tests.differential.known import explaining
from tests.sampling import slow_but

FEW, SOME = 2, 24  # of each area; the nox session `differential` runs thousands
SHARE_OF_ERRORS = 0.7  # of one area; a program that ends early shows little


@pytest.mark.oracle
@pytest.mark.parametrize("live", [False, True], ids=["detached", "live"])
@pytest.mark.parametrize("count", [FEW, pytest.param(SOME, marks=pytest.mark.slow)])
@pytest.mark.parametrize("area", slow_but(lambda area: area not in ("sharding", "layers"), AREAS))
def test_programs_do_the_same_on_both(area, count, live):
    flax = flax_nnx()
    seen: collections.Counter[str] = collections.Counter()

    @hypothesis.settings(max_examples=count, phases=[hypothesis.Phase.generate])
    @hypothesis.given(AREAS[area]())
    def check(program):
        one = run(program, flax)
        with plait.compat.live_states(live):
            other = run(program, plait)
        seen.update(programs=1, errors=one.failure is not None)
        differences = compare(program, one, other)
        if differences and explaining(differences, program, live=live) is None:
            raise AssertionError("\n".join([f"after: {differences[0].step}", *map(str, differences)]))

    check()
    assert count == FEW or seen["errors"] <= SHARE_OF_ERRORS * seen["programs"]


def flax_nnx() -> types.ModuleType:
    return pytest.importorskip("flax.nnx")
