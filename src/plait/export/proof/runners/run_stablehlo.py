"""Run a StableHLO bundle on the inputs of a folder, with JAX and the bundle's loader alone: MODEL FOLDER SIGNATURE."""

import runpy
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from exchange import run_all  # pyright: ignore[reportMissingImports]

path, folder, name = sys.argv[1:4]
loader = runpy.run_path(str(Path(__file__).parents[2] / "formats" / "stablehlo_loader.py"))
apply = loader["load"](path, name or None)


def call(inputs):
    outputs = apply(**inputs)
    outputs = outputs if isinstance(outputs, dict) else {"y": outputs}
    return {key: np.asarray(y) for key, y in outputs.items()}


run_all(folder, call, [entry["name"] for entry in apply.signature["inputs"]])
