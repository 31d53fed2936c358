"""The cause of a departure, where it is one of the usual ones of convolutions."""

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
