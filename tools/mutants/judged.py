"""The changes that somebody has looked at and found to be no faults: ``judged.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from .faults import Fault

FILE = Path(__file__).with_name("judged.toml")


def read(file: Path = FILE) -> dict[tuple[str, str, str], str]:
    """The reason for each, by file, lines before and lines after."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("judged", [])
    return {(entry["file"], entry["before"], entry["after"]): entry["reason"] for entry in entries}


def entry(fault: Fault) -> str:
    """A survivor as it would stand in the file, for whoever judges it."""
    quote = lambda text: f"'''\n{text}'''" if "\n" in text or "'" in text else f"'{text}'"
    return "\n".join(
        ["[[judged]]", f"file = '{fault.file}'", f"before = {quote(fault.before)}", f"after = {quote(fault.after)}"]
    )
