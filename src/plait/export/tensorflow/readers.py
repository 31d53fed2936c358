"""Readers of SavedModels: the StableHLO version and the ``jax.export`` calling convention that they support.

Both depend on the TensorFlow release. The installed one is queried; the table has the same information for older ones.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, NamedTuple

from ...errors import ArgumentError, ExportError
from ...util.dependencies import require
from .portable import current_version, is_older


class Reader(NamedTuple):
    """The versions that a reader supports.

    Attributes:
        stablehlo: the newest version, ``"major.minor.patch"``.
        calling_convention: the newest of those that ``jax.export`` numbers.
    """

    stablehlo: str
    calling_convention: int


# tensorflow.compiler.mlir.stablehlo.stablehlo.get_current_version() and
# tensorflow.compiler.tf2xla.python.xla.call_module_maximum_supported_version() of each release. 2.13 has neither.
TENSORFLOW = {
    (2, 14): Reader("0.14.8", 8),
    (2, 15): Reader("0.14.24", 8),
    (2, 16): Reader("0.17.7", 9),
    (2, 17): Reader("1.1.1", 9),
    (2, 18): Reader("1.7.3", 9),
    (2, 19): Reader("1.9.1", 9),
    (2, 20): Reader("1.12.1", 10),
    (2, 21): Reader("1.13.7", 10),
}


def installed_tensorflow() -> Reader:
    """The versions that the installed TensorFlow supports.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportError: this TensorFlow does not report them.
    """
    tensorflow = require("tensorflow", extra="tensorflow", purpose="to write a SavedModel")
    try:
        stablehlo: Any = importlib.import_module("tensorflow.compiler.mlir.stablehlo.stablehlo")
        xla: Any = importlib.import_module("tensorflow.compiler.tf2xla.python.xla")
        return Reader(stablehlo.get_current_version(), xla.call_module_maximum_supported_version())
    except (ImportError, AttributeError) as error:
        raise ExportError(
            "TensorFlow does not report which StableHLO version it supports",
            found=f"TensorFlow {tensorflow.__version__}: {error}",
            expected="a TensorFlow with tensorflow.compiler.mlir.stablehlo",
            do="pip install 'plait[tensorflow]'",
        ) from error


def reader_of(target: str | None) -> Reader:
    """The versions that the given reader supports.

    Args:
        target: ``"tensorflow==2.16"``, or a StableHLO version such as ``"1.9.0"``, which means the oldest TensorFlow
            that supports it; ``None`` means the installed TensorFlow.

    Raises:
        ArgumentError: it is neither, is too old, or is newer than this JAX's version.
    """
    if target is None:
        return installed_tensorflow()
    release = re.fullmatch(r"tensorflow(?:==| )(\d+)\.(\d+)(?:\.\w+)?", target)
    if release:
        wanted = (int(release[1]), int(release[2]))
        known = [reader for number, reader in TENSORFLOW.items() if number <= wanted]  # newer ones use the newest row
        if known:
            return known[-1]
    elif re.fullmatch(r"\d+\.\d+\.\d+", target) and not is_older(current_version(), target):
        able = [reader for reader in TENSORFLOW.values() if not is_older(reader.stablehlo, target)]
        return Reader(target, (able or list(TENSORFLOW.values())[-1:])[0].calling_convention)
    raise ArgumentError(
        "a SavedModel cannot be written for this target",
        found=f"target={target!r}",
        expected=f"'tensorflow==2.14' or newer, or a StableHLO version such as '1.9.0', at most {current_version()}",
        do="target='tensorflow==2.16', or omit it for the installed TensorFlow",
    )
