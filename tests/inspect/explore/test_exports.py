"""Exports in every format: names, shapes, dtypes, bytes, and the values where the format's own library reads them. (W8)

Each is read by its library without running anything in it. (W9)
"""

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.inspect.explore.description import description
from plait.inspect.explore.outline import LEAF
from plait.inspect.explore.page import explore
from plait.inspect.explore.stored import outline_of_file
from tests.commands import plait_command


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.layers = [plait.Linear(4, 8, rngs=rngs), plait.Linear(8, 2, rngs=rngs)]
        self.layers[0].bias[...] = jnp.array([0, 1, 2, 3, 4, 5, 6, jnp.nan], jnp.float32)

    def __call__(self, x):
        return self.layers[1](plait.relu(self.layers[0](x)))


def arrays(net):
    """The model's arrays by path."""
    return {path: np.asarray(variable.get_raw_value()) for path, variable in plait.state(net).flat_state()}


def leaves(outline):
    return {entry.path: entry for entry in outline.entries if entry.role == LEAF}


def statistics_of(outline):
    """What the page says of each array."""
    made = description([outline])["nodes"]
    return {entry.path: node["sides"][0] for entry, node in zip(outline.entries, made, strict=True)}


def saved(folder, format):
    return plait.export.save(Net(), folder, inputs=("batch", 4), formats=[format])[format]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("bundle"), "stablehlo")


def check(outline, title):
    """Names, shapes, dtypes, bytes, values and statistics are those of the model."""
    assert outline.origin == title
    found, shown, expected = leaves(outline), statistics_of(outline), arrays(Net())
    assert expected.keys() <= found.keys()
    for path, array in expected.items():
        entry = found[path]
        assert (entry.shape, entry.dtype, entry.bytes) == (array.shape, array.dtype.name, array.nbytes)
        np.testing.assert_array_equal(entry.read(), array)
        assert shown[path]["statistics"]["nans"] == np.isnan(array).sum()
        assert sum(shown[path]["histogram"]["counts"]) == np.isfinite(array).sum()
    (call,) = outline.entries[0].calls
    assert [each.split(": ")[1].partition("[")[0] for each in (*call.inputs, *call.outputs)] == ["float32"] * 2


def check_no_difference(page, bundle, other):
    """An export beside the bundle of the same model: the same arrays at the same paths."""
    outlines = [outline_of_file(bundle), outline_of_file(other)]
    changes = {node["step"]: node.get("changes") for node in description(outlines)["nodes"] if node.get("changes")}
    assert all(change == ["added"] for change in changes.values())  # constants that only one format has
    assert explore(bundle, other=other, to=page).is_file()


# ONNX -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def onnx():
    return pytest.importorskip("onnx")


def onnx_model(onnx, weights):
    """A file with these initializers, as any writer of ONNX makes it."""
    value = onnx.helper.make_tensor_value_info
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    ends = [value(name, onnx.TensorProto.FLOAT, ["batch", 2]) for name in ("x", "y")]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "main", ends[:1], ends[1:], tensors)
    return onnx.helper.make_model(graph, producer_name="elsewhere", producer_version="1")


WEIGHTS = {
    "net.layers.0.kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "net.half": np.ones(4, jnp.bfloat16),
    "steps": np.array(7, np.int64),
    "steps.more": np.ones(2, np.uint8),
    "words": np.array([True, False]),
}


@pytest.mark.parametrize("external", [False, True], ids=["inside", "beside"])
def test_initializers_of_onnx_are_read(onnx, tmp_path, external):
    options = {"save_as_external_data": True, "size_threshold": 0, "location": "weights.bin"} if external else {}
    onnx.save_model(onnx_model(onnx, WEIGHTS), str(tmp_path / "model.onnx"), **options)
    assert (tmp_path / "weights.bin").exists() == external
    outline = outline_of_file(tmp_path / "model.onnx")
    found = leaves(outline)
    kernel, half, steps, more, words = WEIGHTS.values()
    expected = {
        ("net", "layers", 0, "kernel"): kernel,
        ("net", "half"): half,
        ("steps",): steps,
        ("steps.more",): more,
        ("words",): words,
    }
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        entry = found[path]
        assert (entry.shape, entry.dtype, entry.bytes) == (array.shape, array.dtype.name, array.nbytes)
        np.testing.assert_array_equal(entry.read(), array)
    (call,) = outline.entries[0].calls
    assert (call.method, call.inputs, call.outputs) == ("main", ("x: float32[batch, 2]",), ("y: float32[batch, 2]",))
    assert outline.facts["elsewhere"] == "1"


@pytest.mark.parametrize("location", ["absent.bin", "../secret.bin", "short.bin"])
def test_values_that_lie_elsewhere_are_refused(onnx, tmp_path, location):
    """W9: not in the file's folder, or not whole."""
    model = onnx_model(onnx, {"kernel": np.ones(4, np.float32)})
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    (folder / "short.bin").write_bytes(bytes(8))
    (tensor,) = model.graph.initializer
    onnx.external_data_helper.set_external_data(tensor, location, length=16)
    tensor.ClearField("raw_data")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(plait.errors.ExportError, match=r"cannot be read\n +at +\S*model\.onnx"):
        explore(folder / "model.onnx", to=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.oracle
def test_onnx_as_plait_writes_it(onnx, bundle, tmp_path):
    pytest.importorskip("jax2onnx")
    place = saved(tmp_path / "export", "onnx")
    check(outline_of_file(place), "ONNX")
    check_no_difference(tmp_path / "page.html", bundle, place)


# TensorFlow's formats -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.oracle
def test_saved_models_are_read_and_not_loaded(bundle, tmp_path, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    place = saved(tmp_path / "export", "saved_model")
    monkeypatch.setattr(tf.saved_model, "load", None)
    check(outline_of_file(place), "TensorFlow SavedModel")
    check_no_difference(tmp_path / "page.html", bundle, place)
    (place / "variables" / "variables.data-00000-of-00001").write_bytes(bytes(10))
    with pytest.raises(plait.errors.ExportError, match=r"cannot be read\n +at +\S*saved_model"):
        explore(place, to=tmp_path / "damaged.html")


@pytest.mark.slow
@pytest.mark.oracle
def test_saved_models_of_other_programs(tmp_path):
    """Variables have the names they were made with, or their places where two have one name."""
    tf = pytest.importorskip("tensorflow")
    module = tf.Module()
    module.parts = [tf.Variable([1.0, 2.0], name="same"), tf.Variable(tf.ones((2, 2), tf.bfloat16), name="same")]
    tf.saved_model.save(module, str(tmp_path / "two"))
    found = leaves(outline_of_file(tmp_path / "two"))
    assert {path: (entry.shape, entry.dtype) for path, entry in found.items()} == {
        ("parts/0",): ((2,), "float32"), ("parts/1",): ((2, 2), "bfloat16"),
    }  # fmt: skip
    tf.saved_model.save(tf.Module(), str(tmp_path / "none"))
    assert leaves(outline_of_file(tmp_path / "none")) == {}


@pytest.mark.slow
@pytest.mark.oracle
def test_constants_of_litert_are_read_by_the_names_that_the_file_has(bundle, tmp_path):
    """W8: the converter renames, and may transpose, what a kernel was."""
    pytest.importorskip("tensorflow")
    place = saved(tmp_path / "export", "litert")
    outline = outline_of_file(place)
    assert outline.origin == "LiteRT"
    found = leaves(outline)
    assert all(len(path) == 1 for path in found)
    stored = [entry.read() for entry in found.values()]
    for path, array in arrays(Net()).items():
        assert any(sorted(each.ravel()) == sorted(array.ravel()) for each in stored if not np.isnan(array).any()) or (
            path == ("layers", 0, "bias")
        )
    assert all(entry.bytes == each.nbytes for entry, each in zip(found.values(), stored, strict=True))
    (call,) = outline.entries[0].calls
    assert call.inputs == ("x: float32[?, 4]",)
    whole = place.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 8):  # TensorFlow ended the process for some
        place.write_bytes(whole[:length])
        with pytest.raises(plait.errors.ExportError, match=r"cannot be read\n +at +\S*model\.tflite"):
            outline_of_file(place)


# Any format, any two --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_of_a_run_is_compared_with_an_export_of_its_model(bundle, tmp_path):
    """W11: the export's arrays are shown where the checkpoint has the model; its other arrays stay."""
    net = Net()
    moments = {"mu": plait.state(net), "nu": plait.state(net)}
    net.layers[1].kernel[...] = net.layers[1].kernel.value * 2
    plait.checkpoint.save(tmp_path / "run", {"moments": moments, "model": net}, step=3)
    done = plait_command("explore", str(tmp_path / "run"), str(bundle), "--output", "page.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    shown = described_pair(tmp_path / "run", bundle, tmp_path / "page.html")
    assert shown["model.layers[0].kernel"] == []
    assert shown["model.layers[1].kernel"] == ["values"]
    assert shown["moments.mu.layers[1].kernel"] == ["removed"]
    for other in (bundle, Net()):
        turned = described_pair(other, tmp_path / "run", tmp_path / "page.html")
        assert turned["model.layers[1].kernel"] == ["values"]
        assert turned["moments.nu.layers[1].kernel"] == ["added"]


def test_files_of_other_models_stay_where_they_are(bundle, tmp_path):
    plait.checkpoint.save(tmp_path / "other", {"model": plait.Linear(3, 3, rngs=plait.Rngs(0))}, step=1)
    shown = described_pair(tmp_path / "other", bundle, tmp_path / "page.html")
    assert (shown["model.kernel"], shown["layers[0].kernel"]) == (["removed"], ["added"])


def described_pair(first, second, page):
    """What the page says differs, by path."""
    import json
    import re

    text = explore(first, other=second, to=page).read_text()
    data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    paths: list[str] = []
    for node in data["nodes"]:
        paths.append((paths[node["parent"]] if "parent" in node else "") + node["step"])
    return {path.removeprefix("."): node.get("changes", []) for path, node in zip(paths, data["nodes"], strict=True)}
