"""Every error of core and transforms: what raises it, what it says, and that its advice runs."""

import importlib
import pkgutil

import pytest

from tests.conformance import errors
from tests.conformance.errors.rows import SOURCE, advice, caught, code_in, compiles, follow, raised_at, sites
from tests.conformance.errors.unreachable import UNREACHABLE

ROWS = {
    f"{module.name}: {name}": row
    for module in pkgutil.iter_modules(errors.__path__)
    for name, row in getattr(importlib.import_module(f"{errors.__name__}.{module.name}"), "ROWS", {}).items()
}
reached: set[tuple[str, int]] = set()


@pytest.fixture(autouse=True)
def _as_in_a_users_program(users_promotion):
    """JAX's own defaults."""


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_explained_and_its_cure_runs(name):
    row = ROWS[name]
    error, _ = caught(row)
    reached.update(raised_at(error))
    assert type(error) is row.error, error
    assert_says(str(error), (row.says,) if isinstance(row.says, str) else row.says)
    pieces = [*code_in(advice(error))]
    assert [piece for piece in pieces if not compiles(piece)] == []
    assert row.fix in advice(error)
    assert row.fix or not pieces, f"the cure does not take from the advice: {pieces}"
    follow(row)


def assert_says(message, patterns):
    for pattern in patterns:
        assert __import__("re").search(pattern, message), f"{pattern!r} is not in:\n{message}"


def test_every_error_has_a_row():
    if len(reached) == 0 or not all_ran():
        pytest.skip("needs all rows in one process")
