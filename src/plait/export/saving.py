"""``save`` exports a model to files of several formats; ``load`` loads the format that plait runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, ArgumentTypeError, ExportError
from ..typing import FilterLiteral
from ..util.files import given_path
from ..util.schemas import file_name
from .formats.options import WriteOptions
from .formats.stablehlo import load_stablehlo
from .formats.table import FORMATS, formats_of
from .formats.whole_write import ExportPathError, written_whole
from .program.lowering import PLATFORMS
from .program.program import SIGNATURE, Program, program_of
from .proof.describe import find_exports


def save(
    model: Any,
    path: str | os.PathLike[str],
    *,
    inputs: Any,
    formats: Iterable[str] = ("stablehlo",),
    methods: Mapping[str, str] | None = None,
    state: FilterLiteral = (),
    frozen: FilterLiteral = (),
    state_batch: str | None = None,
    platforms: Sequence[str] = PLATFORMS,
    target: str | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Export a model to a folder, once per format.

    The model is exported in its current mode: call ``model.eval()`` first if it matters.

    Args:
        model: a module, or ``(params, function)`` with a pure ``function(params, *inputs)``.
        path: the folder to create. It contains ``stablehlo/``, ``saved_model/``, ``model.onnx``, ``model.tflite``.
        inputs: an ``InputSpec``, a shape such as ``("batch", 8)`` (float32) or an example array, or several of them in
            a list, or by name in a dictionary. With several ``methods``, a dictionary of these by signature.
        formats: some of ``"stablehlo"``, ``"saved_model"``, ``"onnx"``, ``"litert"``.
        methods: ``{signature: name of a method}``; by default ``{"serving_default": "__call__"}``. ONNX files have one
            function, the first.
        state: variables that become inputs and outputs, such as ``plait.Cache``.
        frozen: variables whose changes are discarded.
        state_batch: the name of the state's batch size, which is free then, such as ``"batch"``. The batch axis of a
            state is its first, after those of stacks, and the model has a batch of 1.
        platforms: where StableHLO and SavedModel can run.
        target: the reader of the SavedModel: ``"tensorflow==2.16"``, or a StableHLO version; by default the installed
            TensorFlow.
        overwrite: whether to replace an existing export at ``path``.

    Returns:
        The path of each export, by format.

    Raises:
        ArgumentError: a format or platform is unknown; there is a ``target`` but no SavedModel; or the name of a
            signature is not a valid file name.
        ExportError: the model changes variables that are neither ``state`` nor ``frozen``, or a format does not support
            it; nothing is written in any format.
        ExportPathError: the folder cannot be written, or ``path`` exists.
        MissingDependencyError: the packages of a format are not installed.

    Example:
        >>> model = plait.Linear(4, 2, rngs=plait.Rngs(0))
        >>> written = plait.export.save(model, "model", inputs=("batch", 4))  # doctest: +SKIP
        >>> plait.export.load("model")(jnp.ones((3, 4))).shape  # doctest: +SKIP
        (3, 2)
    """
    rows = formats_of(formats)
    if target is not None and not any(row.has_target for row in rows):
        raise ArgumentError(
            "target applies only to a SavedModel",
            found=f"target={target!r}, formats={[row.name for row in rows]!r}",
            expected="the format 'saved_model', or no target",
            do="add 'saved_model' to the formats, or omit target",
        )
    options = WriteOptions(platforms, target)
    programs = _programs(model, inputs, methods, {"state": state, "frozen": frozen, "state_batch": state_batch})
    folder = given_path(path, ExportPathError)
    _check_is_export(folder)
    with written_whole(folder, overwrite=overwrite) as draft:
        draft.mkdir()
        for row in rows:
            row.code.write(programs, draft / row.place, options)
    return {row.name: folder / row.place for row in rows}


def _check_is_export(path: Path) -> None:
    """Raise for a folder that ``save`` did not write, which should not be replaced."""
    if path.is_dir() and any(path.iterdir()) and not any((path / row.place).exists() for row in FORMATS.values()):
        raise ExportPathError(
            "the path of the export is a folder that is not an export",
            at=str(path.absolute()),
            found=", ".join(sorted(each.name for each in path.iterdir())[:8]),
            expected="a path that does not exist, or, with overwrite=True, a folder that plait.export.save wrote",
            do="choose another path, or delete the folder yourself",
        )


def _programs(
    model: Any, inputs: Any, methods: Mapping[str, str] | None, options: Mapping[str, Any]
) -> dict[str, Program]:
    if methods is None:
        return {SIGNATURE: program_of(model, inputs, **options)}
    if not isinstance(methods, Mapping):
        raise ArgumentTypeError(
            "methods must be a dictionary by signature",
            found=f"methods={methods!r}",
            expected="a dictionary",
            do="methods={'serving_default': '__call__'}",
        )
    for name in methods:
        if not file_name(name) or not name.strip() or name.startswith("."):
            raise ArgumentError(
                "the name of a signature is part of a file's name",
                found=f"{name!r} in methods",
                expected="a string without / \\ : that does not start with a dot",
                do="methods={'encode': 'encode'}",
            )
    if not methods or (len(methods) > 1 and not (isinstance(inputs, Mapping) and set(inputs) == set(methods))):
        raise ArgumentError(
            "each signature needs a method and its inputs",
            found=f"methods {list(methods)}, inputs {list(inputs) if isinstance(inputs, Mapping) else inputs!r}",
            expected="two dictionaries with the same signatures",
            do="methods={'encode': 'encode', 'decode': 'decode'}, inputs={'encode': ..., 'decode': ...}",
        )
    return {
        name: program_of(model, inputs[name] if len(methods) > 1 else inputs, method=method, **options)
        for name, method in methods.items()
    }


def load(path: str | os.PathLike[str], signature: str | None = None) -> Callable[..., Any]:
    """Load a function of a StableHLO bundle. This needs JAX, but not the model's code.

    Args:
        path: the bundle, or the folder that ``save`` wrote.
        signature: the function to load; by default the first.

    Raises:
        ExportError: there is no export, or none of StableHLO; or one of its files is missing or was changed.
    """
    exports = find_exports(path)
    place = next((place for row, place in exports if row.name == "stablehlo"), None)
    if place is None:
        raise ExportError(
            "load runs StableHLO, and this export has none",
            at=os.fspath(path),
            found=", ".join(row.title for row, _ in exports),
            expected="a StableHLO bundle, or a folder with one",
            do="export again with formats=['stablehlo', ...], or run the file in its own runtime",
        )
    return load_stablehlo(place, signature)
