"""The manifest of a folder: its format, and the SHA-256 of each file, which is checked before the file is used.

``stablehlo_loader.py`` reads manifests; every bundle has a copy of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, ExportError
from .stablehlo_loader import MANIFEST, ArtifactError, is_file_name


def write_manifest(folder: Path, kind: tuple[str, int], content: dict[str, Any]) -> None:
    """Write the manifest of a folder of this format and version, with the checksums of its files."""
    files = {file.name: {"sha256": _sum(file), "bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    manifest = {"format": kind[0], "format_version": kind[1], **content, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _sum(file: Path) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def check_file_names(message: str, argument: str, names: Iterable[Any], do: str) -> None:
    """Raise for a name that cannot be part of a file's name on some system.

    Raises:
        ArgumentError: has the name and the argument that has it.
    """
    for name in names:
        if not is_file_name(name) or not name.strip() or name.startswith("."):
            expected = "a string without / \\ : that does not start with a dot"
            raise ArgumentError(message, found=f"{name!r} in {argument}", expected=expected, do=do)


@contextlib.contextmanager
def refused_as_plait_does(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside ``with``, errors of the loader become plait's errors.

    Raises:
        ExportError: names the file, or the folder if the loader names no file.
    """
    try:
        yield
    except ArtifactError as error:
        problem, *parts = str(error).split("\n")
        raise ExportError(
            problem,
            at=dict(part.split(None, 1) for part in parts).get("at", os.fspath(path)),
            found="a folder that is incomplete, or was changed",
            expected="the files that plait wrote, unchanged",
            do="copy the folder again, or export again",
        ) from error
