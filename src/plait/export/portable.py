"""StableHLO written in the version that its reader understands.

``jax.export`` serialises StableHLO for readers that are at most a few weeks older than JAX. A TensorFlow release is
often older than that, and then a SavedModel, correct in itself, fails when it is loaded or run:

    unregistered operation 'vhlo.composite_v2' found in dialect ('vhlo')
    failed to deserialize portable artifact using StableHLO_v1.13.7

The reader isn't asked by JAX, but it can be: TensorFlow carries the StableHLO library it was built with, and that
library tells its version. So the module is read back with JAX's library, and written again for the smaller of the two
versions. StableHLO promises that a reader understands whatever was written for its version, and an operation that the
older version cannot express is an error here, at writing, not at the reader's.

One kind of operation needs more than another number. A *composite* (``top_k``, for example) is a call with a name that
compilers may recognise; its meaning is a private function of the same module. TensorFlow refines free sizes by
following calls, and does not follow composites, so a model with a free batch size and a composite would fail when it
is run. Composites are therefore turned into the calls they stand for. Nothing is lost but the hint.
"""

from __future__ import annotations

import importlib
from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo as _dialect

from ..errors import ArgumentError, ExportError
from .dependencies import require

# Rejected: patching the version that jax.export asks for. The constant is private and is chosen in compiled code, and
# a patch would hold for the whole process.


def tensorflow_version() -> str:
    """The StableHLO version that the installed TensorFlow reads, such as ``"1.13.7"``.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportError: this TensorFlow cannot be asked.
    """
    tensorflow = require("tensorflow", extra="tensorflow", purpose="to write a SavedModel")
    try:
        reader = importlib.import_module("tensorflow.compiler.mlir.stablehlo.stablehlo")
        return reader.get_current_version()
    except (ImportError, AttributeError) as error:
        raise ExportError(
            "TensorFlow does not tell which StableHLO version it reads",
            found=f"TensorFlow {tensorflow.__version__}: {error}",
            expected="a TensorFlow with tensorflow.compiler.mlir.stablehlo",
            do="pip install 'plait[tensorflow]'",
        ) from error


def checked_version(target: str) -> str:
    """A StableHLO version that was named, if JAX can write it.

    Raises:
        ArgumentError: it is no version, or newer than what this JAX writes.
    """
    current = _dialect.get_current_version()
    is_version = target.count(".") == 2 and all(part.isdecimal() for part in target.split("."))
    if is_version and _dialect.get_smaller_version(target, current) == target:
        return target
    raise ArgumentError(
        "this target is no StableHLO version that can be written",
        found=f"target={target!r}",
        expected=f"'major.minor.patch', at most {current}",
        do="ask the reader: in TensorFlow, tensorflow.compiler.mlir.stablehlo.stablehlo.get_current_version()",
    )


def serialize_for(version: str, artifact: bytes) -> bytes:
    """The portable artifact ``artifact``, written again for readers of StableHLO ``version`` and newer.

    Args:
        version: ``"major.minor.patch"``. A version newer than JAX's own means JAX's own.
        artifact: what ``jax.export`` calls ``mlir_module_serialized``.

    Raises:
        ExportError: the module uses something that ``version`` cannot express.
    """
    target = _dialect.get_smaller_version(version, _dialect.get_current_version())
    with ir.Context() as context:
        _dialect.register_dialect(context)
        try:
            module = _dialect.deserialize_portable_artifact(context, artifact)
            _composites_to_calls(module)
            return _dialect.serialize_portable_artifact(module, target)
        except (ValueError, ir.MLIRError) as error:
            raise ExportError(
                "the model cannot be written for the StableHLO version of its reader",
                found=f"JAX writes StableHLO {_dialect.get_current_version()}, and {error}",
                expected=f"a model whose operations exist in StableHLO {target}",
                do="install a newer version of the reader (for a SavedModel: TensorFlow), or an older JAX",
            ) from error


def _composites_to_calls(module: Any) -> None:
    _dialect.register_stablehlo_passes()
    pipeline = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"
    passmanager.PassManager.parse(pipeline, module.context).run(module.operation)
