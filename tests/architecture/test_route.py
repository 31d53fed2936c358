"""How far a call travels: a reader follows it from file to file, so their number is what is limited."""

import ast
import json
import os
import subprocess
import sys

from tests.architecture.house import SOURCE
from tests.conformance.transforms import TRANSFORMS

PROGRAM = """
import json, os, sys
import jax.numpy as jnp
import plait

ROOT = os.path.dirname(plait.__file__) + os.sep


class Net(plait.Module):
    def __init__(self, seed):
        rngs = plait.Rngs(seed)
        self.a, self.b = plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 1, rngs=rngs)
        self.count = plait.Variable(jnp.zeros(()))


def step(model, x):
    model.count[...] += 1
    return model.count[...] + x.sum()


def body(model, x):
    model.count[...] += x
    return model, model.count[...]


def way(call):
    files = []
    sys.setprofile(lambda frame, event, _: files.append(frame.f_code.co_filename) if event == "call" else None)
    call()
    sys.setprofile(None)
    files = [file for file in files if file.startswith(ROOT)]
    return len({*files}), sum(a != b for a, b in zip(files, files[1:]))


jitted = plait.jit(step)
grad = plait.grad(lambda model, x: model.a.kernel[...].sum() * x.sum())
scan = plait.scan(body, in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0))
x = jnp.ones((4, 2))
plait.jit(lambda model: 0)(Net(1)), grad(Net(2), x), scan(Net(3), jnp.ones(2)), plait.split(Net(4))
model = Net(0)
calls = {
    "split": lambda: plait.split(model),
    "jit": lambda: jitted(model, x),
    "grad": lambda: grad(model, x),
    "scan": lambda: scan(model, jnp.ones(3)),
}
found = {name: way(call) for name, call in calls.items()}
jitted(model, x)
print(json.dumps({**found, "steady jit": way(lambda: jitted(model, x))}))
"""
# Files entered, and switches from one to another.
MOST = {"split": (12, 60), "jit": (26, 310), "grad": (26, 200), "scan": (22, 90), "steady jit": (1, 0)}


def test_a_call_enters_few_files():
    own = {**os.environ, "PLAIT_CHECK_DISPATCH": "0"}  # in the checking mode, each call is also walked
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=own)
    found = json.loads(done.stdout)
    assert {name: way for name, way in found.items() if any(a > b for a, b in zip(way, MOST[name], strict=True))} == {}


def test_the_heart_knows_no_transform_by_its_name():
    """What differs between transforms is in their own files (``core/transform.py``)."""
    names, found = {transform.name for transform in TRANSFORMS} - {"jit"}, []
    for file in [*SOURCE.glob("core/**/*.py"), *SOURCE.glob("transforms/call/*.py")]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            texts = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            texts += node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else []
            texts += node.keys if isinstance(node, ast.Dict) else []
            found += [f"{file.name}:{each.lineno}" for each in texts if getattr(each, "value", None) in names]
    assert found == []
