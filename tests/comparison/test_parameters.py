"""The arrays of a module, by role and with plait's order of axes, whatever library they are of."""

import numpy as np
import pytest

from plait.comparison.calls import Call
from plait.comparison.parameters import channels_last, parameters_of


def call(kind):
    return Call((), ((),), "", kind, None, {}, {}, [], 0, 1)


W = np.arange(24.0).reshape(2, 3, 4)
ROLES = {  # library, class, name, array → role, array
    "plait, kernel": ("plait", "Linear", "kernel", W[0], "kernel", W[0]),
    "flax.nnx, table": ("flax.nnx", "Embed", "table", W[0], "embedding", W[0]),
    "linen, scale": ("linen", "LayerNorm", "scale", W[0, 0], "scale", W[0, 0]),
    "w": ("plait", "Dense", "w", W[0], "kernel", W[0]),
    "w of an embedding": ("plait", "Embedding", "w", W[0], "embedding", W[0]),
    "weight of a norm": ("plait", "RMSNorm", "weight", W[0, 0], "scale", W[0, 0]),
    "b": ("plait", "Dense", "b", W[0, 0], "bias", W[0, 0]),
    "g": ("plait", "Norm", "g", W[0, 0], "scale", W[0, 0]),
    "gamma": ("plait", "Norm", "gamma", W[0, 0], "scale", W[0, 0]),
    "beta": ("plait", "Norm", "beta", W[0, 0], "bias", W[0, 0]),
    "another": ("plait", "Norm", "running_mean", W[0, 0], "running_mean", W[0, 0]),
    "torch, linear": ("torch", "Linear", "weight", W[0], "kernel", W[0].T),
    "torch, embedding": ("torch", "Embedding", "weight", W[0], "embedding", W[0]),
    "torch, norm": ("torch", "LayerNorm", "weight", W[0, 0], "scale", W[0, 0]),
    "torch, convolution": ("torch", "Conv1d", "weight", W, "kernel", W.transpose(2, 1, 0)),
    "torch, transposed convolution": ("torch", "ConvTranspose1d", "weight", W, "kernel", W.transpose(2, 0, 1)),
    "torch, projection": ("torch", "MultiheadAttention", "in_proj_weight", W[0], "kernel", W[0].T),
    "torch, its bias": ("torch", "MultiheadAttention", "in_proj_bias", W[0, 0], "bias", W[0, 0]),
    "torch, mean": ("torch", "BatchNorm1d", "running_mean", W[0, 0], "mean", W[0, 0]),
    "torch, variance": ("torch", "BatchNorm1d", "running_var", W[0, 0], "var", W[0, 0]),
}


@pytest.mark.parametrize("name", ROLES)
def test_an_array_has_a_role(name):
    library, kind, own, array, role, expected = ROLES[name]
    found = parameters_of(library, call(kind), {"num_batches_tracked": np.array(3), own: array, "other": W})
    assert [*found] == [role, "other"]
    np.testing.assert_array_equal(found[role], expected)
    np.testing.assert_array_equal(found["other"], W)


CHANNELS = ("Conv2d", "ConvTranspose1d", "BatchNorm2d", "GroupNorm", "InstanceNorm2d")


@pytest.mark.parametrize("kind", [*CHANNELS, "LayerNorm", "Linear"])
def test_channels_of_torch_come_last_where_they_were_second(kind):
    moved = W.transpose(0, 2, 1) if kind in CHANNELS else W
    np.testing.assert_array_equal(channels_last("torch", call(kind), W), moved)
    np.testing.assert_array_equal(channels_last("torch", call(kind), W[0]), W[0])
    np.testing.assert_array_equal(channels_last("plait", call(kind), W), W)
