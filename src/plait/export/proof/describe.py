"""What an exported file is: its format, signatures, sizes, versions and weights, read without running it."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...dependencies import require
from ...errors import ExportError
from ..formats import stablehlo_loader
from ..formats.onnx import DATA
from ..formats.saving import PLACES


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


def describe_exports(path: str | os.PathLike[str]) -> list[Description]:
    """Every export at ``path``: one, or all those in a folder that ``save`` made.

    Raises:
        ExportError: there is none, or it cannot be read.
        MissingDependencyError: reading it needs a package that is not installed.
    """
    return [_READERS[kind](place) for kind, place in find_exports(path)]


def find_exports(path: str | os.PathLike[str]) -> list[tuple[str, Path]]:
    """The kind and place of every export at ``path``.

    Raises:
        ExportError: there is none.
    """
    given = Path(path)
    found = list(_kinds(given))
    if not found and given.is_dir():
        found = [pair for name in PLACES.values() for pair in _kinds(given / name)]
    if not found:
        raise ExportError(
            "there is no export here",
            at=os.fspath(path),
            found="nothing" if not given.exists() else "a folder" if given.is_dir() else "a file of another kind",
            expected="a StableHLO bundle, a SavedModel, an .onnx or a .tflite file, or a folder of them",
            do="plait.export.save(model, path, formats=['stablehlo'], inputs=('batch', 8))",
        )
    return found


def _kinds(place: Path) -> Iterator[tuple[str, Path]]:
    if (place / stablehlo_loader.MANIFEST).is_file():
        yield "stablehlo", place
    elif (place / "saved_model.pb").is_file():
        yield "saved_model", place
    elif place.is_file() and place.suffix in (".onnx", ".tflite"):
        yield ("onnx" if place.suffix == ".onnx" else "litert"), place


def _size(place: Path) -> int:
    """Bytes of a file, of all files of a folder, or of nothing."""
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(file.stat().st_size for file in files if file.is_file())


def _stablehlo(place: Path) -> Description:
    try:
        manifest = stablehlo_loader.read_manifest(place)
        signatures = {
            name: (list(map(_from_json, chosen["inputs"])), list(map(_from_json, chosen["outputs"])))
            for name, chosen in manifest["signatures"].items()
        }
        versions = {str(name): str(version) for name, version in manifest["versions"].items()}
        weights = list(map(_from_json, manifest["weights"]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ExportError("the bundle cannot be described", at=os.fspath(place), found=str(error)) from error
    return Description("stablehlo", place, _size(place), versions, signatures, weights)


def _from_json(entry: dict[str, Any]) -> Tensor:
    return Tensor(str(entry["name"]), str(entry["dtype"]), tuple(entry["shape"]))


def _saved_model(place: Path) -> Description:
    tf = require("tensorflow", extra="tensorflow", purpose="to read a SavedModel")
    loaded = tf.saved_model.load(os.fspath(place))

    def tensors(specs: dict[str, Any]) -> list[Tensor]:
        return [_from_tf(name, spec) for name, spec in sorted(specs.items())]

    signatures = {
        name: (tensors(function.structured_input_signature[1]), tensors(function.structured_outputs))
        for name, function in loaded.signatures.items()
    }
    weights = [_from_tf(v.name.removesuffix(":0"), v) for v in getattr(loaded, "weights", [])]
    versions = {"tensorflow": loaded.tensorflow_version}
    return Description("saved_model", place, _size(place), versions, signatures, weights)


def _from_tf(name: str, spec: Any) -> Tensor:
    return Tensor(name, spec.dtype.name, tuple("?" if size is None else size for size in spec.shape))


def _onnx(place: Path) -> Description:
    onnx = require("onnx", extra="onnx", purpose="to read an ONNX file")
    model = onnx.load(os.fspath(place), load_external_data=False)

    def dtype(number: int) -> str:
        return str(onnx.helper.tensor_dtype_to_np_dtype(number))

    def tensor(value: Any) -> Tensor:
        kind = value.type.tensor_type
        return Tensor(value.name, dtype(kind.elem_type), tuple(d.dim_param or d.dim_value for d in kind.shape.dim))

    weights = [Tensor(each.name, dtype(each.data_type), tuple(each.dims)) for each in model.graph.initializer]
    versions = {f"opset {each.domain or 'ai.onnx'}": str(each.version) for each in model.opset_import}
    versions |= {"ir": str(model.ir_version)} | (
        {model.producer_name: model.producer_version} if model.producer_name else {}
    )
    pair = [list(map(tensor, model.graph.input)), list(map(tensor, model.graph.output))]
    size = _size(place) + _size(place.with_name(place.name + DATA))
    return Description("onnx", place, size, versions, {model.graph.name: (pair[0], pair[1])}, weights)


def _litert(place: Path) -> Description:
    tf = require("tensorflow", extra="tensorflow", purpose="to read a LiteRT file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(model_path=os.fspath(place))

    def tensors(details: dict[str, Any]) -> list[Tensor]:
        return [
            Tensor(
                name, each["dtype"].__name__, tuple("?" if size < 0 else int(size) for size in each["shape_signature"])
            )
            for name, each in sorted(details.items())
        ]

    signatures = {}
    for name in interpreter.get_signature_list():
        run = interpreter.get_signature_runner(name)
        signatures[name] = tensors(run.get_input_details()), tensors(run.get_output_details())
    return Description("litert", place, _size(place), {}, signatures, [])


_READERS = {"stablehlo": _stablehlo, "saved_model": _saved_model, "onnx": _onnx, "litert": _litert}


def to_json(descriptions: list[Description]) -> str:
    """All of it as JSON."""
    return json.dumps([each.to_dict() for each in descriptions], indent=2)
