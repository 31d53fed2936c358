"""What earlier hunts in an area have found out, so that one that was stopped goes on, and one after a change is quick.

A file of JSON for each area, below ``build/``. What was found for the same source and the same tests is taken as it is;
after a change it says which test to try first.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .faults import Fault

FOLDERS = ("src", "tests", "tools")


class Kept:
    """The file of one area.

    Args:
        file: where it is; it need not be there.
        tree: the copy of the tree whose tests are run.
    """

    def __init__(self, file: Path, tree: Path) -> None:
        self.file = file
        self.digest = _digest(tree)
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._settled: dict[str, Any] = kept.get("settled", {})
        self._found: dict[str, dict[str, Any]] = kept.get("found", {})

    @property
    def settled(self) -> dict[str, Any] | None:
        """What the tests of this tree did without a fault."""
        return self._settled["answer"] if self._settled.get("digest") == self.digest else None

    def settle(self, answer: dict[str, Any]) -> None:
        self._settled = {"digest": self.digest, "answer": answer}
        self._write()

    def noticer(self, fault: Fault) -> str | None:
        """The test that noticed a fault the last time, whatever has changed since."""
        return self._found.get(_name(fault), {}).get("noticed")

    def is_known(self, fault: Fault) -> bool:
        """Whether that was in this very tree."""
        return self._found.get(_name(fault), {}).get("digest") == self.digest

    def find(self, fault: Fault, noticed: str | None) -> None:
        self._found[_name(fault)] = {"digest": self.digest, "noticed": noticed}
        self._write()

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps({"settled": self._settled, "found": self._found}), encoding="utf-8")
        draft.replace(self.file)


def _name(fault: Fault) -> str:
    """Not the number of the line: other lines come and go."""
    return "\n".join((fault.file, fault.before, fault.after, fault.diff.partition("\n@@")[2].partition("\n")[2]))


def _digest(tree: Path) -> str:
    """Of all files that may change what the tests do; what was compiled of them may not."""
    digest = hashlib.sha256()
    for file in sorted(path for folder in FOLDERS for path in (tree / folder).rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts and file.name != "judged.toml":
            digest.update(f"{file.relative_to(tree)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
