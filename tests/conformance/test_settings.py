"""Settings that Flax's layers store under a name are there under that name."""

import jax.numpy as jnp
import pytest

import plait
from tests.nn.twins import flax_nnx

SETTINGS = {
    "feature_axis": lambda nnx: nnx.GroupNorm(4, num_groups=2, rngs=nnx.Rngs(0)),
    "scale_init": lambda nnx: nnx.WeightNorm(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0)),
    "state_axes": lambda nnx: nnx.RNN(nnx.GRUCell(2, 3, rngs=nnx.Rngs(0))),
    "dtype": lambda nnx: nnx.Embed(2, 3, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0)),
}


@pytest.mark.oracle
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_flax_s(name):
    found, expected = (getattr(SETTINGS[name](nnx), name) for nnx in (plait, flax_nnx()))
    assert _plain(found) == _plain(expected)


def _plain(value):
    """What says the same in both libraries: functions and classes by name, mappings as dictionaries."""
    if hasattr(value, "items"):
        return {_plain(key): _plain(item) for key, item in value.items()}
    return getattr(value, "__name__", value)
