"""``plait explore``: a page about a checkpoint or an export, or about two of them side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    explore = commands.add_parser(
        "explore", help="write a page to look at a checkpoint or an export", allow_abbrev=False
    )
    explore.description = (
        "Write one self-contained HTML file with the arrays of a checkpoint or an export: their tree, statistics, "
        "histograms and sizes; with two paths, also the differences. The model's class is not needed, and nothing in "
        "the files is run."
    )
    explore.add_argument("path", metavar="PATH", help="a checkpoint or a folder of them, an export, or .safetensors")
    explore.add_argument(
        "other", nargs="?", metavar="OTHER", help="a second one, of any kind, to compare with the first"
    )
    explore.add_argument(
        "--output", type=Path, default=Path("explore.html"), metavar="FILE",
        help="the page; an earlier page is replaced (default: %(default)s)",
    )  # fmt: skip
    explore.set_defaults(run=_explore)


def _explore(options: argparse.Namespace) -> int:
    from ..inspect.explore.page import explore

    print(explore(options.path, other=options.other, to=options.output))
    return 0
