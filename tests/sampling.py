"""Which rows of a table ``make test`` runs: those that are chosen. ``make slow`` runs the others."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_but(quick: Collection[Any] | Callable[..., bool], rows: Iterable[Any]) -> list[Any]:
    """The rows for ``parametrize``. All but ``quick`` are marked ``slow``; a tuple is a row of several arguments."""
    rows = list(rows)
    chosen = [row for row in rows if (quick(row) if callable(quick) else row in quick)]
    assert chosen, "no row would be left to `make test`"
    return [row if row in chosen else pytest.param(*of_one(row), marks=pytest.mark.slow) for row in rows]


def of_one(row: Any) -> tuple[Any, ...]:
    return row if isinstance(row, tuple) else (row,)
