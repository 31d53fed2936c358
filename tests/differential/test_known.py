"""The table of known differences: each row is shown in the documentation, and holds for its own example."""

import builtins
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

import plait
from tests.differential.comparison import compare
from tests.differential.interpreter import run
from tests.differential.known import KNOWN, explaining
from tests.differential.test_programs import flax_nnx
from tests.sampling import slow_but

PAGE = Path(__file__).parents[2] / "docs" / "flax-differences.md"
ROWS = {row.id: row for row in KNOWN}


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize(
    "name", slow_but(lambda name: name not in ("statistics of sharded inputs", "cells in bfloat16"), ROWS)
)
def test_a_known_difference_is_still_one(name):
    row = ROWS[name]
    for example in (row.example, *row.more):
        differences = compare(example, run(example, flax_nnx()), run(example, plait))
        if row.example_until and Version(version("flax")) >= Version(row.example_until):
            assert not differences
            continue
        assert differences, f"both do the same by now: the row can go, or this program\n{example.body()}"
        assert explaining(differences, example) == name, "\n".join(map(str, differences))


@pytest.mark.parametrize("name", ROWS)
def test_the_documentation_shows_it(name):
    assert ROWS[name].line in PAGE.read_text().splitlines()


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_why_and_how_a_user_learns_of_it(name):
    assert ROWS[name].reason
    says = ROWS[name].says.partition(",")[0]
    assert says == "documented" or hasattr(plait.errors, says) or hasattr(builtins, says)


LOUD = PAGE.read_text().partition("### Raises")[2].partition("\n## ")[0].splitlines()


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.line in LOUD])
def test_a_row_that_says_itself_names_the_class(name):
    outcome = run(ROWS[name].example, plait)
    found = {*outcome.warned, *([outcome.failure.name] if outcome.failure else [])}
    assert ROWS[name].says.partition(",")[0] in (found or {"documented"})


def test_names_of_rows_differ():
    assert len(ROWS) == len(KNOWN)
