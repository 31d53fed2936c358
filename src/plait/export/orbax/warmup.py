"""Warm-up examples: run through a signature before it is written, and saved for TensorFlow Serving."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ...errors import ExportError
from ...ground.dependencies import require
from ..program.checks import check_known

REQUESTS = Path("assets.extra", "tf_serving_warmup_requests")

Requests = list[tuple[str, dict[str, Any]]]


def run_examples(signatures: Mapping[str, Any], examples: Mapping[str, Sequence[Any]]) -> Requests:
    """Run each example through its signature, and return the examples by input name.

    Raises:
        ArgumentError: there are examples for an unknown signature.
        ExportError: an example fails.
    """
    message = "warmup_examples has an unknown signature"
    check_known(message, examples, sorted(signatures), "name the examples after a signature_key")
    return [
        (key, _run(key, index, signatures[key], example))
        for key, batches in examples.items()
        for index, example in enumerate(batches)
    ]


def _run(key: str, index: int, function: Any, example: Any) -> dict[str, Any]:
    """Run one example; its inputs by their names in the SavedModel."""
    tf = require("tensorflow", extra="tensorflow", purpose="to run warm-up examples")
    concrete = function.get_concrete_function() if hasattr(function, "get_concrete_function") else function
    by_position, by_keyword = concrete.structured_input_signature
    entries = dict(zip(concrete.function_type.parameters, by_position, strict=False)) | dict(by_keyword)
    inputs: dict[str, Any] = {}
    arguments = {}
    try:
        for parameter, value in _by_parameter(entries, example).items():
            specs, convert = entries[parameter], lambda spec, leaf: tf.convert_to_tensor(leaf, spec.dtype)
            arguments[parameter] = jax.tree_util.tree_map(convert, specs, value)
            inputs |= dict(zip(_names(specs), jax.tree_util.tree_leaves(arguments[parameter]), strict=True))
        function(**arguments)
    except Exception as error:
        raise ExportError(
            "a warm-up example fails",
            at=f"signature {key!r}, example {index}",
            found=f"{type(error).__name__}: {error}",
            expected=f"inputs that the signature takes: {', '.join(map(str, jax.tree_util.tree_leaves(entries)))}",
            do="correct the example; nothing was written",
        ) from error
    return inputs


def _names(specs: Any) -> list[str]:
    return [spec.name for spec in jax.tree_util.tree_leaves(specs)]


def _by_parameter(entries: Mapping[str, Any], example: Any) -> dict[str, Any]:
    """The example's value for each parameter of the signature.

    An example is a mapping from input names, a sequence of positional inputs, or one input.
    """
    if isinstance(example, Mapping) and set(example) <= set(_names(entries)):
        return {
            parameter: jax.tree_util.tree_map(lambda spec: example[spec.name], specs)
            for parameter, specs in entries.items()
            if not set(_names(specs)).isdisjoint(example)
        }
    values = example if isinstance(example, (list, tuple)) else [example]
    if len(values) > len(entries):
        raise TypeError(f"{len(values)} inputs instead of {len(entries)}")
    return dict(zip(entries, values, strict=False))


def write_requests(folder: Path, requests: Requests) -> None:
    """Write the requests where TensorFlow Serving looks for them, if its protos can be imported."""
    if not requests:
        return
    try:
        model = importlib.import_module("tensorflow_serving.apis.model_pb2")
        predict = importlib.import_module("tensorflow_serving.apis.predict_pb2")
        log = importlib.import_module("tensorflow_serving.apis.prediction_log_pb2")
    except ImportError as error:
        warnings.warn(
            f"{REQUESTS} was not written, since the protos of TensorFlow Serving cannot be imported ({error}); "
            "pip install tensorflow-serving-api",
            stacklevel=3,
        )
        return
    tf = require("tensorflow", extra="tensorflow", purpose="to write warm-up requests")
    (folder / REQUESTS).parent.mkdir()
    with tf.io.TFRecordWriter(str(folder / REQUESTS)) as writer:
        for key, inputs in requests:
            request = predict.PredictRequest(
                model_spec=model.ModelSpec(signature_name=key),
                inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()},
            )
            record = log.PredictionLog(predict_log=log.PredictLog(request=request))
            writer.write(record.SerializeToString())
