"""The manifest of a bundle: its format, and the SHA-256 of each file, which is checked before the file is used.

``stablehlo_loader.py``, of which every bundle has a copy, reads manifests without plait; plait compares them with their
schema as well.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ExportError
from ...util import schemas
from ...util.files import check_files, given_path, read_file
from ...util.scratch import recover
from ...util.whole_writes import digest_of
from . import stablehlo_loader
from .stablehlo_loader import FORMAT, FORMAT_VERSION, MANIFEST, ArtifactError


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Write the manifest of a bundle, with the checksums of its files."""
    files = {file.name: {"sha256": digest_of(file), "bytes": file.stat().st_size} for file in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "format_version": FORMAT_VERSION, **content, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


_TENSOR = {"name": str, "dtype": str, "shape": [schemas.Either(schemas.size, str)]}
_SIGNATURE = {"file": schemas.file_name, "inputs": [_TENSOR], "outputs": [_TENSOR], "state": [str], "weights": [str]}
_SCHEMA = {
    "versions": {str: str},
    "platforms?": [str],
    "signatures": {str: _SIGNATURE},
    "weights": [_TENSOR],
    "weight_files?": [schemas.file_name],
    "files": {schemas.file_name: {"sha256": schemas.sha256, "bytes?": schemas.size}},
}


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of a bundle.

    Raises:
        ExportError: it is missing, damaged, or of another format.
    """
    folder = given_path(path, ExportError)
    recover(folder)
    with refused_as_plait_does(folder):
        try:
            check_files(folder)
            content = read_file(folder / MANIFEST, schemas.MOST_JSON)
        except (FileNotFoundError, NotADirectoryError):
            content = b""  # the loader says so
        except OSError as error:
            raise ArtifactError(f"{error.strerror}\n  at        {error.filename}") from error
        manifest = stablehlo_loader.read_manifest(folder)
        try:
            schemas.parse_json(content, _SCHEMA)
        except schemas.SchemaError as error:
            raise ArtifactError(f"a manifest with {error}\n  at        {folder / MANIFEST}") from error
    return manifest


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
