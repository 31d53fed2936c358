"""Converts StableHLO to the version that its reader supports.

``jax.export`` serialises StableHLO for readers that are at most a few weeks older than JAX. A TensorFlow release is
often older, and then a valid SavedModel fails when it is loaded or run:

    unregistered operation 'vhlo.composite_v2' found in dialect ('vhlo')
    failed to deserialize portable artifact using StableHLO_v1.13.7

JAX does not query the reader, but ``readers.py`` can. So the module is parsed with JAX's library, and serialised again
for the older of the two versions. StableHLO guarantees that a reader can read modules of its version. An operation that
the older version does not have raises an error here, when the file is written, and not in the reader.

Two things need more than another version number. First, source locations (file, lines and columns) have a form that
readers before StableHLO 1.9 reject: ``unknown attribute code: 22``. Their modules have no locations. Second, a
*composite* (``top_k``, for example) is a named call that compilers may recognise; its definition is a private function
of the same module. TensorFlow refines dynamic sizes through calls, but not through composites, so a model with a
dynamic batch size and a composite would fail at run time. Composites are therefore replaced by plain calls, which only
loses the hint.
"""

from __future__ import annotations

from typing import Any

from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import stablehlo as _dialect

from ...errors import ExportError

PLACES_SINCE = "1.9.0"  # TensorFlow 2.19 has 1.9.1 and reads ranges of lines, 2.18 has 1.7.3 and does not

# Rejected: patching the version that jax.export requests. The constant is private and chosen in compiled code, and a
# patch would affect the whole process.


def current_version() -> str:
    """The StableHLO version that this JAX writes, such as ``"1.14.0"``."""
    return _dialect.get_current_version()


def is_older(version: str, other: str) -> bool:
    """Whether the first StableHLO version is older than the second."""
    return version != other and _dialect.get_smaller_version(version, other) == version


def serialize_for(version: str, artifact: bytes) -> bytes:
    """Serialise ``artifact`` again, for readers of StableHLO ``version`` and newer.

    Args:
        version: ``"major.minor.patch"``. A version newer than JAX's own means JAX's own.
        artifact: the ``mlir_module_serialized`` of ``jax.export``.

    Raises:
        ExportError: the module uses a feature that ``version`` lacks.
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
