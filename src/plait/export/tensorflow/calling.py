"""The TensorFlow operation that runs an exported JAX function: ``XlaCallModule``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from ...errors import ExportError
from .portable import serialize_for
from .readers import Reader

# Functions of jaxlib's own libraries, which TensorFlow lacks.
_FOREIGN = re.compile(r"custom_call @((?:lapack|blas|cusolver|cublas|cusparse|cudnn|cu|hip\w*|rocm)_\w+)")


def foreign_calls(exported: jax.export.Exported) -> list[str]:
    """The calls of an exported function to libraries that only JAX has, such as ``lapack_sgetrf_ffi``."""
    return sorted(set(_FOREIGN.findall(exported.mlir_module())))


def without_foreign_calls(exported: jax.export.Exported) -> jax.export.Exported:
    """Return the function unchanged, if it has no such calls.

    Raises:
        ExportError: it calls libraries that only JAX has.
    """
    foreign = foreign_calls(exported)
    if foreign:
        raise ExportError(
            f"TensorFlow cannot run calls of {', '.join(foreign)}, which only JAX has",
            found="a function that calls JAX's own libraries",
            expected="XLA operations",
            do="avoid functions of jax.numpy.linalg and jax.scipy.linalg that use LAPACK, such as solve, qr and eigh",
        )
    return exported


def call_exported(tf: Any, exported: jax.export.Exported, tensors: Sequence[Any], reader: Reader) -> list[Any]:
    """The outputs of an exported function as TensorFlow operations; TensorFlow writes platforms in capitals.

    The calling convention is the version that the reader supports. Versions 9 and 10 added side effects and partitions
    to version 8. These functions have neither: callbacks raise, and there is one device.

    Args:
        tf: TensorFlow.
        exported: the function.
        tensors: its arguments, flat, in the order of its own flattening.
        reader: the reader that will run them.
    """
    if not exported.out_avals:
        return []
    xla = importlib.import_module("tensorflow.compiler.tf2xla.python.xla")
    outputs = xla.call_module(
        [tensors[index] for index in exported.module_kept_var_idx],
        version=min(exported.calling_convention_version, reader.calling_convention),
        module=serialize_for(reader.stablehlo, exported.mlir_module_serialized),
        Tout=[tf.as_dtype(aval.dtype) for aval in exported.out_avals],
        Sout=[_open_shape(aval) for aval in exported.out_avals],
        platforms=[platform.upper() for platform in exported.platforms],
        disabled_checks=[str(check) for check in exported.disabled_safety_checks],
    )
    return list(outputs)


def _open_shape(aval: Any) -> tuple[int | None, ...]:
    """The shape of an output, with ``None`` for every size that is not fixed."""
    return tuple(size if isinstance(size, int) else None for size in aval.shape)
