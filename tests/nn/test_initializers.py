import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import plait
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


@pytest.mark.parametrize("kind", [None, AxisType.Auto, AxisType.Explicit], ids=str)
@pytest.mark.parametrize("init", [jax.nn.initializers.zeros, jax.nn.initializers.ones], ids=["zeros", "ones"])
def test_zeros_and_ones_are_placed_and_typed_as_jax_does(init, kind):
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(kind, kind)) if kind else None
    with jax.set_mesh(mesh) if mesh else jax.default_device(jax.devices()[1]):
        found = plait.LayerNorm(8, scale_init=init, param_dtype=jnp.bfloat16, rngs=plait.Rngs(0)).scale.value
        expected = init(None, (8,), jnp.bfloat16)
    assert (found.sharding, found.committed, found.aval) == (expected.sharding, expected.committed, expected.aval)
    assert found.tolist() == expected.tolist()


def test_each_layer_has_zeros_of_its_own():
    """A step may donate the bias of one layer, and the other keeps its own."""
    rngs = plait.Rngs(0)
    one, other = plait.Linear(2, 3, rngs=rngs), plait.Linear(2, 3, rngs=rngs)
    one.bias.value.delete()
    assert other.bias.tolist() == [0, 0, 0]


def test_a_size_may_be_an_array():
    layer = plait.Linear(2, jnp.array(3), rngs=plait.Rngs(0))
    assert layer.bias.tolist() == [0, 0, 0]
