"""A scan over stacked layers, also recomputed. (rule ST6)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.sampling import slow_but


class Block(plait.Module):
    """A block that changes what it is given, counts its calls, and is told apart from the others by its weight."""

    def __init__(self, number):
        self.weight = plait.Param(jnp.full(2, 1.0 + number))
        self.total = plait.BatchStat(jnp.zeros(2))

    def __call__(self, x, scale, power):
        self.total[...] += x
        return jnp.sin(x) * self.weight * scale**power


def of_list(blocks, x, scale):
    for block in blocks:
        x = block(x, scale, 2)
    return x.sum()


def of_stack(blocks, x, scale):
    return blocks(x, scale, 2).sum()


DEPTHS = [1, 2, 3, 5]  # less than a chunk, one, one and a rest, and two and a rest


@pytest.mark.parametrize("depth", slow_but([1, 5], DEPTHS))
@pytest.mark.parametrize(
    "options", [{}, pytest.param({"unroll": 2}, marks=pytest.mark.slow), {"remat": True}], ids=repr
)
def test_a_scan_is_the_loop(depth, options):
    """Values, gradients and updates of each layer; an argument that all share may be an array or a number."""
    blocks = [Block(number) for number in range(depth)]
    stack = plait.Stack([Block(number) for number in range(depth)], **options)
    x, scale = jnp.array([0.3, 0.7]), jnp.array([1.5, 0.5])
    expected, wanted = plait.value_and_grad(of_list)(blocks, x, scale)
    found, grads = plait.jit(plait.value_and_grad(of_stack))(stack, x, scale)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    weights = jax.tree.leaves(grads)
    assert [leaf.shape for leaf in weights] == [(depth, 2)]
    np.testing.assert_allclose(weights[0], jnp.stack(jax.tree.leaves(wanted)), rtol=1e-5)
    totals = [block.total[...] for block in stack]
    np.testing.assert_allclose(totals, [block.total[...] for block in blocks], rtol=1e-6)
