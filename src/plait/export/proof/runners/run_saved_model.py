"""Run a signature of a SavedModel on the inputs of a folder, with TensorFlow alone: MODEL FOLDER SIGNATURE."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

path, folder, name = sys.argv[1:4]
loaded = tf.saved_model.load(path)  # kept: it owns the variables
signature = loaded.signatures[name or next(iter(loaded.signatures))]


def call(inputs):
    outputs = signature(**{key: tf.constant(array) for key, array in inputs.items()})
    return {key: y.numpy() for key, y in outputs.items()}


run_all(folder, call, list(signature.structured_input_signature[1]))
