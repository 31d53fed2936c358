import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.nn import activations, initializers
from tests.nn.twins import flax_nnx

ACTIVATIONS = [name for name in vars(activations) if not name.startswith("_") and name not in ("annotations", "nn")]
FAMILIES = [f"{family}_{kind}" for family in ("glorot", "he", "lecun") for kind in ("normal", "uniform")]
FACTORIES = [*FAMILIES, "normal", "uniform", "truncated_normal", "orthogonal", "ones_init", "zeros_init"]
ALIASES = {"kaiming_normal": "he_normal", "xavier_uniform": "glorot_uniform"}


@pytest.mark.oracle
@pytest.mark.parametrize("name", FACTORIES)
def test_an_initializer_draws_what_flax_s_draws(name):
    arguments = (jax.random.key(0), (4, 4), jnp.float32)
    expected = getattr(flax_nnx().initializers, name)()(*arguments)
    np.testing.assert_array_equal(getattr(initializers, name)()(*arguments), expected)


@pytest.mark.parametrize("name", ALIASES)
def test_an_initializer_has_two_names(name):
    assert getattr(initializers, name) is getattr(initializers, ALIASES[name])


@pytest.mark.oracle
def test_no_initializer_is_missing():
    public = {name for name in vars(flax_nnx().initializers) if not name.startswith("_")}
    assert public - set(vars(initializers)) <= {"DtypeLikeInexact", "tp"}


ONLY_JAX = {"mish", "sparse_plus", "sparse_sigmoid", "squareplus"}  # Flax does not pass these on


@pytest.mark.oracle
@pytest.mark.parametrize("name", sorted({*ACTIVATIONS} - ONLY_JAX))
def test_an_activation_is_flax_s(name):
    assert getattr(activations, name) is getattr(flax_nnx(), name)
