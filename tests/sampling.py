"""Which rows of a table ``make test`` runs; ``make slow`` and the nox session ``long`` run the others."""

import collections
import zlib
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


THIRD = 3
MANY = 6


def leave_two_thirds_to_long(items: Iterable[pytest.Item]) -> None:
    """Of a test marked ``sampled``, ``make test`` runs a third of its cases, by name; the session ``long`` the rest."""
    for item in items:
        if item.get_closest_marker("sampled") and zlib.crc32(item.nodeid.encode()) % THIRD:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.long)


def leave_most_to_long(items: Iterable[pytest.Item]) -> None:
    """Of a slow test with many cases, ``make slow`` runs the first and a sixth of the others, ``long`` the rest.

    Which ones depends on their names alone: every sixth one of a table with three columns could be those of one row.
    """
    cases = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for same in cases.values():
        for item in same[1:] if len(same) >= MANY else ():
            if zlib.crc32(item.nodeid.encode()) % MANY:
                item.add_marker(pytest.mark.long)
