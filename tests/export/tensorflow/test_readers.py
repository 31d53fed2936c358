"""Which TensorFlow reads what, and SavedModels for older ones. (rule E42)"""

import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError
from plait.export import save, validate_export
from plait.export.tensorflow.portable import current_version, is_older
from plait.export.tensorflow.readers import TENSORFLOW, Reader, installed_tensorflow, reader_of

OLDER = os.environ.get("PLAIT_OLDER_TENSORFLOW", "").split()  # interpreters that the nox session older-tensorflow names


def test_a_release_of_tensorflow_or_a_version_of_stablehlo_names_a_reader():
    assert reader_of("tensorflow==2.16") == reader_of("tensorflow 2.16.2") == Reader("0.17.7", 9)
    assert reader_of("tensorflow==2.99") == TENSORFLOW[2, 21]
    assert reader_of("1.9.0") == Reader("1.9.0", 9)  # TensorFlow 2.19 is the oldest that reads it
    assert reader_of("1.10.0") == Reader("1.10.0", 10)
    assert reader_of(current_version()).stablehlo == current_version()


@pytest.mark.parametrize(
    "target", ["tensorflow==2.13", "tensorflow", "2.16", "99.0.0", "one", "1.9", "tensorflow>=2.16"]
)
def test_other_targets_are_refused_by_name(target):
    with pytest.raises(ArgumentError, match=f"target='{target}'"):
        reader_of(target)


def test_the_table_is_in_order():
    rows = list(TENSORFLOW.values())
    assert all(is_older(a.stablehlo, b.stablehlo) for a, b in itertools.pairwise(rows))
    assert sorted(row.calling_convention for row in rows) == [row.calling_convention for row in rows]


@pytest.mark.oracle
def test_the_installed_tensorflow_says_what_the_table_says():
    tf = pytest.importorskip("tensorflow")
    release = tuple(map(int, tf.__version__.split(".")[:2]))
    if release not in TENSORFLOW:
        pytest.skip(f"TensorFlow {tf.__version__} is newer than the table")
    assert installed_tensorflow() == TENSORFLOW[release]


class Scores(plait.Module):
    """A convolution, a composite (``top_k``), and a choice of platform: what older readers stumbled over."""

    def __init__(self):
        rngs = plait.Rngs(0)
        self.conv = plait.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = plait.LayerNorm(4, rngs=rngs)
        self.head = plait.Linear(64, 16, rngs=rngs)

    def __call__(self, x):
        x = plait.gelu(self.norm(plait.max_pool(self.conv(x), (2, 2), (2, 2))))
        values, places = jax.lax.top_k(self.head(x.reshape(x.shape[0], -1)), 3)
        return {"values": values, "places": places}


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("python", OLDER or [pytest.param("", marks=pytest.mark.skip("nox -s older-tensorflow"))])
def test_a_savedmodel_for_an_older_tensorflow_runs_there(tmp_path, python):
    """In an environment that holds this release of TensorFlow, and neither JAX nor plait."""
    pytest.importorskip("tensorflow")
    release = next(part for part in python.split(os.sep) if part.startswith("tensorflow-")).removeprefix("tensorflow-")
    model = Scores()
    path = save(
        model, tmp_path / "m", inputs=("batch", 8, 8, 1), formats=["saved_model"], target=f"tensorflow=={release}"
    )["saved_model"]
    inputs = [np.random.default_rng(n).normal(size=(n, 8, 8, 1)).astype(np.float32) for n in (1, 5)]
    outputs = [{k: np.asarray(v) for k, v in model(jnp.asarray(x)).items()} for x in inputs]
    report = validate_export("saved_model", path, inputs, outputs, python=python)
    assert report.passed, report


def versions_of(path):
    """The StableHLO versions and the calling conventions of all functions in a SavedModel."""
    proto = pytest.importorskip("tensorflow.core.protobuf.saved_model_pb2").SavedModel()
    proto.ParseFromString((path / "saved_model.pb").read_bytes())
    nodes = [node for graph in proto.meta_graphs for each in graph.graph_def.library.function for node in each.node_def]
    calls = [node.attr for node in nodes if node.op == "XlaCallModule"]
    return frozenset((call["module"].s.split(b"\x00")[0], call["version"].i) for call in calls)


@pytest.mark.slow
@pytest.mark.oracle
def test_e42_both_doors_write_for_the_same_reader(tmp_path):
    """E42: methods of a JaxModule and their gradients too."""
    tf = pytest.importorskip("tensorflow")
    from plait.export import ExportManager, JaxModule, ServingConfig

    found = {}
    for target in (None, "tensorflow==2.14"):
        params, apply = {"w": jnp.ones((2, 3))}, lambda params, x: x @ params["w"]
        one = save((params, apply), tmp_path / f"one {target}", inputs=(4, 2), formats="saved_model", target=target)
        module = JaxModule(params, apply, trainable=True, target=target)
        module.methods[module.DEFAULT_METHOD_KEY](tf.ones((4, 2)))
        config = ServingConfig("serve", [tf.TensorSpec((4, 2))])
        ExportManager(module, [config]).save(tmp_path / f"other {target}")
        found[target] = versions_of(one["saved_model"])
        assert versions_of(tmp_path / f"other {target}") == found[target]
    assert found[None] != found["tensorflow==2.14"]


@pytest.mark.oracle
def test_e42_a_target_of_the_other_door_is_refused_by_name():
    """E42."""
    pytest.importorskip("tensorflow")
    from plait.export import JaxModule

    with pytest.raises(ArgumentError, match=r"target='tensorflow==2\.13'"):
        JaxModule({"w": jnp.ones(2)}, lambda params, x: x * params["w"], target="tensorflow==2.13")
