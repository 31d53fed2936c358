"""The collections of arrays and numbers that are not in variables."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.flax.bridge.variables.collection_types import collection_of, is_bare

NAMES = {
    "array": (jnp.ones(2), "ArrayImpl"),
    "typed key": (jax.random.key(0), "PRNGKeyArray"),
    "raw key": (jax.random.PRNGKey(0), "ArrayImpl"),
    "shape": (jax.ShapeDtypeStruct((2,), jnp.float32), "ArrayImpl"),
    "NumPy array": (np.ones(2), "ndarray"),
    "NumPy number": (np.float32(2), "ndarray"),
    "float": (2.5, "float"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_collection_is_named_after_the_type(kind):
    leaf, name = NAMES[kind]
    assert is_bare(leaf)
    assert collection_of(leaf) == name


def test_tracers_have_the_collection_of_their_arrays():
    jax.jit(lambda *leaves: [collection_of(leaf) for leaf in leaves] == ["ArrayImpl", "PRNGKeyArray"] or 1 / 0)(
        jnp.ones(2), jax.random.key(0)
    )


def test_variables_have_the_collection_of_their_class():
    assert collection_of(plait.BatchStat(1.0)) == "batch_stats"
    assert not is_bare(plait.Param(1.0))
    assert not is_bare("text")
