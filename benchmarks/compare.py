"""``plait.compare`` on faults planted by machine, and on pairs without a fault.

The faults, the architectures and their implementations in other libraries are those of ``tests/inspect/compare``. A
fault that changes the result of the model by less than 1e-4 of the largest value is not counted.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator

from .table import Table


def run(*, quick: bool = False) -> Iterator[Table]:
    from tests.inspect.compare.architectures import NAMES
    from tests.inspect.compare.pairs import LIBRARIES, clean, planted

    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    wrong = []
    for case in planted()[:: 40 if quick else 1]:
        rows = counts[case.fault.architecture], counts[f"beside {case.library}"], counts["all"]
        found, swapped = case.compare()
        shows, is_right = case.shows(found), case.is_right(found, swapped)
        for row in rows:
            row["planted"] += 1
            row["too small"] += not shows
        if not shows:
            continue
        if not is_right:
            wrong.append(f"{case}: {found.departure.path if found.departure else 'nothing'}")
        for row in rows:
            row["counted"] += 1
            row["right"] += is_right
    order = [*NAMES, *(f"beside {library}" for library in LIBRARIES), "all"]
    rows = [
        (
            name, counts[name]["planted"], counts[name]["too small"], counts[name]["counted"],
            _share(counts[name]["right"], counts[name]["counted"]),
        )
        for name in order
        if counts[name]
    ]  # fmt: skip
    yield Table(
        "compare: faults planted", ["where", "planted", "too small", "counted", "right path"],
        [[str(cell) for cell in row] for row in rows], wrong,
    )  # fmt: skip
    pairs = clean()[:: 12 if quick else 1]
    alarms = [str(case) for case in pairs if not case.compare().agrees]
    yield Table(
        "compare: pairs without a fault", ["pairs", "false alarms"], [[str(len(pairs)), str(len(alarms))]],
        alarms,
    )  # fmt: skip


def _share(right: int, of: int) -> str:
    return f"{right} of {of} ({right / of:.1%})" if of else "none"
