"""Describes an exported file without running it: format, signatures, sizes, versions and weights."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import ExportError
from ...util.files import given_path
from ..formats.descriptions import Description
from ..formats.table import FORMATS, Format, exports_at


def describe_exports(path: str | os.PathLike[str]) -> list[Description]:
    """Describe every export at ``path``: one, or all in a folder that ``save`` wrote.

    Raises:
        ExportError: there is no export, or it cannot be read.
        MissingDependencyError: reading it needs a package that is not installed.
    """
    return [row.describe(place) for row, place in find_exports(path)]


def find_exports(path: str | os.PathLike[str]) -> list[tuple[Format, Path]]:
    """The format and path of every export at ``path``.

    Raises:
        ExportError: there is no export.
    """
    given, found = given_path(path, ExportError), exports_at(path)
    if not found:
        raise ExportError(
            "there is no export at this path",
            at=os.fspath(path),
            found="nothing" if not given.exists() else "a folder" if given.is_dir() else "a file of a different format",
            expected=f"a file or folder of {', '.join(row.title for row in FORMATS.values())}, or a folder of them",
            do="plait.export.save(model, path, formats=['stablehlo'], inputs=('batch', 8))",
        )
    return found
