"""Every layer beside its twin in Flax: the same constructor call, the same seed, the same input."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.compare import HALF, LOOSE, readable, wide

TOLERANCE, HALF_TOLERANCE = LOOSE, HALF


def flax_nnx() -> Any:
    return pytest.importorskip("flax.nnx")


@contextlib.contextmanager
def users_promotion() -> Iterator[None]:
    """JAX's own defaults, which Flax needs; the tests themselves run under strict ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def pure(state: Any, lib: Any = plait) -> dict[str, np.ndarray]:
    """The leaves of a library's state by path, as text: ``layers.0.kernel``."""
    leaves = {}
    for path, leaf in lib.to_flat_state(state):
        value = leaf.get_raw_value() if hasattr(leaf, "get_raw_value") else leaf
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        leaves[".".join(map(str, path))] = value
    return leaves


@dataclasses.dataclass
class Run:
    """What one layer did: output, gradients by its parameters and its input, and the statistics after the call."""

    y: Any
    grads: Mapping[str, Any]
    x_grad: Any
    stats: Mapping[str, Any]


def run(lib: Any, layer: Any, x: Any, *calls: Any, **kwargs: Any) -> Run:
    """Call a layer of a library inside ``jax.jit``, with the gradient of a weighted sum of all that it returns."""
    graphdef, params, rest = lib.split(layer, lib.Param, ...)

    def loss(params: Any, x: Any, rest: Any) -> Any:
        model = lib.merge(graphdef, params, rest, copy=True)
        y = model(x, *calls, **kwargs)
        return sum(map(_weighted_sum, jax.tree.leaves(y))), (y, lib.state(model, lib.BatchStat))

    argnums = (0, 1) if jnp.issubdtype(x.dtype, jnp.inexact) else 0
    (_, (y, stats)), grads = jax.jit(jax.value_and_grad(loss, argnums=argnums, has_aux=True))(params, x, rest)
    params_grad, x_grad = grads if isinstance(grads, tuple) else (grads, None)
    return Run(y, pure(params_grad, lib), x_grad, pure(stats, lib))


def _weighted_sum(y: Any) -> Any:
    weights = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
    return (weights * jnp.abs(y).astype(jnp.float32)).sum()


def twins(name: str, *args: Any, seed: int = 0, **kwargs: Any) -> tuple[Any, Any]:
    """Ours and Flax's layer of one name, after checking that they start with the same state."""
    nnx = flax_nnx()
    ours = getattr(plait, name)(*args, rngs=plait.Rngs(seed), **kwargs)
    with users_promotion():
        theirs = getattr(nnx, name)(*args, rngs=nnx.Rngs(seed), **kwargs)
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    assert list(mine) == list(other)
    for path in mine:
        assert mine[path].dtype == other[path].dtype
        np.testing.assert_array_equal(np.asarray(mine[path]), np.asarray(other[path]), err_msg=path)
    return ours, theirs


def assert_twins_agree(
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    x: Any,
    tolerance: Any = TOLERANCE,
    *,
    gradients: bool = True,
    **call: Any,
) -> None:
    """Same start, same output and dtype, same statistics, and the same gradients."""
    assert_pair_agrees(*twins(name, *args, **kwargs), x, tolerance, gradients=gradients, **call)


def assert_pair_agrees(
    ours: Any, theirs: Any, x: Any, tolerance: Any = TOLERANCE, *, gradients: bool = True, **call: Any
) -> None:
    """The same for two layers that are there already; they may return several arrays."""
    if not gradients:
        with users_promotion():
            expected = theirs(x, **call)
        compare(ours(x, **call), expected, tolerance, "output")
        return
    mine = run(plait, ours, x, **call)
    with users_promotion():
        other = run(flax_nnx(), theirs, x, **call)
    assert jax.tree.structure(mine.y) == jax.tree.structure(other.y)
    assert list(mine.grads) == list(other.grads)
    for y, expected in zip(jax.tree.leaves(mine.y), jax.tree.leaves(other.y), strict=True):
        assert y.dtype == expected.dtype
        compare(y, expected, tolerance, "output")
    for path in mine.grads:
        compare(mine.grads[path], other.grads[path], tolerance, f"gradient of {path}")
    if mine.x_grad is not None:
        compare(mine.x_grad, other.x_grad, tolerance, "gradient of the input")
    for path in mine.stats:
        compare(mine.stats[path], other.stats[path], tolerance, path)


def compare(mine: Any, other: Any, tolerance: Any, what: str) -> None:
    """Values alone: shapes may be broadcast, dtypes differ, as in ``assert_allclose``."""
    np.testing.assert_allclose(wide(readable(mine)), wide(readable(other)), err_msg=what, **tolerance)


def some_input(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    """Numbers around 0.5 with deviation 2."""
    return jnp.asarray(np.random.default_rng(seed).normal(0.5, 2.0, shape), np.float32).astype(dtype)


class Encoder(plait.Module):
    """A model that holds a layer at the path ``encoder.layers[3]``."""

    def __init__(self, layer: Any) -> None:
        self.encoder = plait.Dict(layers=[None, None, None, layer])

    def __call__(self, x: Any, **kwargs: Any) -> Any:
        return self.encoder["layers"][3](x, **kwargs)
