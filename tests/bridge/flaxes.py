"""Linen modules and trees that several tests of the bridge share."""

import flax.linen as nn
import jax
import numpy as np


def same_trees(first, second):
    """Assert equal structure, boxes and, to the last bit, values and dtypes."""
    leaves, structure = jax.tree.flatten(first)
    others, other_structure = jax.tree.flatten(second)
    assert structure == other_structure
    for one, other in zip(map(readable, leaves), map(readable, others), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def readable(leaf):
    is_key = hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def plain(tree):
    """Frozen dictionaries as plain ones."""
    return {key: plain(value) for key, value in tree.items()} if hasattr(tree, "items") else tree


class Block(nn.Module):
    """Parameters, statistics, dropout, a counter, and something sown."""

    features: int = 3

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(self.features)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        self.sow("intermediates", "hidden", x)
        calls = self.variable("counter", "calls", lambda: np.zeros((), np.int32))
        if not self.is_initializing() and self.is_mutable_collection("counter"):
            calls.value = calls.value + 1
        return nn.Dropout(0.5, deterministic=not train)(x)

    def doubled(self, x):
        return x * 2
