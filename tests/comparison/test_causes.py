"""The cause of a departure, where it is one of the usual ones of convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 3)), jnp.float32)
IMAGES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, 8, 3)), jnp.float32)


class Net(plait.Module):
    def __init__(self, window, **options):
        rngs = plait.Rngs(0)
        self.conv = plait.Conv(3, 4, window, rngs=rngs, **options)
        self.head = plait.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        y = self.conv(x)
        return self.head(y.mean(range(1, y.ndim - 1)))


def reversed_window(model):
    kernel = model.conv.kernel
    kernel[...] = kernel[...][::-1, ::-1]
    return model


CASES = {
    "dilation": (ROWS, Net((2,), padding="CAUSAL", kernel_dilation=2), Net((2,), padding="CAUSAL"), "2", "1"),
    "padding": (ROWS, Net((3,), padding="CAUSAL"), Net((3,)), "CAUSAL", "SAME"),
    "strides": (IMAGES, Net((3, 3), strides=2), Net((3, 3)), "2", "1"),
    "kernel": (IMAGES, Net((3, 3)), reversed_window(Net((3, 3))), "as it is", "with the window reversed"),
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_convolution_that_differs_by_a_setting(what, swapped):
    x, first, second, mine, other = CASES[what]
    if swapped and what != "kernel":
        first, second, mine, other = second, first, other, mine
    found = plait.compare(first, second, x).departure
    assert found.path == "conv"
    assert (found.cause.what, found.cause.a, found.cause.b) == (what, mine, other)
    assert found.cause.after is not None
    assert found.cause.after < 1e-4 * found.cause.before
    assert ("has its shape" in str(found)) == (what == "strides")


class Rounded(plait.LayerNorm):
    """Its values are off by a few roundings, as on another processor."""

    def __call__(self, x, *args):
        return super().__call__(x, *args) * (1 + 2e-6)


def test_rounding_is_not_put_down_to_a_setting_that_changes_nothing():
    """The bias is zero: with or without it, the formula rounds better than the layer did."""
    rounded, exact = Rounded(3, rngs=plait.Rngs(0)), plait.LayerNorm(3, rngs=plait.Rngs(0))
    for first, second in ((rounded, exact), (exact, rounded)):
        found = plait.compare(first, second, ROWS, tolerance=1e-6).departure
        assert found.cause is None or found.cause.what not in ("bias", "scale"), found


class Between(plait.Module):
    """What is done between two layers."""

    def __init__(self, order):
        self.first = plait.Linear(3, 4, rngs=plait.Rngs(0))
        self.last = plait.Linear(4, 2, rngs=plait.Rngs(1))
        self.order = order

    def __call__(self, x):
        return self.last(self.first(x)[..., jnp.array(self.order)])


ORDERS = {
    (2, 3, 0, 1): "halves exchanged",
    (0, 2, 1, 3): "even entries before odd ones",
    (3, 2, 1, 0): "reversed along axis 2",
}


@pytest.mark.parametrize("order", ORDERS)
def test_entries_in_another_order(order):
    found = plait.compare(Between((0, 1, 2, 3)), Between(order), ROWS).departure
    assert (found.cause.what, found.cause.b) == ("order", ORDERS[order])
    assert found.cause.after is not None
    assert found.cause.after < 1e-4 * found.cause.before


class Mixed(plait.Module):
    """Parameters of its own; the first cannot explain anything."""

    def __init__(self, scale):
        self.first = plait.Linear(3, 4, rngs=plait.Rngs(0))
        self.count = plait.Param(jnp.arange(4))
        self.scale = plait.Param(jnp.asarray(scale, jnp.float32))

    def __call__(self, x):
        return jnp.sin(self.first(x) * self.scale[None, None]) + self.count[None, None].astype(x.dtype)


def test_a_parameter_that_differs_is_found_behind_one_that_cannot():
    found = plait.compare(Mixed([1.0, 2.0, 3.0, 4.0]), Mixed([4.0, 3.0, 2.0, 1.0]), ROWS).departure
    assert (found.cause.what, found.cause.b) == ("scale", "reversed along axis 0"), found


class Gated(plait.Module):
    """Gates one half of a layer's output by a function of the other."""

    def __init__(self, function, *, gate_first=True):
        self.both = plait.Linear(3, 8, rngs=plait.Rngs(0))
        self.last = plait.Linear(4, 2, rngs=plait.Rngs(1))
        self.function, self.gate_first = function, gate_first

    def __call__(self, x):
        halves = jnp.split(self.both(x), 2, axis=-1)
        gate, up = halves if self.gate_first else halves[::-1]
        return self.last(self.function(gate) * up)


def test_a_gate_of_another_half_or_function():
    found = plait.compare(Gated(jnp.tanh), Gated(jnp.tanh, gate_first=False), ROWS).departure
    assert found.cause.what == "made of"
    assert found.cause.a == "f(first half of both) * second half"
    assert found.cause.b == "f(second half of both) * first half"
    found = plait.compare(Gated(jnp.tanh), Gated(jnp.sin), ROWS).departure
    assert found.cause is None or found.cause.what not in ("made of", "activation"), found
    found = plait.compare(Gated(jnp.tanh, gate_first=False), Gated(jax.nn.silu, gate_first=False), ROWS).departure
    assert (found.cause.what, found.cause.a, found.cause.b) == ("activation", "tanh", "silu"), found


class Attends(plait.Module):
    """Attention whose queries, keys and values come from one layer."""

    def __init__(self, scale):
        self.qkv = plait.Linear(3, 24, rngs=plait.Rngs(0))
        self.out = plait.Linear(8, 3, rngs=plait.Rngs(1))
        self.num_heads, self.scale = 2, scale

    def __call__(self, x):
        query, key, value = (part.reshape(2, 8, 2, 4) for part in jnp.split(self.qkv(x), 3, axis=-1))
        return self.out(jax.nn.dot_product_attention(query, key, value, scale=self.scale).reshape(2, 8, 8))


def test_attention_whose_parts_come_from_one_layer():
    found = plait.compare(Attends(0.5), Attends(0.25), ROWS).departure
    assert (found.cause.what, found.cause.a, found.cause.b) == ("scale", "1/sqrt(head_dim)", "1/head_dim"), found
