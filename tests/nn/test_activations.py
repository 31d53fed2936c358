"""Rule F1: the activations are those of JAX, all of them."""

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.nn import activations

NAMES = [name for name in vars(activations) if not name.startswith("_") and name not in ("annotations", "nn")]
# Products and tools of jax.nn that are no activations, and what plait has under this name for itself.
OTHERS = {
    "dot_product_attention", "get_scaled_dot_general_config", "initializers", "log1mexp", "logmeanexp",
    "scaled_dot_general", "scaled_matmul",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_an_activation_is_that_of_jax(name):
    assert getattr(plait, name) is (jnp.tanh if name == "tanh" else getattr(jax.nn, name))


def test_every_activation_of_jax_is_there():
    there = {name for name in vars(jax.nn) if not name.startswith("_") and callable(getattr(jax.nn, name))}
    assert there - OTHERS <= {*NAMES}
