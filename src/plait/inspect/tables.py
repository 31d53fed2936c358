"""Tables in a terminal: formatted numbers, and equal rows folded into one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

WIDTH = 160  # characters, if there is no terminal


def rendered(shown: Any, **options: Any) -> str:
    """A table as text, without trailing blanks."""
    import io

    from rich.console import Console

    console = Console(**{"file": io.StringIO(), "width": WIDTH, "force_terminal": False, "no_color": True, **options})
    with console.capture() as captured:
        console.print(shown)
    return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").splitlines())


def in_words(value: float) -> str:
    """``1.5 M``: three digits and a prefix."""
    for prefix in ("", "K", "M", "G", "T", "P"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}".rstrip()
        value /= 1000
    return f"{value:.3g} E"


class Row(NamedTuple):
    """One line of a table.

    Attributes:
        path: the path, as printed.
        kind: the name of a class, with remarks.
        texts: other texts, which must be equal in rows that are folded.
        numbers: the numbers, which are summed when rows are folded.
    """

    path: str
    kind: str
    texts: tuple[Any, ...]
    numbers: tuple[float, ...]


def folded(rows: Sequence[Row]) -> list[Row]:
    """The rows with equal neighbours folded into one: ``blocks[0…23]``, ``24 × Block``, with their numbers summed.

    The elements of a list are equal if all rows below them are, except for the numbers.
    """
    result: list[Row] = []
    start = 0
    while start < len(rows):
        found = _run_from(rows, start)
        if found is None:
            result.append(rows[start])
            start += 1
            continue
        prefix, first, count, length = found
        own, label = f"{prefix}[{first}]", f"{prefix}[{first}…{first + count - 1}]"
        sums = []
        for number, row in enumerate(rows[start : start + length]):
            copies = [rows[start + copy * length + number].numbers for copy in range(count)]
            numbers = tuple(map(sum, zip(*copies, strict=True)))
            sums.append(row._replace(path=label + row.path.removeprefix(own), numbers=numbers))
        result.append(sums[0]._replace(kind=f"{count} × {sums[0].kind}"))
        result += folded(sums[1:])
        start += count * length
    return result


def _run_from(rows: Sequence[Row], start: int) -> tuple[str, int, int, int] | None:
    """Equal elements of a list that begin here: its path, the first index, their number, and the rows of each."""
    found = re.fullmatch(r"(.*)\[(\d+)\]", rows[start].path)
    if found is None:
        return None
    prefix, first = found[1], int(found[2])
    block = _element(rows, start, prefix, first)
    count = 1
    while _element(rows, start + count * len(block), prefix, first + count) == block:
        count += 1
    return (prefix, first, count, len(block)) if count > 1 else None


def _element(rows: Sequence[Row], start: int, prefix: str, number: int) -> list[tuple[Any, ...]]:
    """What must be equal in the rows of one element."""
    own, found = f"{prefix}[{number}]", []
    for row in itertools.islice(rows, start, None):
        if row.path != own and not row.path.startswith((f"{own}.", f"{own}[")):
            break
        found.append((row.path.removeprefix(own), row.kind, row.texts))
    return found
