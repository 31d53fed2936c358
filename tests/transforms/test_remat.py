"""``remat``: the same numbers with less kept, updates once. (rule X17; ask 7)"""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.strategies import Node


class Block(plait.Module):
    def __init__(self, rngs):
        self.up = plait.Linear(4, 16, rngs=rngs)
        self.down = plait.Linear(16, 4, rngs=rngs)
        self.calls = plait.BatchStat(jnp.int32(0))
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        self.calls += 1
        return x + self.drop(self.down(jnp.sin(self.up(x))))


def test_numbers_and_updates_equal_those_without():
    """X17: statistics and random counters advance once."""
    found, expected = Block(plait.Rngs(0)), Block(plait.Rngs(0))
    x = jnp.ones((2, 4))
    first = plait.jit(plait.grad(lambda m, x: plait.remat(Block.__call__)(m, x).sum()))(found, x)
    second = plait.jit(plait.grad(lambda m, x: m(x).sum()))(expected, x)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), first, second)
    assert int(found.calls[...]) == int(expected.calls[...]) == 1
    assert int(found.drop.rngs.count[...]) == int(expected.drop.rngs.count[...])


def test_above_a_method_and_with_arguments():
    """X1."""

    class Net(plait.Module):
        def __init__(self):
            self.w = plait.Param(jnp.float32(2))

        @plait.remat(static_argnums=(2,))
        def __call__(self, x, kind):
            return self.w * x if kind == "mul" else self.w + x

    assert float(Net()(3.0, "mul")) == 6.0
    assert float(Net()(3.0, "add")) == 5.0


def remats(jaxpr):
    return [eqn for eqn in jaxpr.eqns if eqn.primitive.name.startswith(("checkpoint", "remat"))]


def test_policy_and_cse_are_handed_on():
    """X17."""
    block = Node(w=plait.Param(jnp.ones((2, 2))))
    graphdef, state = plait.split(block)
    policy = jax.checkpoint_policies.dots_saveable

    def f(state, x):
        wrapped = plait.remat(lambda m, x: jnp.sin(x @ m.w[...]), policy=policy, prevent_cse=False)
        return wrapped(plait.merge(graphdef, state), x)

    (eqn,) = remats(jax.make_jaxpr(f)(state, jnp.ones((2, 2))).jaxpr)
    assert eqn.params["policy"] is policy
    assert eqn.params["prevent_cse"] is False


def test_equal_blocks_are_traced_once():
    """Budget of tracing: as for a plain function, whose trace JAX keeps."""
    traces = []

    def call(block, x):
        traces.append(1)
        return x @ block.w[...]

    def model(blocks, x):
        for block in blocks:
            x = plait.remat(call)(block, x)
        return x

    blocks = [Node(w=plait.Param(jnp.ones((2, 2)) * i)) for i in range(4)]
    out = plait.jit(model)(blocks, jnp.eye(2))
    assert len(traces) == 1
    np.testing.assert_array_equal(out, jnp.eye(2) @ jnp.ones((2, 2)) * 0)
    blocks[2].flag = True  # another structure
    plait.jit(model)(blocks, jnp.eye(2))
    assert len(traces) == 2


@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
@pytest.mark.parametrize("hide", [lambda m: m, lambda m: [m], lambda m: {"m": m}])
def test_a_function_that_captures_a_model_is_traced_every_time(hide):
    """What it captures may have changed in between."""

    @plait.jit
    def f(model, x):
        held = hide(model)

        def body(x):
            (inner,) = jax.tree.leaves(held, is_leaf=lambda m: isinstance(m, plait.Module))
            return x * inner.w[...]

        first = plait.remat(body)(x)
        model.w[...] = model.w * 2
        return first, plait.remat(body)(x)

    first, second = f(Node(w=plait.Param(jnp.float32(3))), jnp.float32(1))
    assert (float(first), float(second)) == (3.0, 6.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "object"])
def test_what_is_kept_for_a_function_dies_with_it(kind):
    """U34. For an object nothing is kept: what is made for it refers to it, as a weak reference may not live on."""

    class Calls:
        def __call__(self, block, x):
            return x * block.w[...]

    def make():
        def call(block, x):
            return x * block.w[...]

        return call if kind == "function" else Calls()

    def use():
        call = make()
        plait.jit(lambda block, x: plait.remat(call)(block, x))(Node(w=plait.Param(jnp.ones(()))), 1.0)
        return weakref.ref(call)

    ref = use()
    jax.clear_caches()
    gc.collect()
    assert ref() is None


def test_structure_may_change():
    """U18."""
    node = Node(w=plait.Param(jnp.float32(2)))
    plait.remat(lambda n: setattr(n, "extra", plait.Param(n.w * 2)))(node)
    assert float(node.extra[...]) == 4.0


def test_less_is_kept():
    """X17, ask 7: the residuals of the backward pass are the inputs alone."""
    node = Node(w=plait.Param(jnp.ones((8, 8))))
    x = jnp.ones((8, 8))

    def residuals(wrap):
        graphdef, state = plait.split(node)

        def deep(m, x):
            for _ in range(4):
                x = jnp.sin(x @ m.w[...])
            return x.sum()

        f = wrap(deep)
        _, pull = jax.vjp(lambda state, x: f(plait.merge(graphdef, state), x), state, x)
        return sum(leaf.size for leaf in jax.tree.leaves(pull))

    assert residuals(plait.remat) < residuals(lambda f: f) / 2


def test_names_that_jax_sees_do_not_grow_with_the_model(monkeypatch):
    """X17: JAX takes the text of what it is given for its name at each trace; the structure is not in it."""
    seen = []
    checkpoint = jax.checkpoint
    monkeypatch.setattr(jax, "checkpoint", lambda f, **options: seen.append(str(f)) or checkpoint(f, **options))

    def doubled(layers, x):
        return layers[0](x) * 2

    for size in (1, 20):
        layers = plait.List([plait.Linear(2, 2, rngs=plait.Rngs(0)) for _ in range(size)])
        plait.remat(doubled)(layers, jnp.ones((1, 2)))
    assert seen[0] == seen[1]
    assert "doubled" in seen[0]
