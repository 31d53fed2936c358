"""A program in two files, written anew for each edit, and what it computes. For ``test_stored.py``."""

from __future__ import annotations

import contextlib
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait

HELPER = """
import jax.numpy as jnp

FLAG = False
SCALE = {"by": @helper_scale@}


def bend(x):
    return jnp.@bend@(x) * SCALE["by"]


def offset():
    return 3.0 if FLAG else 0.0
"""

PROGRAM = """
import functools

import jax
import jax.numpy as jnp
import plait
import warm_helper
from warm_helper import bend

RATE = @global_number@
TABLE = (1.0, [2.0, {"x": @global_table@}])


def twice(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) * 2
    return wrapper


def plus_one(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args) + 1
    return wrapper


def scaled_by(number):
    def scaled(x):
        return x * number
    return scaled


close = scaled_by(@closure@)


@@decorators@
def inner(x, more=@default@, *, factor=@keyword_default@):
    return (x @operator@ more) * factor


@jax.jit
def compiled_before(x):
    return x + TABLE[1][1]["x"]


compiled_before(jnp.ones((3, 2)))


@jax.custom_jvp
def custom(x):
    return x * 1.5


@custom.defjvp
def custom_jvp(primals, tangents):
    return custom(*primals), tangents[0] * @custom_rule@


class Base(plait.Module):
    def scale(self, x):
        return x * @base_class@


class Block(Base):
    constant = @class_attribute@

    def __init__(self, width, mode, activation):
        self.w = plait.Param(jnp.full((width, width), 0.1, @dtype@))
        self.seen = plait.BatchStat(jnp.zeros(()))
        self.mode = mode
        self.activation = activation

    @property
    def more(self):
        return @property@

    def __call__(self, x):
        self.seen.value = self.seen.value + @written@
        x = self.activation(x @ self.w.value.astype(x.dtype)) + self.constant
        if self.mode == "double":
            x = x * 2
        return self.scale(x) + self.more


class Model(plait.Module):
    def __init__(self):
        self.blocks = plait.List([
            Block(2, @static_mode@, lambda x: x * @static_function@) for _ in range(@depth@)
        ])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return close(bend(inner(compiled_before(x)))) * jnp.asarray(RATE, x.dtype) + warm_helper.offset()


def loss(model, x):
    return custom(model(x)).sum()


def step(model, x, scale=@argument_default@):
    value, grads = plait.value_and_grad(loss)(model, x)
    for block, grad in zip(model.blocks, grads["blocks"].values()):
        block.w.value = block.w.value - (@rate@ * grad["w"].value).astype(block.w.value.dtype)
    return value * scale
"""

CHOICES = {
    "helper_scale": ["1.0", "0.5", "2.0"],
    "bend": ["tanh", "sin", "cos"],
    "global_number": ["1.0", "1.5", "jnp.float32(3.0)", "jnp.array([[2.0, 3.0]])"],
    "global_table": ["0.25", "0.75", "1"],
    "closure": ["1.0", "2.5", "3"],
    "decorators": ["twice\n@plus_one", "plus_one\n@twice", "twice", "plus_one"],
    "default": ["0.5", "0.25"],
    "keyword_default": ["1.0", "1.25"],
    "operator": ["+", "-", "*"],
    "custom_rule": ["1.5", "2.5"],
    "base_class": ["1.0", "1.125"],
    "class_attribute": ["0.0", "0.5"],
    "dtype": ["jnp.float32", "jnp.bfloat16"],
    "property": ["0.0", "0.375"],
    "written": ["1", "2"],
    "static_mode": ["'single'", "'double'"],
    "static_function": ["1.0", "1.75"],
    "depth": ["1", "2", "3"],
    "argument_default": ["1.0", "0.5"],
    "rate": ["0.1", "0.2"],
    # What is no text of the program.
    "flag": [False, True],
    "setting": ["default", "highest"],
    "shape": [(3, 2), (4, 2), (2, 2)],
    "input dtype": ["float32", "float16"],
    "weak": [False, True],
    "sharding": ["none", "replicated", "sharded"],
    "donate": [None, True],
}
NAMES = ("warm_helper", "warm_program")
BASE = {name: values[0] for name, values in CHOICES.items()}


def load(folder, choice):
    """The program of a choice as a fresh module; what an earlier one was is forgotten."""
    folder.mkdir(exist_ok=True)
    for name, text in zip(NAMES, (HELPER, PROGRAM), strict=True):
        for slot, value in choice.items():
            text = text.replace(f"@{slot}@", str(value))
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    helper, program = (_fresh(folder, name) for name in NAMES)
    helper.FLAG = choice["flag"]
    return program


def _fresh(folder, name):
    """A module of a file, compiled from its text: two edits in one second have the same bytecode file."""
    module = sys.modules[name] = type(sys)(name)
    path = folder / f"{name}.py"
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def run(program, choice, **options):
    """Two steps; what they give, and what the model is then."""
    step = plait.jit(program.step, donate=choice["donate"], **options)
    model = program.Model()
    x = jnp.asarray(np.linspace(-1, 1, int(np.prod(choice["shape"]))).reshape(choice["shape"]), choice["input dtype"])
    if choice["sharding"] != "none":
        mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
        spec = PartitionSpec(None, "data") if choice["sharding"] == "sharded" else PartitionSpec()
        x = jax.device_put(x, NamedSharding(mesh, spec))
    extra = (jnp.asarray(0.5) if choice["weak"] else 0.5,) if choice["shape"][0] == 4 else ()
    with contextlib.ExitStack() as stack:
        if choice["setting"] != "default":
            stack.enter_context(jax.default_matmul_precision(choice["setting"]))
        results = [step(model, x, *extra) for _ in range(2)]
    state = jax.tree.leaves(plait.state(model))
    described = [(np.asarray(value).tobytes(), value.dtype, value.shape) for value in (*results, *state)]
    return described, step
