"""Compiled programs in files: another process calls them as the one that saved them does. (rule X10a)"""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ExportError
from plait.transforms.jit import saved

PROGRAM = """
import json, sys

import jax, jax.numpy as jnp, optax

import plait


class Net(plait.Module):
    def __init__(self, rngs):
        self.up, self.norm = plait.Linear(3, 4, rngs=rngs), plait.BatchNorm(4, rngs=rngs)
        self.drop, self.act = plait.Dropout(0.5, rngs=rngs), plait.relu

    def __call__(self, x):
        return self.act(self.norm(self.drop(self.up(x))))


def step(net, optimizer, x):
    loss, grads = plait.value_and_grad(lambda net: jnp.square(net(x)).mean() + table[7])(net)
    optimizer.update(net, grads)
    return loss


def grow(net, x):
    net.seen = plait.Variable(x.sum())
    return net.up, plait.Param(2 * x)


table = jnp.arange(100_000.0)
net = Net(plait.Rngs(0))
arguments = net, plait.Optimizer(net, optax.adam(1e-3), wrt=plait.Param), jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
jax.block_until_ready(jax.tree.leaves(plait.state(arguments[:2])))
does, steps, grows = sys.argv[1:]
compiled = []
jax.monitoring.register_event_listener(lambda name, **_: compiled.append(name) if "compile_requests" in name else None)
if does == "save":
    plait.jit(step, donate=True).lower(*arguments).compile().save(steps)
    plait.jit(grow).lower(net, arguments[2]).compile().save(grows)
step, grow = plait.load_compiled(steps), plait.load_compiled(grows)
losses = [step(*arguments) for _ in range(3)]
up, new = grow(net, arguments[2])
assert does == "save" or compiled == []
assert up is net.up
leaves = jax.tree.leaves(plait.to_pure_dict(plait.state(arguments[:2], plait.Not(plait.RngState))))
print(json.dumps([float(value).hex() for value in (*losses, new[...].sum(), *(leaf.sum() for leaf in leaves))]))
"""


def in_two_processes(folder, texts, *arguments):
    """What a program prints, run with ``save`` and then with ``load``."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_CACHE", "JAX_"))}
    found = []
    for does in ("save", "load"):
        environment = {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(plait.__file__).parents[1])}
        command = [sys.executable, "-W", "error", "program.py", does, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def test_another_process_calls_it_as_the_one_that_saved_it(tmp_path):
    """Donation, random streams, an optimizer made of closures, a captured array; new objects, and a new attribute."""
    saved, loaded = in_two_processes(tmp_path, {"program": PROGRAM}, "step.bin", "grow.bin")
    assert len(saved) > 15
    assert saved == loaded


PARTS = """
import dataclasses

import jax.numpy as jnp
import numpy as np
import optax

import plait


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    hidden: int = dataclasses.field(repr=False)


class Table:
    def __init__(self, *numbers):
        self.numbers = np.array([*range(5000), *numbers])

    def __eq__(self, other):
        return np.array_equal(self.numbers, other.numbers)

    def __hash__(self):
        return hash(self.numbers.tobytes())

    def __repr__(self):
        return repr(self.numbers)

    def multiply(self, x):
        return x * self.numbers[-1]


def made(factor):
    return lambda x: x * factor


def init(params):
    return ()


def update(updates, state, params=None):
    return updates, state


def other_update(updates, state, params=None):
    return params, state


def train_state(tx):
    return plait.TrainState.create(None, params=jnp.ones(2), tx=tx)


def optimizer(rate):
    model = plait.Linear(2, 2, rngs=plait.Rngs(0))
    return model, plait.Optimizer(model, optax.adam(rate), wrt=plait.Param)
"""

NETS = """
import jax.numpy as jnp

import plait


class Net(plait.Module):
    def __init__(self, kept):
        self.w, self.kept = plait.Param(jnp.ones(2)), kept

    def __call__(self):
        return FACTOR * self.w
"""

STRUCTURES = """
import json, sys

import jax, jax.numpy as jnp, optax
from jax.tree_util import Partial

import one, other, plait
from parts import *


def merged(graphdef, state):
    return plait.merge(graphdef, state)()


def step(model, optimizer):
    optimizer.update(model, plait.grad(lambda model: model(jnp.ones(2)).sum())(model))
    return model.kernel[...]


CASES = {
    "classes of one name": (merged, lambda: plait.split(one.Net(1)), lambda: plait.split(other.Net(1))),
    "a part without a repr": (
        merged, lambda: plait.split(one.Net(Config(1.0, 2))), lambda: plait.split(one.Net(Config(1.0, 3)))
    ),
    "an array": (merged, lambda: plait.split(one.Net(Table(1))), lambda: plait.split(one.Net(Table(2)))),
    "a set": (lambda net: net(), lambda: [one.Net({"a", "b", "c", "d"})], lambda: [one.Net({"a", "b", "c"})]),
    "a function": (lambda f: f(jnp.ones(2)), lambda: [Partial(jnp.sin)], lambda: [Partial(jnp.cos)]),
    "a closure": (lambda net: net.kept(net.w), lambda: [one.Net(made(2))], None),
    "an optimizer": (step, lambda: optimizer(1e-3), lambda: optimizer(1e-2)),
    "a train state": (
        lambda state: state.apply_gradients(jnp.ones(2)).params,
        lambda: [train_state(optax.GradientTransformation(init, update))],
        lambda: [train_state(optax.GradientTransformation(init, other_update))],
    ),
    "a train state with closures": (lambda state: state.params, lambda: [train_state(optax.sgd(0.1))], None),
    "a bound method": (lambda net: net.kept(net.w), lambda: [one.Net(Table(1).multiply)], None),
}


def outcome(f, *args):
    try:
        return f(*args)
    except plait.errors.PlaitError as error:
        return str(error).splitlines()[1].split()[1]


found = {}
for name, (f, own, another) in CASES.items():
    if sys.argv[1] == "save":
        found[name] = outcome(plait.jit(f).lower(*own()).compile().save, name)
    elif another is not None:
        assert jnp.array_equal(plait.load_compiled(name)(*own()), f(*own()))
        found[name] = outcome(plait.load_compiled(name), *another())
print(json.dumps(found))
"""

PLACES = {
    "classes of one name": "graphdef",
    "a part without a repr": "graphdef",
    "an array": "graphdef",
    "a set": "net.kept",
    "a function": "f",
    "an optimizer": "optimizer.tx.update",
    "a train state": "state",
}


@pytest.mark.slow
def test_another_process_compares_structures_as_the_first_does(tmp_path):
    """X10a: its own arguments are the same structure there; others, however alike, and what has no == are refused."""
    texts = {"parts": PARTS, "one": NETS.replace("FACTOR", "2"), "other": NETS.replace("FACTOR", "3")}
    saved, loaded = in_two_processes(tmp_path, {**texts, "program": STRUCTURES})
    refused = {"a train state with closures": "state", "a bound method": "net.kept", "a closure": "net.kept"}
    assert saved == {**dict.fromkeys(PLACES), **refused}
    assert loaded == PLACES


class Net(plait.Module):
    def __init__(self, rate=2.0):
        self.w, self.rate, self.act = plait.Param(jnp.ones(3)), rate, plait.relu


def forward(net, x):
    return net.act(net.w[...] * x * net.rate)


@pytest.fixture
def file(tmp_path):
    plait.jit(forward).lower(Net(), jnp.ones(3)).compile().save(tmp_path / "forward.bin")
    return tmp_path / "forward.bin"


def other(**attributes):
    net = Net()
    for name, value in attributes.items():
        setattr(net, name, value)
    return net


CALLS = {
    "a static value": (lambda: (Net(3.0), jnp.ones(3)), ArgumentError, r"at +net\.rate\n +found +3\.0"),
    "a function": (
        lambda: (other(act=plait.gelu), jnp.ones(3)),
        ArgumentError,
        r"at +net\.act\n +found +<function gelu>",
    ),
    "a new attribute": (lambda: (other(new=1), jnp.ones(3)), ArgumentError, r"at +net\.new\n"),
    "a variable's kind": (lambda: (other(w=plait.BatchStat(jnp.ones(3))), jnp.ones(3)), ArgumentError, r"at +net\.w\n"),
    "a container": (lambda: (Net(), (jnp.ones(3),)), ArgumentError, r"at +x\n"),
    "a shape": (lambda: (Net(), jnp.ones(1)), ArgumentTypeError, r"at +x\n"),
    "a dtype": (lambda: (other(w=plait.Param(jnp.ones(3, int))), jnp.ones(3)), ArgumentTypeError, r"at +net\.w\n"),
}


@pytest.mark.parametrize("name", CALLS)
def test_other_arguments_are_refused_by_name(file, name):
    arguments, kind, text = CALLS[name]
    loaded = plait.load_compiled(file)
    with pytest.raises(kind, match=text):
        loaded(*arguments())
    assert loaded(Net(), jnp.full(3, 2.0)).tolist() == [4.0] * 3


@pytest.mark.slow
def test_a_program_from_jax_s_cache_on_disk_is_saved_whole(tmp_path):
    """On a CPU, JAX would write it without its machine code; the first save fills the cache, if it is on."""
    plait.cache(tmp_path / "cache")
    for name in ("one", "two"):
        jax.clear_caches()
        plait.jit(lambda net, x: jnp.sin(net.w[...]) * x).lower(Net(), jnp.ones(3)).compile().save(tmp_path / name)
        assert plait.load_compiled(tmp_path / name)(Net(), jnp.ones(3)).shape == (3,)
    plait.cache(None)


def test_what_was_loaded_is_copied(file):
    with pytest.raises(ExportError, match="copy the file"):
        plait.load_compiled(file).save(file)


@pytest.mark.parametrize("name", saved._here())
def test_what_it_was_compiled_for_is_refused_by_name(file, name, monkeypatch):
    here = saved._here()
    monkeypatch.setattr(saved, "_here", lambda: {**here, name: "another"})
    with pytest.raises(ExportError, match=rf"another {name}\n +at +{file}\n"):
        plait.load_compiled(file)


VALUE = object()


def test_nothing_else_is_replaced(file, tmp_path):
    """A folder least of all."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    compiled = plait.jit(lambda x: 2 * x).lower(jnp.ones(2)).compile()
    for path in (tmp_path / "work", tmp_path / "work" / "thesis.tex"):
        with pytest.raises(ExportError, match=rf"would replace another file\n +at +{path}\n"):
            compiled.save(path)
    assert (tmp_path / "work" / "thesis.tex").read_text() == "years"
    compiled.save(file)
    assert plait.load_compiled(file)(jnp.ones(2)).tolist() == [2, 2]


DAMAGED = {
    "foreign": (lambda _: b"another", "another kind"),
    "empty": (lambda _: b"", "another kind"),
    "cut in the header": (lambda whole: whole[:60], "damaged header"),
    "cut": (lambda whole: whole[:-100], "checksum"),
    "a changed byte": (lambda whole: whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:], "checksum"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_by_its_path(file, name):
    damage, text = DAMAGED[name]
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ExportError, match=rf"at +{file}\n +found .*{text}"):
        plait.load_compiled(file)


def called_back(net, x):
    jax.debug.print("{}", x)
    return x


SAVES = {
    "static arguments": (
        lambda: plait.jit(lambda net, x, n: x * n, static_argnames="n").lower(Net(), jnp.ones(3), n=2),
        r"found +static arguments",
    ),
    "options for shardings": (
        lambda: plait.jit(forward, in_shardings=(None, jax.sharding.SingleDeviceSharding(jax.devices()[0]))).lower(
            Net(), jnp.ones(3)
        ),
        r"found +in_shardings",
    ),
    "a call of Python": (lambda: plait.jit(called_back).lower(Net(), jnp.ones(3)), "JAX cannot serialize"),
    "a value that cannot be pickled": (
        lambda: plait.jit(forward).lower(other(new=sys._getframe()), jnp.ones(3)),
        r"at +net\.new\n +found .*cannot pickle",
    ),
    "a value without ==": (
        lambda: plait.jit(forward).lower(other(new=object()), jnp.ones(3)),
        r"at +net\.new\n",
    ),
    "an output without ==": (
        lambda: plait.jit(lambda net, x: other(new=VALUE)).lower(Net(), jnp.ones(3)),
        r"at +what it returns\n",
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_what_cannot_be_saved_is_refused(tmp_path, name):
    lower, text = SAVES[name]
    with pytest.raises(ExportError, match=text):
        lower().compile().save(tmp_path / "file")
    assert not (tmp_path / "file").exists()
