"""LiteRT (TensorFlow Lite) files, written by TensorFlow's converter from a SavedModel."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ExportError
from .dependencies import require
from .program import Program
from .rewriting import FOR_LITERT, rewritten
from .saved_model import write_saved_model
from .whole_write import written_whole

MOST_BYTES = 2**31 - 2**20  # a flatbuffer's offsets end at 2 GiB


def write_litert(programs: Mapping[str, Program], path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write functions that share their weights as one LiteRT file, each as one signature.

    Free sizes stay free. The operations are those that LiteRT has built in, so that the file needs no more than its
    interpreter.

    Args:
        programs: by the name of the signature.
        path: the file to be made.
        overwrite: whether to replace what is at ``path``.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportPathError: the file cannot be written, or ``path`` exists.
        ExportError: LiteRT has not got an operation of the model, or the weights do not fit into one file.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to write a LiteRT file")
    size = sum(array.nbytes for array in next(iter(programs.values())).weights.values())
    if size > MOST_BYTES:
        raise ExportError(
            "the weights do not fit into one LiteRT file",
            found=f"{size:,} bytes of weights",
            expected=f"at most {MOST_BYTES:,} bytes",
            do="store them in a smaller dtype, or export as StableHLO, which has no limit",
        )
    with written_whole(path, overwrite=overwrite) as draft, tempfile.TemporaryDirectory(prefix="plait-") as scratch:
        folder = Path(scratch, "saved_model")
        known = {
            name: dataclasses.replace(program, call=rewritten(program.call, FOR_LITERT))
            for name, program in programs.items()
        }
        write_saved_model(known, folder, platforms=("cpu",))
        draft.write_bytes(_converted(tf, os.fspath(folder), list(programs)))


def _converted(tf: Any, folder: str, signatures: list[str]) -> bytes:
    converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=signatures)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return converter.convert()
    except Exception as error:  # the converter raises errors of its own kinds
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise ExportError(
            "TensorFlow's converter cannot write the model for LiteRT",
            found=f"{type(error).__name__}: " + " ".join(lines)[:600],
            expected="operations that LiteRT has built in",
            do="replace the operation that the message names, or export to another format",
        ) from error
