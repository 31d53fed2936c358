"""Run an ONNX file on ``x_*.npy`` of a folder, with ONNX Runtime alone: MODEL FOLDER."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime

path, exchange = sys.argv[1], Path(sys.argv[2])
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
(argument,) = session.get_inputs()
for file in sorted(exchange.glob("x_*.npy")):
    (y,) = session.run(None, {argument.name: np.load(file)})
    np.save(exchange / file.name.replace("x_", "y_", 1), np.asarray(y))
