"""The table of formats, used by `save`, `describe_exports` and `prove`.

A format is one row here and one file in this folder, named like the format, with these functions::

    write(programs, path, options)     write programs, by the names of their signatures, atomically
    describe(path)                     describe the file, and its arrays, without running it; any error means damage
    run(path, signature)               a function of inputs by name, and their names

``run`` is what the users of a file would write. Only its source is sent to another process, which lacks the ``blocked``
packages; so it imports what it needs, and uses nothing else in its file.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from pathlib import Path
from typing import Any

from ...errors import ExportError
from ...util.files import given_path
from ...util.scratch import recover
from ..program.checks import check_known, check_some
from .descriptions import Description, ReadableTensor, refused_if_damaged


@dataclasses.dataclass(frozen=True)
class Format:
    """A row.

    Attributes:
        name: its name in ``save(formats=...)``; also the name of its file here.
        title: its name in messages.
        place: the file or folder of this format in a folder that ``save`` writes.
        blocked: packages that the users of the file may not have.
        mark: the file that identifies a folder of this format; without it the format is a single file, identified by
            its suffix.
        has_target: whether it is written for a version of its reader.
    """

    name: str
    title: str
    place: str
    blocked: tuple[str, ...]
    mark: str | None = None
    has_target: bool = False

    @property
    def code(self) -> Any:
        """The module with the format's functions, imported on first use."""
        return importlib.import_module(f".{self.name}", __package__)

    def describe(self, place: Path) -> Description:
        """The description of a file or folder, and its arrays.

        Raises:
            ExportError: it is incomplete or damaged; also raised where the arrays are read.
        """
        with refused_if_damaged(place):
            found = self.code.describe(place)

        def stored() -> list[ReadableTensor]:
            with refused_if_damaged(place):
                arrays = found.stored()
            return [dataclasses.replace(each, read=refused_if_damaged(place)(each.read)) for each in arrays]

        return dataclasses.replace(found, stored=stored)

    def is_at(self, place: Path) -> bool:
        """Whether a file or folder has this format."""
        if self.mark is not None:
            return (place / self.mark).is_file()
        return place.is_file() and place.suffix == Path(self.place).suffix


_ROWS = (
    Format(
        "stablehlo", "StableHLO", "stablehlo", mark="manifest.json",
        blocked=("plait", "tensorflow", "flax", "safetensors"),
    ),
    Format(
        "saved_model", "TensorFlow SavedModel", "saved_model", mark="saved_model.pb", has_target=True,
        blocked=("jax", "jaxlib", "flax", "plait"),
    ),
    Format(
        "onnx", "ONNX", "model.onnx",
        blocked=("jax", "jaxlib", "jax2onnx", "tensorflow", "flax", "plait"),
    ),
    Format(
        "litert", "LiteRT", "model.tflite",
        blocked=("jax", "jaxlib", "flax", "plait"),
    ),
)  # fmt: skip

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}


def formats_of(names: Any) -> list[Format]:
    """The rows of one name or of several, each once.

    Raises:
        ArgumentError: no format is given, or an unknown one.
    """
    wanted = list(dict.fromkeys([names] if isinstance(names, str) else names))
    advice = "plait.export.save(model, path, formats=['stablehlo', 'onnx'], inputs=('batch', 8))"
    check_some("an export needs a format", "formats", wanted, advice)
    check_known("there is no export format of this name", wanted, FORMATS, advice)
    return [FORMATS[name] for name in wanted]


def exports_at(path: str | os.PathLike[str]) -> list[tuple[Format, Path]]:
    """Each export at a path: an export itself, or a folder that ``save`` wrote."""
    given, rows = given_path(path, ExportError), FORMATS.values()
    recover(given)
    return [(row, given) for row in rows if row.is_at(given)] or [
        (row, given / row.place) for row in rows if row.is_at(given / row.place)
    ]
