"""``python -m tools.mutants AREA [-n 60] [--seed 0]`` prints the kill rate, and the survivors as diffs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .areas import AREAS
from .hunt import hunt


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("area", choices=AREAS, metavar="AREA", help=f"which part: {', '.join(AREAS)}")
    parser.add_argument("-n", type=int, default=60, metavar="N", help="how many faults (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="which of all possible ones (default: 0)")
    parser.add_argument("--file", help="only faults in this file of the area")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    root = Path(__file__).resolve().parents[2]
    hunt(AREAS[options.area], root, options.n, options.seed, only=options.file)


if __name__ == "__main__":
    main()
