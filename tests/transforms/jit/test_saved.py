"""Compiled programs in files: another process calls them as the one that saved them does. (rule X10a)"""

import functools
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


def test_another_process_calls_it_as_the_one_that_saved_it(tmp_path):
    """Donation, random streams, an optimizer made of closures, a captured array; new objects, and a new attribute."""
    (tmp_path / "program.py").write_text(PROGRAM)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PLAIT_CACHE", "JAX_"))}
    environment = {**kept, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(plait.__file__).parents[1])}
    found = []
    for does in ("save", "load"):
        command = [sys.executable, "-W", "error", "program.py", does, "step.bin", "grow.bin"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert len(found[0]) > 15
    assert found[0] == found[1]


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
    "a function": (lambda: (other(act=plait.gelu), jnp.ones(3)), ArgumentError, r"at +net\.act\n +found +\S+gelu"),
    "a new attribute": (lambda: (other(new=1), jnp.ones(3)), ArgumentError, r"at +net\.new\n"),
    "a variable's kind": (lambda: (other(w=plait.BatchStat(jnp.ones(3))), jnp.ones(3)), ArgumentError, r"at +net\.w\n"),
    "a container": (lambda: (Net(), (jnp.ones(3),)), ArgumentError, r"at +the arguments\n"),
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
    "a value without a name": (
        lambda: plait.jit(forward).lower(other(act=functools.partial(plait.relu), new=sys._getframe()), jnp.ones(3)),
        "cannot be pickled",
    ),
}


@pytest.mark.parametrize("name", SAVES)
def test_what_cannot_be_saved_is_refused(tmp_path, name):
    lower, text = SAVES[name]
    with pytest.raises(ExportError, match=text):
        lower().compile().save(tmp_path / "file")
    assert not (tmp_path / "file").exists()
