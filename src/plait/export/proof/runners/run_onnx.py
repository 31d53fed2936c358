"""Run an ONNX file on the inputs of a folder, with ONNX Runtime alone: MODEL FOLDER SIGNATURE."""

import sys
from pathlib import Path

import onnxruntime

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

path, folder = sys.argv[1:3]
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
given = [each.name for each in session.get_inputs()]
names = []
for output in session.get_outputs():
    state = output.name.removesuffix("_next")
    names.append(state if state in given else output.name)
run_all(folder, lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)), given)
