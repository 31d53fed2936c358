"""The description of an exported file, the same for all formats."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ExportError, PlaitError
from ...util.schemas import Either, check_schema, size

Running = tuple[Callable[[dict[str, Any]], dict[str, Any]], list[str]]  # runs a file; the names of its inputs


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An input, an output or a weight. Dynamic sizes are names, or ``"?"`` if the format does not store them."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __post_init__(self) -> None:
        check_schema(vars(self), {"name": str, "dtype": str, "shape": [Either(size, str)]})


@dataclasses.dataclass(frozen=True)
class ReadableTensor:
    """An array in a file.

    Attributes:
        tensor: its name, dtype and shape.
        read: reads its values, without running anything of the file.
        is_named: whether its name is that of a parameter; converters of some formats make up names of their own.
    """

    tensor: Tensor
    read: Callable[[], np.ndarray]
    is_named: bool = True


@dataclasses.dataclass(frozen=True)
class Description:
    """One file of one format.

    Attributes:
        kind: ``"stablehlo"``, ``"saved_model"``, ``"onnx"`` or ``"litert"``.
        path: the file or folder.
        size: size in bytes.
        versions: the versions it was written with, or for.
        signatures: ``{name: (inputs, outputs)}``.
        weights: the stored weights, if the format stores names.
        stored: reads which arrays are in the file, without running anything of it; the default is for StableHLO.
    """

    kind: str
    path: Path
    size: int
    versions: dict[str, str]
    signatures: dict[str, tuple[list[Tensor], list[Tensor]]]
    weights: list[Tensor]
    stored: Callable[[], list[ReadableTensor]] = list

    def __post_init__(self) -> None:
        check_schema(vars(self), {"versions": {str: str}, "signatures": {str: Any}})  # protobuf has bytes if not UTF-8


def size_of(place: Path) -> int:
    """The size in bytes of a file, of all files in a folder, or 0."""
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


@contextlib.contextmanager
def refused_if_damaged(place: Path) -> Iterator[None]:
    """Inside ``with``, whatever a library raises about a file that it cannot read becomes plait's error.

    Raises:
        ExportError: it names the file.
    """
    try:
        yield
    except PlaitError:
        raise
    except Exception as error:  # each library has types of its own
        raise ExportError(
            "the export cannot be read",
            at=os.fspath(place),
            found=f"{type(error).__name__}: {error!s:.200}",
            expected="a file that is complete and unchanged",
            do="copy it again, or export again",
        ) from error
