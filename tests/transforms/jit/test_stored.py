"""``jit(cache=folder)``: a program that outlives the process is never a stale one. (rules W1 to W9)"""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import plait
from plait.errors import ArgumentError, ProgramCacheError, ProgramCacheWarning

from tests.transforms.jit import warm_programs
from tests.transforms.jit.warm_programs import BASE, CHOICES


@pytest.fixture(autouse=True)
def forget_modules():
    yield
    for name in warm_programs.NAMES:
        sys.modules.pop(name, None)


def counts(step):
    return step.jitted_fn.programs.counts


def both(tmp_path, choice):
    """What a choice gives with and without a cache, each in freshly loaded modules; and the counts."""
    plain, _ = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice)
    found, step = warm_programs.run(warm_programs.load(tmp_path / "source", choice), choice, cache=tmp_path / "kept")
    return plain, found, counts(step)


def test_w1_the_same_program_is_loaded(tmp_path):
    plain, found, first = both(tmp_path, BASE)
    again, loaded, second = both(tmp_path, BASE)
    assert plain == found == again == loaded
    assert first == {"loaded": 0, "stored": 1, "not stored": 0}
    assert second == {"loaded": 1, "stored": 0, "not stored": 0}


EDITS = [*CHOICES]
QUICK = ["helper_scale", "global_number", "closure", "flag"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in CHOICES]
)
def test_w3_each_kind_of_edit_is_a_miss(tmp_path, name):
    both(tmp_path, BASE)
    plain, found, after = both(tmp_path, {**BASE, name: CHOICES[name][1]})
    assert plain == found
    # The model of a step on a mesh is on the mesh afterwards, so that the next step is another program.
    assert after["stored"] == {"weak": 0, "sharding": 2}.get(name, 1)


@pytest.mark.parametrize(
    "count", [pytest.param(40, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.long)], ids=str
)
def test_w3_no_drawn_edit_gives_a_stale_program(tmp_path, count):
    """One to three edits at a time, of any kind; what comes back is what the program gives without a cache."""
    draw = random.Random(20)
    choice, loaded, stored = dict(BASE), 0, 0
    for _ in range(count):
        for name in draw.sample(EDITS, draw.randint(1, 3)):
            choice[name] = draw.choice(CHOICES[name])
        if draw.random() < 0.25:
            choice = dict(BASE)
        plain, found, after = both(tmp_path, choice)
        assert plain == found, f"a stale program for {choice}"
        loaded, stored = loaded + after["loaded"], stored + after["stored"]
        assert after["not stored"] == 0
    assert loaded > count // 10
    assert stored > count // 2


# What calls may do ----------------------------------------------------------------------------------------------------


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0, dropout=1)
        self.a = plait.Linear(4, 8, rngs=rngs)
        self.norm = plait.BatchNorm(8, rngs=rngs)
        self.dropout = plait.Dropout(0.25, rngs=rngs)
        self.b = plait.Linear(8, 2, rngs=rngs)
        self.mode = "train"

    def __call__(self, x):
        return self.b(self.dropout(self.norm(plait.relu(self.a(x)))))


def loss(net, x):
    return (net(x) ** 2).mean()


def train(net, optimizer, x):
    value, grads = plait.value_and_grad(loss)(net, x)
    optimizer.update(net, grads)
    return value


def forward(net, x, *, scale=1.0):
    return {"y": net(x) * scale, "sum": (x.sum(), None)}


def with_static(net, x, n, *, name):
    return [net(x)] * n, jnp.zeros(len(name))


def returns_state(net, x):
    net(x)
    return plait.state(net), plait.state(net, plait.Param)


def returns_module(net, x):
    other = plait.clone(net)
    other.mode = "eval"
    return other, net(x)


def returns_argument(net, x):
    net.a.kernel.value = net.a.kernel.value + 1
    return net, x


def changes_structure(net, x):
    net.mode = "eval"
    net.extra = plait.Param(x.sum())
    del net.dropout
    return net.extra.value


def plain_function(x, y):
    return x @ y, {"t": (x, [y])}


def in_list(nets, x):
    return sum(net(x).sum() for net in nets)


def random_key(net, key):
    return jax.random.normal(key, (2, 2)), jax.random.split(key, 2), jax.random.key(3)


def net():
    return Net()


def optimizer(model):
    return plait.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=plait.Param)


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def training_arguments():
    model = net()
    return (model, optimizer(model), jnp.asarray(X)), {}


# Name → function, options, what makes the arguments. Each is called twice.
CALLS = {
    "train": (train, {}, training_arguments),
    "train, donating": (train, {"donate": True}, training_arguments),
    "train, donated arguments": (train, {"donate_argnums": (0, 1)}, training_arguments),
    "forward": (forward, {}, lambda: ((net(), X), {"scale": jnp.float32(2)})),
    "keywords": (forward, {}, lambda: ((), {"net": net(), "x": X, "scale": 2.0})),
    "static": (with_static, {"static_argnums": 2, "static_argnames": "name"},
               lambda: ((net(), X, 2), {"name": "four"})),
    "state": (returns_state, {}, lambda: ((net(), X), {})),
    "module": (returns_module, {}, lambda: ((net(), X), {})),
    "argument": (returns_argument, {"donate": True}, lambda: ((net(), X), {})),
    "structure": (changes_structure, {}, lambda: ((net(), X), {})),
    "plain": (plain_function, {}, lambda: ((X, X.T), {})),
    "list": (in_list, {}, lambda: (([net(), net()], X), {})),
    "keys": (random_key, {}, lambda: ((net(), jax.random.key(5)), {})),
}  # fmt: skip


def described(tree):
    """Values bit for bit, and structure."""
    graphdef, state = plait.split(tree)
    leaves = [leaf if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jax.random.key_data(leaf)
              for leaf in map(jnp.asarray, jax.tree.leaves(state))]  # fmt: skip
    return graphdef, [(np.asarray(leaf).tobytes(), leaf.dtype, leaf.shape) for leaf in leaves]


class Watch:
    """Which functions of this file are entered, and which events JAX reports."""

    def __enter__(self):
        self.entered, self.events = set(), []
        jax.monitoring.register_event_listener(self._event)
        jax.monitoring.register_event_duration_secs_listener(self._event)
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
        jax.monitoring.unregister_event_listener(self._event)
        jax.monitoring.unregister_event_duration_listener(self._event)

    def _event(self, name, *_, **__):
        self.events.append(name)

    def _call(self, frame, event, _):
        if event == "call" and frame.f_globals.get("__name__") in (__name__, "plait.nn.linear"):
            self.entered.add(frame.f_code.co_name)


def called(name, **options):
    """What two calls leave and return, and the jitted function."""
    f, given, make = CALLS[name]
    step = plait.jit(f, **given, **options)
    args, kwargs = make()
    results = []
    for _ in range(1 if name in ("structure", "module") else 2):
        out = step(*args, **kwargs)
        results.append(described([out, [arg for arg in args if not isinstance(arg, (int, str))]]))
    return results, step


@pytest.mark.parametrize("name", CALLS)
def test_w5_what_a_call_does_is_stored_with_the_program(tmp_path, name):
    plain, _ = called(name)
    first, _ = called(name, cache=tmp_path)
    f, given, make = CALLS[name]
    second = plait.jit(f, **given, cache=tmp_path)
    args, kwargs = make()
    with Watch() as watch:
        second(*args, **kwargs)
    again, third = called(name, cache=tmp_path)
    assert plain == first == again
    assert counts(second)["loaded"] == 1
    assert counts(third)["stored"] == 0
    assert not watch.entered & {*(case[0].__name__ for case in CALLS.values()), "__call__", "loss"}
    assert watch.events == []
