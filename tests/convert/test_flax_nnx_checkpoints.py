"""A checkpoint that Flax NNX wrote with Orbax, in a process of its own, is read as the page for its users says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import plait

pytest.importorskip("flax")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
WRITER = """
import sys
import orbax.checkpoint
from flax import nnx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 1, rngs=rngs)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

net = Net(nnx.Rngs(0))
net.norm.mean[...] += 2
with orbax.checkpoint.StandardCheckpointer() as checkpointer:
    checkpointer.save(sys.argv[1], nnx.state(net))
"""


class Net(plait.Module):
    def __init__(self, rngs):
        self.layers = [plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 1, rngs=rngs)]
        self.norm = plait.BatchNorm(3, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)


@pytest.mark.slow
def test_a_checkpoint_of_flax_nnx_is_read_with_the_names_of_the_page(tmp_path):
    folder = tmp_path / "flax"
    subprocess.run([sys.executable, "-c", WRITER, str(folder)], check=True, capture_output=True)
    example = re.search(r"## A checkpoint that Flax wrote\n.*?```python no-run\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    model = Net(plait.Rngs(1))
    code = example[1].replace("flax/step-10", str(folder))
    exec(code, {"nnx": plait, "model": model})
    same = Net(plait.Rngs(0))  # the same seed gives the same values in both libraries
    assert plait.find_duplicates(model) == []
    assert (model.layers[1].kernel[...] == same.layers[1].kernel[...]).all()
    assert model.norm.mean[...].tolist() == [2.0, 2.0, 2.0]
