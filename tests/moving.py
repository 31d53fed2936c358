"""Eager operations that only move or convert numbers are done by NumPy, so nothing is compiled for them.

Each shape of a reshape or a broadcast is a program of its own, and outside of ``jax.jit`` the tests meet a few hundred
of them in each folder. A result has the same bits, dtype and place. The rest is left to XLA: arrays that were put
somewhere, keys, weakly typed results, operations with a sharding, conversions that may overflow an integer, and all
that is traced.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

try:
    from jax._src import array, dispatch
    from jax._src.lax import lax
except ImportError:  # not in this JAX; the tests then take longer
    array = dispatch = lax = None

LARGEST = 2**16  # entries


def reshaped(x, *, new_sizes, dimensions, sharding):
    return None if dimensions is not None or sharding is not None else x.reshape(new_sizes)


def broadcast(x, *, shape, broadcast_dimensions, sharding):
    if sharding is not None:
        return None
    lengths = dict(zip(broadcast_dimensions, x.shape, strict=True))
    return np.broadcast_to(x.reshape([lengths.get(axis, 1) for axis in range(len(shape))]), shape)


def transposed(x, *, permutation):
    return x.transpose(permutation)


def squeezed(x, *, dimensions):
    return x.squeeze(tuple(dimensions))


def converted(x, *, new_dtype, weak_type, sharding):
    if sharding is not None or weak_type or jax.dtypes.issubdtype(new_dtype, jax.dtypes.extended):
        return None
    kinds = [jnp.issubdtype(dtype, jnp.floating) for dtype in (x.dtype, new_dtype)]
    if x.dtype != bool and not (kinds[1] and (kinds[0] or jnp.issubdtype(x.dtype, jnp.integer))):
        return None
    with np.errstate(all="ignore"):
        return x.astype(new_dtype)


MOVES = {
    "broadcast_in_dim_p": broadcast,
    "convert_element_type_p": converted,
    "reshape_p": reshaped,
    "squeeze_p": squeezed,
    "transpose_p": transposed,
}


def move_with_numpy() -> None:
    for name, move in MOVES.items():
        primitive = getattr(lax, name, None)
        if primitive is not None and getattr(primitive.impl, "func", None) is dispatch.apply_primitive:
            primitive.def_impl(of_numpy(move, primitive.impl))


def of_numpy(move, compiled):
    @functools.wraps(move)
    def moved(*args, **params):
        if len(args) == 1 and is_plain(args[0]):
            result = move(np.asarray(args[0]), **params)
            if result is not None:
                return jnp.array(result)
        return compiled(*args, **params)

    return moved


def is_plain(x) -> bool:
    """Whether an array lies where JAX puts arrays by itself, with nothing that an operation would hand on."""
    return (
        type(x) is array.ArrayImpl
        and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)
        and not (x.weak_type or x.committed or jax.config.jax_debug_nans or jax.config.jax_debug_infs)
        and x.size <= LARGEST
        and jax.sharding.get_abstract_mesh().empty
        and jax.config.jax_default_device is None
    )
