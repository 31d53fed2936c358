"""StableHLO for older readers."""

import jax
import jax.export
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from plait.errors import ExportError
from plait.export.tensorflow.portable import serialize_for


def artifact(function, *shape, dtype=jnp.float32):
    sizes = jax.export.symbolic_shape(", ".join(map(str, shape)))
    exported = jax.export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))
    return exported(jax.ShapeDtypeStruct(sizes, dtype)).mlir_module_serialized


def version_of(portable: bytes) -> str:
    """The version that a portable artifact says it was written for."""
    return portable[: portable.index(b"\0")].rpartition(b"StableHLO_v")[2].decode()


def text_of(portable: bytes) -> str:
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        return str(stablehlo.deserialize_portable_artifact(context, portable))


def test_an_artifact_is_written_for_the_version_asked_for():
    assert version_of(serialize_for("1.9.0", artifact(jnp.sin, "batch", 3))) == "1.9.0"


def test_a_reader_newer_than_jax_gets_the_version_of_jax():
    own = artifact(jnp.sin, "batch", 3)
    newest = version_of(serialize_for("999.0.0", own))
    assert tuple(map(int, newest.split("."))) >= tuple(map(int, version_of(own).split(".")))


def test_composites_become_calls():
    """Readers do not look for free sizes inside composites, so none may be left."""
    top = artifact(lambda x: jax.lax.top_k(x, 3)[0], "batch", 10)
    assert "stablehlo.composite" in text_of(top)
    assert "stablehlo.composite" not in text_of(serialize_for("1.9.0", top))


def test_what_an_old_version_cannot_express_is_an_error_that_names_the_version(capfd):
    float4 = artifact(lambda x: x.astype(jnp.float4_e2m1fn).astype(jnp.float32), 3)
    with pytest.raises(ExportError, match=r"expected +a model whose operations exist in StableHLO 1\.0\.0"):
        serialize_for("1.0.0", float4)
    capfd.readouterr()  # the compiler's own words
