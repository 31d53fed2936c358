"""Run an ONNX file on the inputs of a folder, with ONNX Runtime alone: MODEL FOLDER SIGNATURE."""

import sys
from pathlib import Path

import onnxruntime

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

path, folder = sys.argv[1:3]
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
names = [output.name.removesuffix("_next") for output in session.get_outputs()]
run_all(
    folder,
    lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)),
    [each.name for each in session.get_inputs()],
)
