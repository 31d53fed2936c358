"""Runs many programs on both libraries and says where they part: ``python -m tests.differential -n 20000 --seed 0``."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import conftest  # first: it sets what JAX reads once

if TYPE_CHECKING:
    from tests.differential.sampling import Found

SLICE = 500  # programs of one process: what JAX keeps of each would fill the memory otherwise
ROOT = Path(__file__).parents[2]


def main() -> int:
    """Sample all areas alike; 1 if a difference is in no row of the table."""
    from tests.differential.areas import AREAS

    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("-n", type=int, default=20_000, help="how many programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", action="append", choices=AREAS, help="only these strategies")
    parser.add_argument("--report", type=Path, help="where the differences are written, with a program for each kind")
    parser.add_argument("--live", action="store_true", help="with plait.compat.live_states")
    parser.add_argument("--slice", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.slice:
        return write_slice(args.area[0], args.n, args.seed, live=args.live)
    totals: collections.Counter[str] = collections.Counter()
    found: dict[str, Found] = {}
    start = time.perf_counter()
    areas = args.area or list(AREAS)
    for number, area in enumerate(areas):
        wanted = args.n // len(areas) + (number < args.n % len(areas))
        for part in range(0, wanted, SLICE):
            seed = args.seed * 1_000_000 + part
            counts, others = run_slice(area, min(SLICE, wanted - part), seed, live=args.live)
            totals.update(counts)
            totals.update({f"{area}, programs": counts["programs"], f"{area}, errors": counts["errors"]})
            for key, entry in others.items():
                kept = found.setdefault(key, entry)
                if kept is not entry:
                    kept.add(entry)
            if args.report:
                write_report(args.report, totals, found, time.perf_counter() - start)
    print(summary(totals, found, time.perf_counter() - start))
    return int(any(entry.known is None for entry in found.values()))


def run_slice(area: str, count: int, seed: int, *, live: bool) -> tuple[dict[str, int], dict[str, Found]]:
    """``sample`` in a process of its own."""
    from tests.differential.sampling import Found

    command = [sys.executable, "-m", "tests.differential", "--slice", "-n", str(count)]
    command += ["--seed", str(seed), "--area", area, *["--live"] * live]
    done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True, text=True)
    totals, found = json.loads(done.stdout.splitlines()[-1])
    return totals, {key: Found(**entry) for key, entry in found.items()}


def write_slice(area: str, count: int, seed: int, *, live: bool) -> int:
    from tests.differential.sampling import sample

    totals, found = sample(area, count, seed, live=live)
    print(json.dumps([totals, {key: dataclasses.asdict(entry) for key, entry in found.items()}]))
    return 0


def summary(totals: dict[str, int], found: dict[str, Found], seconds: float) -> str:
    unknown = [entry for entry in found.values() if entry.known is None]
    share = totals["errors"] / totals["programs"]
    return "\n".join(
        [
            f"{totals['programs']} programs in {seconds:.0f} seconds; {share:.1%} of them end with an error in Flax",
            *[f"  {name}: {count}" for name, count in sorted(totals.items())],
            f"{sum(entry.count for entry in unknown)} unexplained differences of {len(unknown)} kinds",
        ]
    )


def write_report(path: Path, totals: dict[str, int], found: dict[str, Found], seconds: float) -> None:
    """The summary, then each kind of difference with its shortest program, unexplained ones first."""
    parts: list[Any] = [summary(totals, found, seconds)]
    for key, entry in sorted(found.items(), key=lambda item: (item[1].known or "", -item[1].count)):
        parts += ["", "=" * 100, f"{entry.count} x {key}", "", *entry.differences, "---", entry.program]
    path.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        conftest.pytest_unconfigure()
