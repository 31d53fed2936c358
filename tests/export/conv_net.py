"""The model of the export tests: a small convolutional classifier of 8×8 images in plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from plait.export.program.input_spec import InputSpec

IMAGES = InputSpec(("batch", 8, 8, 1))
BATCH_SIZES = (1, 5)


def params() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)

    def normal(*shape, scale):
        return draw.normal(size=shape, scale=scale).astype(np.float32)

    return {
        "conv/kernel": normal(3, 3, 1, 16, scale=0.3),
        "conv/bias": normal(16, scale=0.1),
        "norm/scale": 1 + normal(16, scale=0.1),
        "norm/bias": normal(16, scale=0.1),
        "norm/mean": normal(16, scale=0.1),
        "norm/var": 1 + np.abs(normal(16, scale=0.1)),
        "hidden/kernel": normal(256, 128, scale=0.06),
        "hidden/bias": normal(128, scale=0.1),
        "head/kernel": normal(128, 10, scale=0.1),
        "head/bias": normal(10, scale=0.1),
    }


def log_probabilities(params, x):
    kernel = params["conv/kernel"]
    y = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    y = y + wide(params["conv/bias"], y)
    y = (y - wide(params["norm/mean"], y)) * lax.rsqrt(wide(params["norm/var"], y) + 1e-5)
    y = jax.nn.relu(y * wide(params["norm/scale"], y) + wide(params["norm/bias"], y))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    y = y.reshape((y.shape[0], 256))
    y = jax.nn.relu(y @ params["hidden/kernel"] + params["hidden/bias"][None])
    return jax.nn.log_softmax(y @ params["head/kernel"] + params["head/bias"][None])


def wide(vector, y):
    """A vector of features with as many axes as ``y``: the tests run with rank promotion forbidden."""
    return vector.reshape((1,) * (y.ndim - 1) + vector.shape)


def inputs() -> list[np.ndarray]:
    """One batch of each size."""
    draw = np.random.default_rng(1)
    return [draw.normal(size=(size, 8, 8, 1)).astype(np.float32) for size in BATCH_SIZES]


def outputs() -> list[np.ndarray]:
    return [np.asarray(log_probabilities(params(), x)) for x in inputs()]
