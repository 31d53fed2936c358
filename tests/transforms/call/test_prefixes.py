"""Prefix values by filter."""

import jax.numpy as jnp
import pytest

import plait
from tests.nn.twins import flax_nnx


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["Param", "BatchStat", "Variable"])
def test_map_prefix_gives_the_axis_of_a_leaf_as_flax_does(kind):
    found = []
    for nnx in (plait, flax_nnx()):
        axes = nnx.StateAxes({nnx.PathContains("head"): 2, nnx.Param: 0, ...: None})
        leaf = getattr(nnx, kind)(jnp.ones(2))
        found.append([axes.map_prefix(path, leaf) for path in (("body", 0), ("head",))])
    assert found[0] == found[1]
