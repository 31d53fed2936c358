"""What is told of an exported file, whatever its format."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Running = tuple[Callable[[dict[str, Any]], dict[str, Any]], list[str]]  # what runs a file, and the names of its inputs


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input, an output or a weight. Free sizes are names, or ``"?"`` where the format forgets them."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclasses.dataclass(frozen=True)
class Description:
    """One file of one format.

    Attributes:
        kind: ``"stablehlo"``, ``"saved_model"``, ``"onnx"`` or ``"litert"``.
        path: the file or folder.
        size: bytes on the disk.
        versions: what it was written with, or for.
        signatures: ``{name: (inputs, outputs)}``.
        weights: what is stored, as far as the format keeps names.
    """

    kind: str
    path: Path
    size: int
    versions: dict[str, str]
    signatures: dict[str, tuple[list[Tensor], list[Tensor]]]
    weights: list[Tensor]

    def to_dict(self) -> dict[str, Any]:
        """The description as JSON has it."""
        return {**dataclasses.asdict(self), "path": os.fspath(self.path)}


def size_of(place: Path) -> int:
    """Bytes of a file, of all files of a folder, or of nothing."""
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())
