"""What is recorded of a call: its arrays, its static values, and its place among others."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.inspect.compare.calls import Call, Recorder, is_array_of_numbers, is_static, leaves_of, numpy_of, owner_of
from plait.inspect.compare.plait_runs import run_plait


@dataclasses.dataclass
class Given:
    x: Any
    more: Any


def test_leaves_have_dotted_names():
    """Of sequences, mappings, dataclasses and variables; the rest are leaves, a class of dataclasses too."""
    value = {"a": [1, (2.0, None)], 3: Given(plait.Param(jnp.ones(2)), Given)}
    found = dict(leaves_of(value))
    assert [*found] == ["a.0", "a.1.0", "a.1.1", "3.x", "3.more"]
    assert (found["a.0"], found["a.1.0"], found["a.1.1"], found["3.more"]) == (1, 2.0, None, Given)
    assert isinstance(found["3.x"], jax.Array)
    assert [*leaves_of(5)] == [("", 5)]


STATIC = (None, True, 1, 2.0, 3j, "text")
ARRAYS = (jnp.ones(2), np.ones(2, int), np.float32(1), np.bool_(1))
NEITHER = (object(), [1], b"bytes", np.array(["text"]), jax.random.key(0))


def test_a_leaf_is_static_an_array_or_neither():
    for leaf, static, array in [(s, True, False) for s in STATIC] + [(a, False, True) for a in ARRAYS]:
        assert (is_static(leaf), is_array_of_numbers(leaf), numpy_of(leaf) is not None) == (static, array, array)
    for leaf in NEITHER:
        assert (is_static(leaf), is_array_of_numbers(leaf), numpy_of(leaf)) == (False, False, None)


def test_a_traced_array_is_one_of_numbers_without_values():
    seen = []
    jax.jit(lambda x: seen.append((is_array_of_numbers(x), numpy_of(x))) or x)(jnp.ones(2))
    assert seen == [(True, None)]


class Wrapped:
    def __jax_array__(self):
        return jnp.arange(3)


def test_what_converts_to_an_array_is_one():
    np.testing.assert_array_equal(numpy_of(Wrapped()), [0, 1, 2])


def test_a_recorder_takes_down_arguments_outputs_and_times():
    recorder = Recorder(numpy_of)
    layer = plait.Dropout(0.5)

    def run():
        recorder.around(lambda: [jnp.ones(3), None], (("a", 0), ("b",)), "encode", layer, (jnp.zeros(1),), {})
        recorder.around(lambda: "no array", (("left", "out"),), "", layer, (), {})
        return {"y": jnp.ones(1)}

    assert recorder.around(run, ((),), "", layer, (jnp.ones(2), 3, object()), {"flag": True, "z": [jnp.ones(4)]})
    inner, whole = recorder.run("plait").calls
    assert (inner.path, inner.aliases, inner.method, inner.kind, inner.module) == (
        ("a", 0), (("a", 0), ("b",)), "encode", "Dropout", layer,
    )  # fmt: skip
    assert (inner.place, whole.place) == ("a[0].encode", "")
    assert [array.shape for array in inner.outputs.values()] == [(3,)]
    assert {name: array.shape for name, array in whole.inputs.items()} == {"0": (2,), "z.0": (4,)}
    assert whole.statics == {"1": 3, "flag": True}
    assert (whole.enter, inner.enter, inner.exit, whole.exit) == (1, 2, 3, 6)
    assert whole.encloses(inner)
    assert not inner.encloses(whole)
    assert not whole.encloses(whole)
    run = recorder.run("plait")
    assert (run.library, run.root, dict(run.unseen)) == ("plait", whole, {})


def test_a_model_without_arrays_is_recorded_all_the_same():
    recorder = Recorder(numpy_of)
    recorder.around(lambda: None, ((),), "", plait.Dropout(0.5), (), {})
    assert [call.outputs for call in recorder.calls] == [{}]


@pytest.mark.parametrize(("enter", "leave", "encloses"), [(1, 8, False), (2, 7, True), (2, 8, False), (1, 7, False)])
def test_a_call_encloses_those_between_its_start_and_its_end(enter, leave, encloses):
    outer, inner = (Call((), ((),), "", "", None, {}, {}, {}, *times) for times in ((1, 8), (enter, leave)))
    assert outer.encloses(inner) == encloses


def test_a_bound_method_belongs_to_its_model():
    layer = plait.Linear(2, 2, rngs=plait.Rngs(0))
    assert owner_of(layer.__call__) is layer
    assert owner_of(layer) is layer


class Coder(plait.Module):
    def __init__(self):
        self.inner = plait.Linear(2, 2, rngs=plait.Rngs(0))

    def __call__(self, x):
        return self.encode(x) * 2

    def encode(self, x):
        return self.inner(x)


@pytest.mark.parametrize(
    ("model", "methods"),
    [(Coder(), ["", "encode", ""]), (Coder().encode, ["", ""]), (Coder().__call__, ["", "encode", ""])],
    ids=["a model", "a method", "its call"],
)
def test_the_call_that_is_compared_is_recorded_once(model, methods):
    """The last of a run is the whole; another method of the root inside it is a call of its own."""
    calls = run_plait(model, (jnp.ones((1, 2)),), {}).calls
    assert [call.path for call in calls] == [("inner",), *[()] * (len(methods) - 1)]
    assert [call.method for call in calls] == methods
