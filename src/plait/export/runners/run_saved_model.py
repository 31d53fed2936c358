"""Run a SavedModel's default signature on ``x_*.npy`` of a folder, with TensorFlow alone: MODEL FOLDER."""

import os
import sys
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

path, exchange = sys.argv[1], Path(sys.argv[2])
signature = tf.saved_model.load(path).signatures["serving_default"]
((name, spec),) = signature.structured_input_signature[1].items()
for file in sorted(exchange.glob("x_*.npy")):
    x = np.load(file)
    if x.dtype.kind == "V":  # .npy files forget the name of bfloat16 and its like
        x = x.view(spec.dtype.as_numpy_dtype)
    (y,) = signature(**{name: tf.constant(x)}).values()
    np.save(exchange / file.name.replace("x_", "y_", 1), y.numpy())
