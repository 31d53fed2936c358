"""StableHLO folders."""

import importlib.metadata
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.errors import ExportError
from plait.export import InputSpec, load_stablehlo, save_stablehlo, validate_export
from plait.export.formats import stablehlo_loader
from tests.export.conv_net import IMAGES, inputs, log_probabilities, outputs, params


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("stablehlo") / "digits"
    save_stablehlo(log_probabilities, params(), path, input_spec=IMAGES)
    return path


def test_jax_without_plait_gives_the_same_values_at_every_batch_size(model):
    report = validate_export("stablehlo", model, inputs(), outputs(), tolerance=1e-5)
    assert report.passed, report


def test_load_stablehlo_gives_the_same_values_at_every_batch_size(model):
    apply = load_stablehlo(model)
    for x, y in zip(inputs(), outputs(), strict=True):
        np.testing.assert_allclose(apply(x), y, atol=1e-5)


def test_weights_are_stored_once_beside_the_program(model):
    stored = sum(array.nbytes for array in params().values())
    sizes = {file.name: file.stat().st_size for file in model.iterdir()}
    assert stored <= sizes["weights.safetensors"] < 1.1 * stored
    assert sizes["serving_default.jax_export"] < stored / 3


def test_the_manifest_describes_the_folder(model):
    manifest = json.loads((model / "manifest.json").read_text())
    assert (manifest["format"], manifest["format_version"]) == ("plait-stablehlo", 2)
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    assert manifest["versions"] == {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    (signature,) = manifest["signatures"].values()
    assert signature["calling_convention"] == jax.export.maximum_supported_calling_convention_version
    assert signature["inputs"] == [{"name": "x", "shape": ["batch", 8, 8, 1], "dtype": "float32"}]
    assert signature["outputs"] == [{"name": "y", "shape": ["batch", 10], "dtype": "float32"}]
    assert {weight["name"]: tuple(weight["shape"]) for weight in manifest["weights"]} == {
        name: array.shape for name, array in params().items()
    }
    assert set(manifest["files"]) | {"manifest.json"} == {file.name for file in model.iterdir()}


def test_the_folder_carries_its_loader(model):
    with open(stablehlo_loader.__file__, "rb") as source:
        assert (model / "load.py").read_bytes() == source.read()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "an incomplete manifest: FileNotFoundError"),
        ("{", "an incomplete manifest: JSONDecodeError"),
        ('{"format": "plait-stablehlo", "format_version": 1}', r"format \('plait-stablehlo', 1\), not"),
        ("{}", "an incomplete manifest: KeyError: 'format'"),
    ],
)
def test_a_folder_of_another_format_is_refused(tmp_path, text, reason):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ExportError, match=reason):
        load_stablehlo(tmp_path)


def test_every_dtype_and_shape_survives(tmp_path):
    weights = {
        "bfloat16": jnp.arange(3, dtype=jnp.bfloat16),
        "float8": jnp.ones(2, jnp.float8_e4m3fn),
        "flag": np.array([True, False]),
        "scalar": np.float32(2.5),
        "empty": np.zeros((0, 3), np.int8),
        "view": np.arange(6, dtype=np.uint16).reshape(2, 3).T,
    }
    save_stablehlo(lambda p, x: x, weights, tmp_path / "model", input_spec=("batch",))
    read = stablehlo_loader.read_safetensors(np.fromfile(tmp_path / "model" / "weights.safetensors", np.uint8), "w")
    assert set(read) == set(weights)
    for name, array in weights.items():
        assert read[name].dtype == array.dtype, name
        np.testing.assert_array_equal(read[name], np.asarray(array))


@pytest.mark.slow
def test_several_inputs_and_outputs_have_names(tmp_path):
    def both(p, a, b):
        return {"sum": a + b, "pair": (a * p, b)}

    specs = [InputSpec(("n",), name="a"), InputSpec(("n",), name="b")]
    save_stablehlo(both, np.float32(3), tmp_path / "m", input_spec=specs)
    apply = load_stablehlo(tmp_path / "m")
    a, b = np.float32([1, 2]), np.float32([3, 4])
    for found in (apply(a, b), apply(b=b, a=a), apply(a, b=b)):
        assert {name: y.tolist() for name, y in found.items()} == {
            "sum": [4, 6],
            "pair_0": [3, 6],
            "pair_1": [3, 4],
        }
    for args, named in (((a,), {}), ((a, b, b), {}), ((a,), {"c": b})):
        with pytest.raises(TypeError, match=r"takes the inputs \['a', 'b'\]"):
            apply(*args, **named)
    with pytest.raises(ValueError, match="'n'"):
        apply(a, np.float32([1, 2, 3]))
