"""Run a LiteRT file on the inputs of a folder, with its interpreter alone: MODEL FOLDER SIGNATURE."""

import os
import sys
import warnings
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
try:
    from ai_edge_litert.interpreter import Interpreter  # pyright: ignore[reportMissingImports]
except ImportError:
    import tensorflow as tf

    Interpreter = tf.lite.Interpreter

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

path, folder, name = sys.argv[1:4]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TensorFlow's interpreter says that it has moved
    interpreter = Interpreter(model_path=path)
    run = interpreter.get_signature_runner(name or None)
run_all(folder, lambda inputs: run(**inputs), list(run.get_input_details()))
