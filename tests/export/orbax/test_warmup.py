"""Warm-up examples, and the requests that TensorFlow Serving reads."""

import sys
import types

import jax.numpy as jnp
import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402  (comes with TensorFlow)

from plait.export import ExportManager, JaxModule, ServingConfig, TensorSpecWithDefault  # noqa: E402

pytestmark = pytest.mark.oracle

X = tf.TensorSpec((None, 2), tf.float32, name="x")
SCALE = tf.TensorSpec((1,), tf.float32, name="scale")
FILE = "assets.extra/tf_serving_warmup_requests"


@pytest.fixture
def manager():
    module = JaxModule(jnp.float32(2), lambda p, x: p * x, input_polymorphic_shape="b, 2")
    signature = [X, TensorSpecWithDefault(SCALE, [3.0])]
    return ExportManager(module, [ServingConfig("s", signature, lambda x, scale: x * scale)])


def test_e24_without_the_protos_examples_are_run_and_a_warning_says_that_no_file_was_written(manager, tmp_path):
    """E24."""
    with pytest.warns(UserWarning, match="tf_serving_warmup_requests was not written"):
        manager.save(tmp_path / "model", warmup_examples={"s": [{"x": [[1, 2]]}, [np.ones((3, 2)), [1.0]]]})
    assert tf.saved_model.contains_saved_model(str(tmp_path / "model"))
    assert not (tmp_path / "model" / FILE).exists()


@pytest.mark.parametrize(
    "example", [{"x": np.ones((1, 3))}, {"y": np.ones((1, 2))}, [np.ones((1, 2))] * 3, np.ones(2), "text"]
)
def test_e24_a_failing_example_aborts_the_save(manager, tmp_path, example):
    """E24."""
    with pytest.raises(RuntimeError, match=r"at +signature 's', example 1"):
        manager.save(tmp_path / "model", warmup_examples={"s": [np.ones((1, 2)), example]})
    assert list(tmp_path.iterdir()) == []


def test_e24_an_example_with_too_many_inputs_says_how_many(manager, tmp_path):
    """E24."""
    with pytest.raises(RuntimeError, match=r"found +TypeError: 3 inputs instead of 2"):
        manager.save(tmp_path / "model", warmup_examples={"s": [[np.ones((1, 2))] * 3]})


def test_e24_examples_for_another_signature_are_refused(manager, tmp_path):
    """E24."""
    with pytest.raises(ValueError, match=r"'other'\n.*'s'"):
        manager.save(tmp_path / "model", warmup_examples={"other": []})
    manager.save(tmp_path / "model", warmup_examples={"s": []})


MESSAGES = {  # name: fields of (number, name, type); the numbers are those of TensorFlow Serving's own protos
    "ModelSpec": [(1, "name", "string"), (3, "signature_name", "string")],
    "PredictRequest": [(1, "model_spec", "ModelSpec"), (2, "inputs", "map")],
    "PredictLog": [(1, "request", "PredictRequest")],
    "PredictionLog": [(6, "predict_log", "PredictLog")],
}


def serving_protos():
    """Messages with those fields of TensorFlow Serving's that matter here, since its package need not be there."""
    file = descriptor_pb2.FileDescriptorProto(name="serving_twin.proto", package="twin", syntax="proto3")
    file.dependency.append("tensorflow/core/framework/tensor.proto")
    field_type = descriptor_pb2.FieldDescriptorProto
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            new = message.field.add(name=field, number=number, label=field_type.LABEL_OPTIONAL)
            if kind == "string":
                new.type = field_type.TYPE_STRING
                continue
            new.type, new.type_name = field_type.TYPE_MESSAGE, f".twin.{kind}"
            if kind == "map":
                entry = message.nested_type.add(name="InputsEntry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=1, type=field_type.TYPE_STRING)
                value = entry.field.add(name="value", number=2, label=1, type=field_type.TYPE_MESSAGE)
                value.type_name = ".tensorflow.TensorProto"
                new.label, new.type_name = field_type.LABEL_REPEATED, ".twin.PredictRequest.InputsEntry"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"twin.{name}")) for name in MESSAGES}


def test_e24_with_the_protos_the_requests_are_written(manager, tmp_path, monkeypatch):
    """E24: one record for each example, with its inputs under their names."""
    protos = serving_protos()
    for module in ("model_pb2", "predict_pb2", "prediction_log_pb2"):
        monkeypatch.setitem(sys.modules, f"tensorflow_serving.apis.{module}", types.SimpleNamespace(**protos))
    monkeypatch.setitem(sys.modules, "tensorflow_serving", types.ModuleType("tensorflow_serving"))
    monkeypatch.setitem(sys.modules, "tensorflow_serving.apis", types.ModuleType("tensorflow_serving.apis"))
    manager.save(tmp_path / "model", warmup_examples={"s": [{"x": [[1, 2]]}, [np.ones((3, 2)), [4.0]]]})
    records = list(tf.data.TFRecordDataset(str(tmp_path / "model" / FILE)).as_numpy_iterator())
    requests = [protos["PredictionLog"].FromString(record).predict_log.request for record in records]
    assert [request.model_spec.signature_name for request in requests] == ["s", "s"]
    inputs = [{name: tf.make_ndarray(value).tolist() for name, value in request.inputs.items()} for request in requests]
    assert inputs == [{"x": [[1, 2]]}, {"x": [[1, 1]] * 3, "scale": [4]}]
