"""The command ``plait cache``: what is in a folder of programs, and what processes did with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    cache = commands.add_parser("cache", help="list a folder of compiled programs", allow_abbrev=False)
    cache.description = (
        "List the programs in a folder that PLAIT_CACHE, plait.cache or plait.jit(cache=) names, with their sizes; "
        "what cannot be stored, and why; and for the last processes their hits, and their misses with what had changed."
    )
    cache.add_argument("folder", type=Path, metavar="FOLDER", help="the folder")
    cache.set_defaults(run=_cache)


def _cache(options: argparse.Namespace) -> int:
    from .warm.contents import contents

    print("\n".join(contents(options.folder)))
    return 0
