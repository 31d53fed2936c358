"""``lazy_init``."""

import flax.linen as nn
import jax.numpy as jnp
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError
from plait.flax.bridge.wrappers.lazy import initialization_of

X = jnp.ones((1, 2))


class Model(plait.Module):
    def __init__(self):
        self.inner = plait.Dict(dense=bridge.ToNNX(nn.Dense(3), plait.Rngs(0)))
        self.fail = False
        self.marked = None

    def __call__(self, x):
        self.marked = initialization_of(self.inner) is not None
        if self.fail:
            raise RuntimeError("on purpose")
        return self.inner.dense(x)

    def encode(self, x):
        return self(x) * 2


def test_everything_reachable_initializes_and_the_function_comes_back():
    """B19: for a module and for a bound method."""
    model = Model()
    assert bridge.lazy_init(model, X) is model
    assert model.inner.dense.kernel.shape == (2, 3)
    method = Model().encode
    assert bridge.lazy_init(method, X) is method
    assert method.__self__.inner.dense.kernel.shape == (2, 3)


def test_the_mark_is_cleared_also_on_error():
    """B19."""
    model = Model()
    model.fail = True
    with pytest.raises(RuntimeError, match="on purpose"):
        bridge.lazy_init(model, X)
    assert model.marked
    assert initialization_of(model.inner) is None


def test_what_is_not_reachable_does_not_initialize():
    """B19."""
    other = bridge.ToNNX(nn.Dense(3), plait.Rngs(0)).lazy_init(X)
    kernel = other.kernel[...]

    class Calls(plait.Module):
        def __call__(self, x):
            return other(x)

    bridge.lazy_init(Calls(), X)
    assert (other.kernel[...] == kernel).all()


def test_marks_reach_into_transforms():
    """B19: a transform works on copies of what is marked."""

    class Jitted(Model):
        def __call__(self, x):
            return plait.jit(lambda dense, x: dense(x))(self.inner.dense, x)

    assert bridge.lazy_init(Jitted(), X).inner.dense.kernel.shape == (2, 3)


@pytest.mark.parametrize("fn", [3, lambda: 1, plait.Dict(), str.upper])
def test_only_modules_and_their_methods_are_taken(fn):
    """Section 9."""
    with pytest.raises(ArgumentError, match=r"lazy_init takes a module(.|\n)*found"):
        bridge.lazy_init(fn)
