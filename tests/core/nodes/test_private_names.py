"""Names of plait's own in the classes that users derive from: none that a program would choose."""

import pickle

import jax.numpy as jnp
import pytest

import plait as nnx
from plait import bridge

X = jnp.ones((2, 3))
BASES = {
    nnx.Pytree: "_pytree__",
    nnx.Module: "_pytree__",
    nnx.Object: "_pytree__",
    nnx.List: "_pytree__",
    nnx.Dict: "_pytree__",
    nnx.Sequential: "_pytree__",
    nnx.RNNCellBase: ("_pytree__", "_cell__"),
    nnx.Metric: ("_pytree__", "_metric__"),
    bridge.Module: ("_pytree__", "_bridge__"),
}


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.__name__)
def test_private_names_begin_with_a_prefix(base):
    """G58."""
    own = {name for cls in base.__mro__ if cls.__module__.startswith("plait.") for name in vars(cls)}
    own |= {
        slot for cls in base.__mro__ for slot in getattr(cls, "__slots__", ()) if cls.__module__.startswith("plait.")
    }
    private = {name for name in own if name.startswith("_") and not name.startswith("__")} - {"_abc_impl"}
    assert {name for name in private if not name.startswith(BASES[base])} == set()


class Counted(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))
        self._info = {"calls": 3}

    def _elements(self):
        return self._info["calls"]


def test_pickled_with_such_names():
    """G58."""
    assert pickle.loads(pickle.dumps(Counted()))._elements() == 3


class Sowing(nnx.Module):
    def __init__(self):
        self._sown = self._records = 3

    def __call__(self, x):
        self.sow(nnx.Intermediate, "x", x)
        return self._sown * x


def test_attributes_of_any_name_while_values_are_captured():
    """G58."""
    model = Sowing()
    y, seen = nnx.capture(nnx.jit(lambda model, x: model(x)), nnx.Intermediate)(model, X)
    assert (y == 3 * X).all()
    assert (seen["x"][0] == X).all()
    assert vars(model) == {"_sown": 3, "_records": 3}


class Compact(bridge.Module):
    def _run(self, x):
        return self._add(x)

    def _add(self, x):
        return x + self.param("w", nnx.initializers.ones, ())

    @bridge.compact
    def __call__(self, x):
        return self._run(x)


def test_compact_methods_may_have_helpers_of_any_name():
    """G58."""
    variables = Compact().init(0, X)
    assert list(variables["params"]) == ["w"]
    assert Compact().apply(variables, X).tolist() == (X + 1).tolist()


class Cell(nnx.RNNCellBase):
    num_feature_axes = 1

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros(input_shape)

    def _check_inputs(self, carry, x):
        return carry + x

    def __call__(self, carry, x):
        y = self._check_inputs(carry, x)
        return y, y


def test_a_cell_may_have_helpers_of_any_name():
    """G58."""
    assert nnx.RNN(Cell())(jnp.ones((1, 3, 2)))[0, :, 0].tolist() == [1.0, 2.0, 3.0]
