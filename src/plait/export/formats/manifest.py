"""The manifest of a folder: its format, and the SHA-256 of each file, which is checked before the file is used.

``stablehlo_loader.py``, of which every bundle has a copy, reads manifests without plait; plait compares them with their
schema as well.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...errors import ArgumentError, ExportError
from ...ground import schemas
from ...ground.scratch import recover
from ...ground.whole_writes import digest_of
from . import stablehlo_loader
from .stablehlo_loader import FORMAT, FORMAT_VERSION, MANIFEST, ArtifactError


def write_manifest(folder: Path, kind: tuple[str, int], content: dict[str, Any]) -> None:
    """Write the manifest of a folder of this format and version, with the checksums of its files."""
    files = {file.name: {"sha256": digest_of(file), "bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    manifest = {"format": kind[0], "format_version": kind[1], **content, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


_TENSOR = {"name": str, "dtype": str, "shape": [schemas.Either(schemas.size, str)]}
_SIGNATURE = {"file": schemas.file_name, "inputs": [_TENSOR], "outputs": [_TENSOR], "state": [str], "weights": [str]}
_CONTENT = {
    "signatures": {
        "versions": {str: str},
        "platforms?": [str],
        "signatures": {str: _SIGNATURE},
        "weights": [_TENSOR],
        "weight_files?": [schemas.file_name],
    },
    "programs": {"programs": {schemas.file_name: {"file": schemas.file_name}}},
}
_FILES = {"files": {schemas.file_name: {"sha256": schemas.sha256, "bytes?": schemas.size}}}


def read_manifest(
    path: str | os.PathLike[str], kind: tuple[str, int] = (FORMAT, FORMAT_VERSION), part: str = "signatures"
) -> dict[str, Any]:
    """The manifest of a folder of this format and version.

    Args:
        part: which functions it lists: ``"signatures"`` of a bundle, or ``"programs"`` of an exported map.

    Raises:
        ExportError: it is missing, damaged, or of another format.
    """
    recover(Path(path))
    with refused_as_plait_does(path):
        manifest = stablehlo_loader.read_manifest(path, kind, part)
        try:
            schemas.check_schema(manifest, {**_FILES, **_CONTENT[part]})
        except schemas.SchemaError as error:
            raise ArtifactError(f"a manifest with {error}\n  at        {Path(path) / MANIFEST}") from error
    return manifest


def check_file_names(message: str, argument: str, names: Iterable[Any], do: str) -> None:
    """Raise for a name that cannot be part of a file's name on some system.

    Raises:
        ArgumentError: has the name and the argument that has it.
    """
    for name in names:
        if not schemas.file_name(name) or not name.strip() or name.startswith("."):
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
