"""Linen modules and trees that several tests of the bridge share."""

import flax.linen as nn
import jax
import numpy as np

from tests.compare import assert_same


def same_trees(first, second):
    """Assert equal structure, boxes and, to the last bit, values and dtypes."""
    assert_same(first, second)


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


# A plait call and a Linen call of the same thing, in one table: (Linen module, arguments, keywords, mutable, streams).
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
SEQUENCE = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.linspace(-1, 1, 96, dtype=np.float32).reshape(2, 4, 4, 3)
IDS = np.arange(6, dtype=np.int32).reshape(2, 3)


class LayerCase:
    def __init__(self, module, *args, mutable=False, method=None, **kwargs):
        self.module, self.args, self.mutable, self.method, self.kwargs = module, args, mutable, method, kwargs


LAYERS = {
    "Dense": LayerCase(nn.Dense(3), X),
    "Dense in bfloat16": LayerCase(nn.Dense(3, param_dtype=jax.numpy.bfloat16, dtype=jax.numpy.float32), X),
    "Dense in float8": LayerCase(nn.Dense(3, dot_general_cls=nn.Fp8DirectDotGeneralOp), X),
    "DenseGeneral": LayerCase(nn.DenseGeneral((2, 3), axis=-1), SEQUENCE),
    "Einsum": LayerCase(nn.Einsum((4, 5), "abc,cd->abd"), SEQUENCE),
    "Conv": LayerCase(nn.Conv(2, (3, 3)), IMAGE),
    "ConvLocal": LayerCase(nn.ConvLocal(2, (3, 3)), IMAGE),
    "ConvTranspose": LayerCase(nn.ConvTranspose(2, (2, 2)), IMAGE),
    "Embed": LayerCase(nn.Embed(7, 3), IDS),
    "BatchNorm": LayerCase(nn.BatchNorm(use_running_average=False), X, mutable=["batch_stats"]),
    "LayerNorm": LayerCase(nn.LayerNorm(), X),
    "RMSNorm": LayerCase(nn.RMSNorm(), X),
    "GroupNorm": LayerCase(nn.GroupNorm(num_groups=2), X),
    "InstanceNorm": LayerCase(nn.InstanceNorm(), IMAGE),
    "SpectralNorm": LayerCase(nn.SpectralNorm(nn.Dense(3)), X, update_stats=True, mutable=["batch_stats"]),
    "WeightNorm": LayerCase(nn.WeightNorm(nn.Dense(3)), X),
    "PReLU": LayerCase(nn.PReLU(), X),
    "Dropout": LayerCase(nn.Dropout(0.5, deterministic=False), X),
    "Sequential": LayerCase(nn.Sequential([nn.Dense(3), nn.relu, nn.Dense(2)]), X),
    "MultiHeadDotProductAttention": LayerCase(nn.MultiHeadDotProductAttention(2, deterministic=True), SEQUENCE),
    "decoding": LayerCase(
        nn.MultiHeadDotProductAttention(2, decode=True, deterministic=True), SEQUENCE[:, :1], mutable=["cache"]
    ),
    "LSTMCell": LayerCase(nn.LSTMCell(3), (X[:, :3], X[:, :3]), X),
    "OptimizedLSTMCell": LayerCase(nn.OptimizedLSTMCell(3), (X[:, :3], X[:, :3]), X),
    "GRUCell": LayerCase(nn.GRUCell(3), X[:, :3], X),
    "MGUCell": LayerCase(nn.MGUCell(3), X[:, :3], X),
    "SimpleCell": LayerCase(nn.SimpleCell(3), X[:, :3], X),
    "RNN": LayerCase(nn.RNN(nn.SimpleCell(3)), SEQUENCE),
    "Bidirectional": LayerCase(nn.Bidirectional(nn.RNN(nn.SimpleCell(3)), nn.RNN(nn.SimpleCell(3))), SEQUENCE),
}
