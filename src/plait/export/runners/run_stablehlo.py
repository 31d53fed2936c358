"""Run a StableHLO folder on ``x_*.npy`` of a folder, with JAX and the stand-alone loader alone: MODEL FOLDER."""

import runpy
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

path, exchange = Path(sys.argv[1]), Path(sys.argv[2])
loader = runpy.run_path(str(Path(__file__).parent.parent / "stablehlo_loader.py"))
apply = loader["load"](path)
(signature,) = loader["read_manifest"](path)["signature"]["inputs"]
for file in sorted(exchange.glob("x_*.npy")):
    x = np.load(file)
    if x.dtype.kind == "V":  # .npy files forget the name of bfloat16 and its like
        x = x.view(jnp.dtype(signature["dtype"]))
    np.save(exchange / file.name.replace("x_", "y_", 1), np.asarray(apply(x)))
