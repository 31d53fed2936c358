"""LiteRT (TensorFlow Lite) files, written by TensorFlow's converter from a SavedModel."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ...errors import ExportError, PlaitError
from ...util.dependencies import require
from ...util.files import read_file
from ..program.input_spec import InputSpec
from ..program.program import SIGNATURE, Program, program_of
from ..program.rewriting import FOR_LITERT, rewritten
from ..program.unsupported import refusal_of
from . import saved_model
from .descriptions import Description, ReadableTensor, Running, Tensor, size_of
from .options import WriteOptions
from .whole_write import check_opens, written_whole

MOST_BYTES = 2**31 - 2**20  # a flatbuffer's offsets end at 2 GiB


def write(
    programs: Mapping[str, Program],
    path: str | os.PathLike[str],
    options: WriteOptions = WriteOptions(),  # noqa: B008  (it cannot be changed)
) -> None:
    """Write functions that share their weights to one LiteRT file, one signature each.

    Dynamic sizes stay dynamic. Only LiteRT's built-in operations are used, so the file needs nothing but the
    interpreter.

    Args:
        programs: programs, by the name of the signature.
        path: the file to create.
        options: whether to replace an existing file.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportPathError: the file cannot be written, or ``path`` exists.
        ExportError: LiteRT lacks an operation of the model, or the weights do not fit into one file.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to write a LiteRT file")
    weights = {name: array for program in programs.values() for name, array in program.weights.items()}
    size = sum(array.nbytes for array in weights.values())
    if size > MOST_BYTES:
        raise ExportError(
            "the weights do not fit into one LiteRT file",
            found=f"{size:,} bytes of weights",
            expected=f"at most {MOST_BYTES:,} bytes",
            do="store them in a smaller dtype, or export as StableHLO, which has no limit",
        )
    known = {name: _in_known(program) for name, program in programs.items()}
    with written_whole(path, overwrite=options.overwrite) as draft:
        try:
            draft.write_bytes(_converted(tf, known))
        except (PlaitError, OSError):
            raise
        except Exception as error:  # the converter raises its own exception types
            message = "TensorFlow's converter cannot write the model for LiteRT"
            convert = functools.partial(_convert_alone, tf)
            expected = "LiteRT's built-in operations"
            raise refusal_of(message, error, known.values(), convert, expected=expected) from error
        check_opens("LiteRT", run, draft)


def _in_known(program: Program) -> Program:
    """Rewrite the program to operations that LiteRT supports, if there are equivalent ones."""
    return dataclasses.replace(program, call=rewritten(program.call, FOR_LITERT))


def _converted(tf: Any, programs: Mapping[str, Program]) -> bytes:
    with tempfile.TemporaryDirectory(prefix="plait-") as scratch:
        folder = Path(scratch, "saved_model")
        saved_model.write(programs, folder, WriteOptions(("cpu",)))
        converter = tf.lite.TFLiteConverter.from_saved_model(os.fspath(folder), signature_keys=list(programs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return converter.convert()


def _convert_alone(tf: Any, function: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
    specs = [InputSpec(each.shape, each.dtype, f"x{number}") for number, each in enumerate(shapes)]
    _converted(tf, {SIGNATURE: program_of(({}, lambda _, *arrays: function(*arrays)), specs)})


def _check_whole(content: bytes) -> None:
    """Raise if a reference in the file leads out of it: the interpreter follows it, which may end the process."""
    with contextlib.suppress(ImportError):  # the module is not one of TensorFlow's public ones
        from tensorflow.lite.python.schema_py_generated import ModelT

        ModelT.InitFromPackedBuf(content, 0)


def describe(place: Path) -> Description:
    """The file's contents according to the interpreter; the format does not store the names of weights."""
    tf = require("tensorflow", extra="tensorflow", purpose="to read a LiteRT file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's interpreter warns that it is deprecated
        content = read_file(place)
        _check_whole(content)
        interpreter = tf.lite.Interpreter(model_content=content)

    def tensors(details: dict[str, Any]) -> list[Tensor]:
        return [_tensor(name, each) for name, each in sorted(details.items())]

    signatures = {}
    for name in interpreter.get_signature_list():
        run = interpreter.get_signature_runner(name)
        signatures[name] = tensors(run.get_input_details()), tensors(run.get_output_details())
    stored = functools.partial(_constants, interpreter)
    return Description("litert", place, size_of(place), {}, signatures, [], stored)


def _constants(interpreter: Any) -> list[ReadableTensor]:
    """The constants in the file, by the names that the converter gave them; equal names are numbered."""
    found: dict[str, ReadableTensor] = {}
    for details in interpreter.get_tensor_details():
        read = functools.partial(interpreter.get_tensor, details["index"])
        try:
            read()
        except ValueError:  # what is computed has no values before the model runs
            continue
        name = details["name"] if details["name"] not in found else f"{details['name']} #{details['index']}"
        found[name] = ReadableTensor(_tensor(name, details), read, is_named=False)
    return list(found.values())


def _tensor(name: str, details: Mapping[str, Any]) -> Tensor:
    sizes = details.get("shape_signature", details["shape"])
    return Tensor(name, details["dtype"].__name__, tuple("?" if size < 0 else int(size) for size in sizes))


def run(path: str, signature: str | None) -> Running:
    """Run with LiteRT's interpreter, which TensorFlow also has."""
    import os
    import warnings

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        from ai_edge_litert.interpreter import Interpreter  # pyright: ignore[reportMissingImports]
    except ImportError:
        import tensorflow as tf

        Interpreter = tf.lite.Interpreter
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's interpreter warns that it is deprecated
        interpreter = Interpreter(model_path=path)
        runner = interpreter.get_signature_runner(signature)
    return lambda inputs: runner(**inputs), list(runner.get_input_details())
