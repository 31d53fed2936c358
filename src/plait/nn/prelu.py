"""PReLU: a rectifier with a learned slope for negative inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ..core.nodes.module import Module
from ..core.variables.variable_kinds import Param
from ..typing import Array, DTypeLike
from ..util.static_values import HashableMapping
from .promotion import promote_dtype


class PReLU(Module):
    """``y = inputs`` where ``inputs ≥ 0``, otherwise ``negative_slope · inputs``, with one learned slope.

    Shapes:
        inputs, y: any shape.

    Variables:
        negative_slope: ``Param``, ``()``, ``param_dtype``.

    Args:
        negative_slope_init: the initial slope.
        dtype: dtype to compute in; ``None`` means that of the input, as activations do, and a float type for integers.
        param_dtype: dtype in which the slope is stored.
        promote_dtype: replaces the function that brings input and slope to one dtype.
        negative_slope_metadata: metadata of ``negative_slope``.

    Example:
        >>> plait.PReLU(0.5)(jnp.array([-2.0, 3.0])).tolist()
        [-1.0, 3.0]

    Reference: He et al., "Delving Deep into Rectifiers", 2015, arXiv:1502.01852.
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        promote_dtype: Callable[..., Any] = promote_dtype,
        negative_slope_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.promote_dtype: Callable[..., Any] = promote_dtype
        self.negative_slope = Param(jnp.asarray(negative_slope_init, param_dtype), **negative_slope_metadata)

    def __call__(self, inputs: Array) -> Array:
        inputs = jnp.asarray(inputs)
        is_inexact = jnp.issubdtype(inputs.dtype, jnp.inexact)
        dtype = inputs.dtype if self.dtype is None and is_inexact else self.dtype
        inputs, slope = self.promote_dtype((inputs, self.negative_slope[...]), dtype=dtype)
        return jnp.where(inputs >= 0, inputs, slope * inputs)
