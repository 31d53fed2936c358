"""What a first call imports may not make JAX forget what it has compiled.

JAX's caches have the settings of the process in their keys, and some of its modules add settings when imported.
"""

import subprocess
import sys

import pytest

# Each kind of call, twice: the second time nothing is traced or compiled. One process for all: what is imported late is
# imported once, so the first kind that imports it is named.
PROGRAM = """
import sys
import tempfile

import jax
import jax.numpy as jnp
import optax

import plait

compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: event.endswith("backend_compile_duration") and compiled.append(event)
)


def loss(net, x):
    return jnp.square(net(x)).mean()


def step(net, optimizer, x):
    value, grads = plait.value_and_grad(loss)(net, x)
    optimizer.update(net, grads)
    return value


def made():
    net = plait.Sequential(plait.Linear(2, 2, rngs=plait.Rngs(0)), plait.Dropout(0.5, rngs=plait.Rngs(1)))
    return net, plait.Optimizer(net, optax.adam(0.1), wrt=plait.Param)


def calls(**options):
    jitted, (net, optimizer) = plait.jit(step, **options), made()
    return lambda: jitted(net, optimizer, x)


def stack():
    blocks = plait.Stack(lambda rngs: plait.Linear(2, 2, rngs=rngs), 3, rngs=plait.Rngs(0))
    jitted = plait.jit(loss)
    return lambda: jitted(blocks, x)


def mapped():
    net = plait.vmap(lambda key: plait.Linear(2, 2, rngs=plait.Rngs(key)))(jax.random.split(jax.random.key(0), 3))
    jitted = plait.jit(plait.vmap(loss, in_axes=(0, None)))
    return lambda: jitted(net, x)


def scanned():
    net = made()[0]
    jitted = plait.jit(plait.scan(lambda net, x: (net, net(x)), in_axes=(plait.Carry, 0), out_axes=(plait.Carry, 0)))
    return lambda: jitted(net, jnp.ones((3, 1, 2)))


def attention():
    layer = plait.MultiHeadAttention(2, 4, decode=False, rngs=plait.Rngs(0))
    jitted = plait.jit(lambda layer, x: layer(x).sum())
    return lambda: jitted(layer, jnp.ones((1, 3, 4)))


def saved():
    net, folder = made()[0], tempfile.mkdtemp()
    return lambda: plait.checkpoint.save(f"{folder}/saved", {"net": net}, overwrite=True)


def eager(of):
    net = made()[0]
    return lambda: of(net)


x = jnp.ones((1, 2))
KINDS = {
    "jit": calls,
    "jit, donated": lambda: calls(donate=True),
    "a stack": stack,
    "vmap": mapped,
    "scan": scanned,
    "attention": attention,
    "eager remat": lambda: eager(lambda net: plait.remat(loss)(net, x)),
    "eager grad": lambda: eager(lambda net: plait.grad(loss)(net, x)),
    "cost": lambda: eager(lambda net: plait.cost(net, x)),
    "a checkpoint": saved,
}
for name, make in KINDS.items():
    base = calls()
    base()
    call = make()
    call()
    compiled.clear()
    base()
    if name not in ("cost", "eager grad", "eager remat"):
        call()
    print(f"{name}: {len(compiled)}")
"""


@pytest.mark.slow
def test_a_second_call_compiles_nothing():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    assert {name: count for name, count in found.items() if count != "0"} == {}, done.stdout
