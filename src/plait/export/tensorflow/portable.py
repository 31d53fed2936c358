"""StableHLO written in the version that its reader understands.

``jax.export`` serialises StableHLO for readers that are at most a few weeks older than JAX. A TensorFlow release is
often older than that, and then a SavedModel, correct in itself, fails when it is loaded or run:

    unregistered operation 'vhlo.composite_v2' found in dialect ('vhlo')
    failed to deserialize portable artifact using StableHLO_v1.13.7

The reader isn't asked by JAX, but it can be (``readers.py``). So the module is read back with JAX's library, and
written again for the smaller of the two versions. StableHLO promises that a reader understands whatever was written for
its version, and an operation that the older version cannot express is an error here, at writing, not at the reader's.

Two things need more than another number. Where an operation comes from (file, lines and columns) is written in a way
that readers before StableHLO 1.9 stumble over: ``unknown attribute code: 22``. They get modules without such places.
And one kind of operation: a *composite* (``top_k``, for example) is a call with a name that
compilers may recognise; its meaning is a private function of the same module. TensorFlow refines free sizes by
following calls, and does not follow composites, so a model with a free batch size and a composite would fail when it
is run. Composites are therefore turned into the calls they stand for. Nothing is lost but the hint.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo as _dialect

from ...errors import ExportError

PLACES_SINCE = "1.9.0"  # TensorFlow 2.19 has 1.9.1 and reads ranges of lines, 2.18 has 1.7.3 and does not

# Rejected: patching the version that jax.export asks for. The constant is private and is chosen in compiled code, and
# a patch would hold for the whole process.


def current_version() -> str:
    """The StableHLO version that this JAX writes, such as ``"1.14.0"``."""
    return _dialect.get_current_version()


def is_older(version: str, other: str) -> bool:
    """Whether the first StableHLO version is older than the second."""
    return version != other and _dialect.get_smaller_version(version, other) == version


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
            _run(module, "func.func(stablehlo-legalize-composite-to-call)")
            if is_older(target, PLACES_SINCE):
                _run(module, "strip-debuginfo")
            return _dialect.serialize_portable_artifact(module, target)
        except (ValueError, ir.MLIRError) as error:
            raise ExportError(
                "the model cannot be written for the StableHLO version of its reader",
                found=f"JAX writes StableHLO {_dialect.get_current_version()}, and {error}",
                expected=f"a model whose operations exist in StableHLO {target}",
                do="install a newer version of the reader (for a SavedModel: TensorFlow), or an older JAX",
            ) from error


def _run(module: Any, passes: str) -> None:
    _dialect.register_stablehlo_passes()
    passmanager.PassManager.parse(f"builtin.module({passes})", module.context).run(module.operation)
