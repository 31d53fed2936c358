"""Normalisation: subtract a mean, divide by a deviation, then scale and shift by learned factors.

The layers differ in the axes over which they compute the two statistics:

* ``BatchNorm`` (``batch_norm.py``): all but the features, with running averages for evaluation;
* ``LayerNorm``: the features, for each position; ``RMSNorm``: the same without the mean;
* ``GroupNorm`` (``group_norm.py``): a group of features and all positions of an example;
* ``InstanceNorm``: one feature of an example.

Input, scale and bias are brought to the layer's dtype first. The statistics are in ``norm_statistics.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Weight
from ..errors import ArgumentError, ShapeError
from ..typing import Array, Axes, DTypeLike, Initializer
from ..util.static_values import HashableMapping
from .checks import check_array, check_members, check_min_rank, check_rngs, weight_length
from .initializers import default_bias_init, default_scale_init
from .linear import as_tuple, without_arrays
from .norm_statistics import mean_square, moments, normalised
from .promotion import promote_dtype
from .stored_arguments import new_weight


class Norm(Module):
    """Base of all norms: stores arguments and parameters.

    A subclass chooses the axes. Its constructor stores its other arguments. ``RMSNorm`` alone has no bias.
    """

    bias: Weight
    feature_axes: Axes

    def _store(self, arguments: dict[str, Any]) -> None:
        """Store what all norms have, from the ``locals()`` of a constructor: common arguments, ``scale``, ``bias``."""
        self.num_features: int = arguments["num_features"]
        self.epsilon: float = arguments["epsilon"]
        self.dtype: DTypeLike | None = arguments["dtype"]
        self.param_dtype: DTypeLike = arguments["param_dtype"]
        self.use_scale: bool = arguments["use_scale"]
        self.axis_name: str | None = arguments["axis_name"]
        self.axis_index_groups: Any = arguments["axis_index_groups"]
        self.use_fast_variance: bool = arguments["use_fast_variance"]
        self.promote_dtype: Callable[..., Any] = arguments["promote_dtype"]
        check_rngs(arguments["rngs"], layer=self)
        self.scale: Weight = new_weight("scale", (self.num_features,), arguments) if self.use_scale else None
        if "use_bias" in arguments:
            self.use_bias: bool = arguments["use_bias"]
            self.bias = new_weight("bias", (self.num_features,), arguments) if self.use_bias else None

    def _scale_and_bias(self) -> tuple[Array | None, Array | None]:
        scale, bias = self.scale, self.bias
        values = None if scale is None else scale[...], None if bias is None else bias[...]
        for value in values:
            check_members(value, 1, layer=self)
        return values

    def _feature_axes(self, x: Array, scale: Array | None, bias: Array | None) -> tuple[int, ...]:
        """The feature axes of ``x`` as non-negative numbers, checked to have ``num_features`` entries.

        Raises:
            ShapeError: they do not have ``num_features`` entries.
        """
        axes = resolve_axes(self.feature_axes, x, self)
        size = math.prod(x.shape[axis] for axis in axes)
        wanted = weight_length(bias, 0, weight_length(scale, 0, self.num_features))
        # A norm without parameters accepts a shard of the features; BatchNorm checks their number itself.
        of_parts = self.axis_name is not None and self.scale is None and self.bias is None
        if size != wanted and not of_parts:
            name = type(self).__name__
            raise ShapeError(
                f"the features of the input do not fit the {name}",
                at=describe_place(self),
                found=f"an input of shape {x.shape}, with {size} features along feature_axes={self.feature_axes}",
                expected=f"{wanted} features: num_features={self.num_features}",
                do=f"pass {wanted} features, or create the layer for this input: {name}({size}, ...)",
            )
        return axes

    def _devices(self) -> dict[str, Any]:
        """The named axis over which statistics are averaged too."""
        groups = self.axis_index_groups
        return {
            "axis_name": self.axis_name,
            "axis_index_groups": None if groups is None else tuple(map(tuple, groups)),
        }


class LayerNorm(Norm):
    """Normalise the features of each position: ``y = (x − mean) / sqrt(var + epsilon) · scale + bias``.

    Shapes:
        x, y: any shape; the lengths of ``feature_axes`` multiply to ``num_features``. mask: broadcasts to ``x``.

    Variables:
        scale: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_scale``.
        bias: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        num_features: number of features.
        epsilon: added to the variance.
        dtype: dtype of the result; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        use_bias: whether to shift.
        use_scale: whether to scale.
        bias_init: initializer of ``bias``.
        scale_init: initializer of ``scale``.
        reduction_axes: axes over which the statistics are taken.
        feature_axes: axes along which ``scale`` and ``bias`` lie.
        axis_name: name of an axis of ``vmap`` or ``shard_map`` over which statistics are averaged too.
        axis_index_groups: groups of indices along that axis that are averaged separately.
        use_fast_variance: E[x²] − E[x]² instead of E[(x − E[x])²]; one pass, less exact for a large mean.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        rngs: draws one key from the ``params`` stream for each parameter.
        bias_metadata: metadata of ``bias``.
        scale_metadata: metadata of ``scale``.

    Raises:
        ShapeError: the feature axes of ``x`` do not have ``num_features`` entries.

    Example:
        >>> norm = plait.LayerNorm(4, use_bias=False, rngs=plait.Rngs(0))
        >>> norm(jnp.array([1.0, 1.0, 3.0, 3.0])).round(3).tolist()
        [-1.0, -1.0, 1.0, 1.0]

    Reference: Ba, Kiros and Hinton, "Layer Normalization", 2016, arXiv:1607.06450.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = HashableMapping(),
        scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self._store(locals())
        self.reduction_axes = without_arrays(reduction_axes)
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_array(x, layer=self)
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        features = self._feature_axes(x, scale, bias)
        axes = resolve_axes(self.reduction_axes, x, self)
        mean, var = moments(x, mask, axes=axes, fast=self.use_fast_variance, **self._devices())
        return normalised(x, mean, var, scale, bias, self.epsilon, features=features, dtype=self.dtype)


class RMSNorm(Norm):
    """Divide the features of each position by their root mean square: ``y = x / sqrt(mean(x²) + epsilon) · scale``.

    Shapes:
        x, y: any shape; the lengths of ``feature_axes`` multiply to ``num_features``. mask: broadcasts to ``x``.

    Variables:
        scale: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_scale``.

    Args:
        num_features: number of features.
        epsilon: added to the mean of squares.
        dtype: dtype of the result; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which ``scale`` is stored.
        use_scale: whether to scale.
        scale_offset: added to ``scale``: with 1, a ``scale`` of zeros changes nothing.
        scale_init: initializer of ``scale``.
        reduction_axes: axes over which the mean is taken.
        feature_axes: axes along which ``scale`` lies.
        axis_name: name of an axis of ``vmap`` or ``shard_map`` over which the mean is taken too.
        axis_index_groups: groups of indices along that axis that are averaged separately.
        use_fast_variance: has no effect; accepted so that norms have the same arguments.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        rngs: draws one key from the ``params`` stream for ``scale``.
        scale_metadata: metadata of ``scale``.

    Raises:
        ShapeError: the feature axes of ``x`` do not have ``num_features`` entries.

    Example:
        >>> norm = plait.RMSNorm(2, rngs=plait.Rngs(0))
        >>> norm(jnp.array([3.0, 3.0])).round(3).tolist()
        [1.0, 1.0]

    Reference: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467.
    """

    bias = None  # no attribute of the graph

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_scale: bool = True,
        scale_offset: float = 0.0,
        scale_init: Initializer = default_scale_init,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self._store(locals())
        self.scale_offset = scale_offset
        self.reduction_axes = without_arrays(reduction_axes)
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        check_array(x, layer=self)
        scale, _ = self._scale_and_bias()
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        features = self._feature_axes(x, scale, None)
        square = mean_square(x, mask, axes=resolve_axes(self.reduction_axes, x, self), **self._devices())
        settings: Any = {"features": features, "dtype": self.dtype, "offset": self.scale_offset}
        return normalised(x, None, square, scale, None, self.epsilon, **settings)


class InstanceNorm(Norm):
    """Normalise each feature of each example over its positions, with the formula of ``LayerNorm``.

    Shapes:
        x, y: ``(batch, ...)``; the lengths of ``feature_axes`` multiply to ``num_features``. mask: broadcasts to ``x``.

    Variables:
        scale: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_scale``.
        bias: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        num_features: number of features.
        epsilon: added to the variance.
        dtype: dtype of the result; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        use_bias: whether to shift.
        use_scale: whether to scale.
        bias_init: initializer of ``bias``.
        scale_init: initializer of ``scale``.
        feature_axes: axes of features, not the first axis; statistics are taken over all other axes but the first.
        axis_name: name of an axis of ``vmap`` or ``shard_map`` over which statistics are averaged too.
        axis_index_groups: groups of indices along that axis that are averaged separately.
        use_fast_variance: E[x²] − E[x]² instead of E[(x − E[x])²]; one pass, less exact for a large mean.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        rngs: draws one key from the ``params`` stream for each parameter.
        bias_metadata: metadata of ``bias``.
        scale_metadata: metadata of ``scale``.

    Raises:
        ShapeError: the feature axes of ``x`` do not have ``num_features`` entries.
        ArgumentError: the first axis is among ``feature_axes``.

    Example:
        >>> norm = plait.InstanceNorm(1, rngs=plait.Rngs(0))
        >>> norm(jnp.array([[[1.0], [3.0]], [[10.0], [30.0]]])).round(3)[..., 0].tolist()
        [[-1.0, 1.0], [-1.0, 1.0]]

    Reference: Ulyanov, Vedaldi and Lempitsky, "Instance Normalization", 2016, arXiv:1607.08022.
    """

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = HashableMapping(),
        scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self._store(locals())
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_min_rank(x, 2, "a batch axis first, then features and positions", layer=self)
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        if 0 in resolve_axes(self.feature_axes, x, self):
            raise ArgumentError(
                "InstanceNorm treats the first axis as the batch, so it cannot be a feature axis",
                at=describe_place(self),
                found=f"feature_axes={self.feature_axes} and an input of shape {x.shape}",
                expected="feature_axes without axis 0",
                do="move the features to another axis with jnp.moveaxis",
            )
        features = self._feature_axes(x, scale, bias)
        axes = all_but((0, *features), x.ndim)
        mean, var = moments(x, mask, axes=axes, fast=self.use_fast_variance, **self._devices())
        return normalised(x, mean, var, scale, bias, self.epsilon, features=features, dtype=self.dtype)


def resolve_axes(axes: Axes, x: Array, layer: Norm) -> tuple[int, ...]:
    """Axes of ``x`` as non-negative numbers, in order.

    Raises:
        ShapeError: ``x`` does not have one of them.
    """
    wanted = as_tuple(axes)
    for axis in wanted:
        if not -x.ndim <= axis < x.ndim:
            raise ShapeError(
                f"the input has no axis {axis}",
                at=describe_place(layer),
                found=f"an input of shape {x.shape}",
                expected=f"an input with the axes {wanted}",
                do="add the missing axes, for example with x[None]",
            )
    return tuple(sorted(axis % x.ndim for axis in wanted))


def all_but(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(ndim) if axis not in axes)
