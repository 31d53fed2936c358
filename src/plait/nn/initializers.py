"""Initializers: functions ``(key, shape, dtype) -> array`` that return the initial values of parameters.

They come from ``jax.nn.initializers``; ``zeros_init()`` and ``ones_init()`` are added, with the others' call form.
"""

# Rule F7.

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.nn.initializers import (
    constant as constant,
    delta_orthogonal as delta_orthogonal,
    glorot_normal as glorot_normal,
    glorot_uniform as glorot_uniform,
    he_normal as he_normal,
    he_uniform as he_uniform,
    kaiming_normal as kaiming_normal,
    kaiming_uniform as kaiming_uniform,
    lecun_normal as lecun_normal,
    lecun_uniform as lecun_uniform,
    normal as normal,
    ones as ones,
    orthogonal as orthogonal,
    truncated_normal as truncated_normal,
    uniform as uniform,
    variance_scaling as variance_scaling,
    xavier_normal as xavier_normal,
    xavier_uniform as xavier_uniform,
    zeros as zeros,
)

from ..core.rngs import RngStream, skip_key
from ..errors import ArgumentTypeError
from ..typing import Initializer as Initializer
from ..util.jax_versions import is_staged

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "ones_init",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_init",
]
__dir__ = __all__.copy


def zeros_init() -> Initializer:
    """An initializer that returns zeros.

    Example:
        >>> plait.initializers.zeros_init()(jax.random.key(0), (2,), jnp.float32).tolist()
        [0.0, 0.0]
    """
    return zeros


def ones_init() -> Initializer:
    """An initializer that returns ones.

    Example:
        >>> plait.initializers.ones_init()(jax.random.key(0), (2,), jnp.float32).tolist()
        [1.0, 1.0]
    """
    return ones


# The default initializers of layers. One object each: layers with equal arguments then have equal graphdefs.
default_kernel_init = lecun_normal()
default_bias_init = zeros
default_embed_init = variance_scaling(1.0, "fan_in", "normal", out_axis=0)
default_scale_init = ones
default_lora_init = he_uniform()


def default_recurrent_init(key: Any, shape: Any, dtype: Any = jnp.float32, **options: Any) -> Any:
    """``orthogonal()``. Its QR decomposition lacks 16-bit types, so those are computed in float32 and rounded."""
    is_half = jnp.finfo(dtype).bits < 32
    return jnp.asarray(_orthogonal(key, shape, jnp.float32 if is_half else dtype, **options), dtype)


def default_lstm_recurrent_init(key: Any, shape: Any, dtype: Any = jnp.float32, **options: Any) -> Any:
    """``orthogonal()`` in JAX's default dtype (float64 with x64), then rounded: the numbers of Flax's ``LSTMCell``."""
    return jnp.asarray(_orthogonal(key, shape, **options), dtype)


_orthogonal = orthogonal()


def initial(init: Initializer, stream: Callable[[], Any], shape: Any, dtype: Any) -> jax.Array:
    """``init(key, shape, dtype)`` with the next key of a stream.

    Zeros and ones need no key, so no key is derived for them. The stream's counter advances anyway, so later keys do
    not depend on earlier initializers.

    JAX's initializers are a dozen operations each, and zeros take much longer to ask for than to make. So zeros are one
    compiled call, and where operations are only recorded, those of an initializer are recorded once for each shape. The
    values are the same, to the bit.

    Raises:
        ArgumentTypeError: a length is no integer from 0 to 2**63; no key is drawn.
    """
    if not _is_shape(shape):
        raise ArgumentTypeError(
            "a weight cannot have the shape that follows from the sizes of its layer",
            found=f"{tuple(shape)!r:.200}",
            expected="sizes that are integers, 0 or more",
            do="for example plait.Linear(3, 4, rngs=rngs)",
        )
    if (init is zeros or init is ones) and isinstance(stream, RngStream):  # a stream may be any source of keys
        skip_key(stream)
        key, known = None, _known(init)
    else:
        key = stream()
        known = _known(init) if is_staged() else None
    if known is not None and all(type(length) is int for length in shape):
        return _computed(known, key, shape, dtype)
    return init(key, shape, dtype)


def _is_shape(lengths: Any) -> bool:
    try:
        return all(0 <= operator.index(length) < 1 << 63 for length in lengths)  # a length may be an array
    except TypeError:
        return False


@dataclasses.dataclass(frozen=True)
class _Known:
    """An initializer of JAX; equal to others that draw the same.

    Attributes:
        code, parameters: its function, and the text of what that was made with.
        init: the initializer.
    """

    code: Any
    parameters: str
    init: Any = dataclasses.field(compare=False)


_OF_JAX = cast(Any, default_kernel_init).__globals__
_PLAIN = {bool, int, float, str, tuple, type(None)}


def _known(init: Any) -> _Known | None:
    """The key by which two initializers are equal, for JAX's own, undecorated, made with plain values."""
    if getattr(init, "__globals__", None) is not _OF_JAX:
        return None
    parameters = [cell.cell_contents for cell in init.__closure__ or ()]
    return _Known(init.__code__, repr(parameters), init) if _PLAIN.issuperset(map(type, parameters)) else None


@functools.partial(jax.jit, static_argnums=(0, 2, 3), inline=True)
def _computed(known: _Known, key: Any, shape: Any, dtype: Any) -> jax.Array:
    return known.init(key, shape, dtype)
