"""Models of more than 2 GB, in every format that can hold them. (rule E45)"""

import os
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ExportError
from plait.export import describe_exports, prove, save

GIB = 2**30
WIDTH, ROWS = 1_024, 200_000  # a table of 0.76 GiB; three of them

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.oracle,
    pytest.mark.skipif(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") < 14 * GIB, reason="needs 14 GiB of memory"
    ),
]


class Tables(plait.Module):
    """Three tables whose rows are added: few operations and many weights."""

    def __init__(self):
        rows = jnp.arange(ROWS, dtype=jnp.float32)[:, None] * 1e-5
        self.tables = plait.List([plait.Param(jnp.broadcast_to(rows + n, (ROWS, WIDTH)) + 0) for n in range(3)])

    def __call__(self, tokens):
        return sum(jnp.take(table[...], tokens, axis=0, mode="clip") for table in self.tables)


@pytest.fixture(scope="module")
def model():
    return Tables()


@pytest.mark.parametrize("kind", ["stablehlo", "saved_model", "onnx"])
def test_a_model_of_more_than_two_gigabytes_is_written_and_runs(tmp_path, model, kind):
    """The program stays small (ask 16), and each weight is stored once."""
    pytest.importorskip({"stablehlo": "safetensors", "saved_model": "tensorflow", "onnx": "jax2onnx"}[kind])
    if shutil.disk_usage(tmp_path).free < 6 * GIB:
        pytest.skip("needs 6 GiB of disk")
    spec = plait.export.InputSpec(("batch",), "int32", "tokens")
    place = save(model, tmp_path / "m", inputs=spec, formats=[kind])[kind]
    tokens = np.asarray([0, 7, ROWS - 1], np.int32)
    expected = np.asarray(model(tokens))
    (report,), _ = prove(place, inputs={"tokens": tokens}, reference=lambda tokens: expected)
    assert report.passed, report
    weights = 3 * ROWS * WIDTH * 4
    (described,) = describe_exports(place)
    assert weights <= described.size < weights + 5_000_000
    shutil.rmtree(tmp_path / "m")


def test_litert_refuses_before_writing_and_names_its_limit(tmp_path, model):
    pytest.importorskip("tensorflow")
    spec = plait.export.InputSpec(("batch",), "int32", "tokens")
    with pytest.raises(ExportError, match=r"(?s)2,457,600,000 bytes.*at most 2,146,435,072 bytes"):
        save(model, tmp_path / "m", inputs=spec, formats=["litert"])
    assert list(tmp_path.iterdir()) == []
