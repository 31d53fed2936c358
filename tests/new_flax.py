"""What the installed Flax has that plait lacks, and where drawn programs part: ``python -m tests.new_flax -n 400``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests import conftest  # first: it sets what JAX reads once

ROOT = Path(__file__).parents[1]
REPORT = Path("runs") / "new-flax.txt"
PAGE = ROOT / "docs" / "flax" / "names.md"
HEAD = "| name in Flax | what is missing or differs | why |\n| --- | --- | --- |\n"


def main() -> int:
    """Print the news; 1 if there are any."""
    import flax.nnx

    import plait
    from tests.flax.compat.flax_signatures import news, table

    parser = argparse.ArgumentParser(prog="python -m tests.new_flax", description=__doc__)
    parser.add_argument("-n", type=int, default=400, help="how many drawn programs")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--write", action="store_true", help="write the table of docs/flax/names.md instead")
    args = parser.parse_args()
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(text[: text.index(HEAD) + len(HEAD)] + table(flax.nnx, plait) + "\n", encoding="utf-8")
        return 0
    print(f"Flax {version('flax')} and JAX {version('jax')}, beside plait {plait.__version__}")
    found = news(flax.nnx, plait)
    print("\n".join(found) or "All public names, signatures and plain defaults are known.", flush=True)
    (ROOT / REPORT).parent.mkdir(exist_ok=True)
    command = ["-m", "tests.differential", "-n", str(args.n), "--seed", args.seed, "--report", str(REPORT)]
    parts = subprocess.run([sys.executable, *command], cwd=ROOT, check=False).returncode
    if parts:
        print(f"Programs part in ways that no row of tests/differential/known.py explains: {REPORT}")
    return int(bool(found or parts))


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        conftest.pytest_unconfigure()
