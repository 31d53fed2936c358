"""Normalisation: subtract a mean, divide by a deviation, then scale and shift by learned factors.

The layers differ in the axes over which they compute the two statistics:

* ``BatchNorm``: all but the features, with running averages for evaluation;
* ``LayerNorm``: the features, for each position; ``RMSNorm``: the same without the mean;
* ``GroupNorm``: a group of features and all positions of an example; ``InstanceNorm``: one feature each.

The variance is E[x²] − E[x]² by default (``use_fast_variance``), which reads the input once. The mean of squares is
computed *before* the mean: XLA's CPU backend then fuses both into one pass, which makes a transformer step 15 % faster.
Input, scale and bias are brought to the layer's dtype first; statistics are then taken, and everything is combined, in
float32 or wider.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core.graph.locate import describe_place
from ..core.objects.module import Module
from ..core.objects.rngs import Rngs
from ..core.objects.statics import HashableMapping
from ..core.objects.variable_kinds import BatchStat, Param
from ..errors import ArgumentError, ShapeError, SingleValueWarning
from ..typing import Array, Axes, DTypeLike, Initializer
from .arithmetic import arithmetic
from .checks import check_array, check_axis, check_min_rank, check_rngs, resolve_switch, weight_length
from .initializers import default_bias_init, default_scale_init, initial
from .linear import as_tuple, without_arrays
from .promotion import as_dtype, canonicalize_dtype, common_dtype, promote_dtype, promoted_ranks


class _Norm(Module):
    """Base of all norms: stores arguments and parameters, computes statistics, and applies them.

    A subclass chooses the axes. Its constructor stores its other arguments, and determines whether there is a bias.
    """

    bias: Param[Any] | None

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float,
        dtype: DTypeLike | None,
        param_dtype: DTypeLike,
        use_scale: bool,
        scale_init: Initializer,
        axis_name: str | None,
        axis_index_groups: Any,
        use_fast_variance: bool,
        promote_dtype: Callable[..., Any],
        rngs: Rngs,
        scale_metadata: Mapping[str, Any],
    ) -> None:
        self.num_features = num_features
        self.epsilon = epsilon
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.use_scale = use_scale
        self.axis_name = axis_name
        self.axis_index_groups: Any = axis_index_groups
        self.use_fast_variance: bool = use_fast_variance
        self.promote_dtype: Callable[..., Any] = promote_dtype
        check_rngs(rngs, layer=self)
        self.scale: Param[Any] | None = None
        if use_scale:
            self.scale = Param(initial(scale_init, rngs.params, (num_features,), param_dtype), **scale_metadata)

    def _add_bias(self, use_bias: bool, bias_init: Initializer, bias_metadata: Mapping[str, Any], rngs: Rngs) -> None:
        """Create ``bias``, which all norms except ``RMSNorm`` have."""
        self.use_bias = use_bias
        self.bias = None
        if use_bias:
            self.bias = Param(initial(bias_init, rngs.params, (self.num_features,), self.param_dtype), **bias_metadata)

    def _scale_and_bias(self) -> tuple[Array | None, Array | None]:
        scale, bias = self.scale, self.bias
        return None if scale is None else scale[...], None if bias is None else bias[...]

    def _feature_axes(self, x: Array, feature_axes: Axes) -> tuple[int, ...]:
        """The feature axes of ``x`` as non-negative numbers, checked to have ``num_features`` entries.

        Raises:
            ShapeError: they do not have ``num_features`` entries.
        """
        axes = _resolve_axes(feature_axes, x, self)
        size = math.prod(x.shape[axis] for axis in axes)
        wanted = self.num_features
        for weight in (self.scale, self.bias):
            if weight is not None:
                wanted = weight_length(weight[...], 0, wanted)
        # A norm without parameters accepts a shard of the features; BatchNorm checks their number itself.
        of_parts = self.axis_name is not None and self.scale is None and self.bias is None
        if size != wanted and not of_parts:
            name = type(self).__name__
            raise ShapeError(
                f"the features of the input do not fit the {name}",
                at=describe_place(self),
                found=f"an input of shape {x.shape}, with {size} features along feature_axes={feature_axes}",
                expected=f"{wanted} features: num_features={self.num_features}",
                do=f"pass {wanted} features, or create the layer for this input: {name}({size}, ...)",
            )
        return axes

    def _statistics(self, x: Array, axes: tuple[int, ...], mask: Array | None) -> tuple[Array, Array]:
        """Mean and biased variance over ``axes``, which stay with length 1, in float32 or wider."""
        if self.axis_name is None:
            return _moments(x, mask, axes=axes, fast=self.use_fast_variance)
        return _moments_of(x, mask, axes=axes, fast=self.use_fast_variance, over_devices=self._over_devices)

    def _over_devices(self, *averages: Array) -> Sequence[Array]:
        """Average over ``axis_name`` too, in one exchange between devices. The first value may be complex."""
        together = jnp.stack([as_dtype(average, averages[0].dtype) for average in averages])
        together = lax.pmean(together, self.axis_name, axis_index_groups=self.axis_index_groups)
        return [
            whole if jnp.iscomplexobj(average) else whole.real
            for whole, average in zip(together, averages, strict=True)
        ]

    def _normalise(
        self,
        x: Array,
        mean: Array | None,
        var: Array,
        scale: Array | None,
        bias: Array | None,
        features: tuple[int, ...],
    ) -> Array:
        """``(x − mean) / sqrt(var + epsilon) · scale + bias``, computed in the widest dtype.

        The result has the layer's dtype, or the common dtype of ``x`` and the parameters: with a custom
        ``promote_dtype``, ``x`` may have a different one.
        """
        dtype = x.dtype
        if self.promote_dtype is not promote_dtype:
            dtype = canonicalize_dtype(x, scale, bias, dtype=self.dtype)
        return _normalised(x, mean, var, scale, bias, self.epsilon, features=features, dtype=dtype)


def _as_given(*averages: Array) -> Sequence[Array]:
    return averages


def _moments_of(
    x: Array, mask: Array | None, *, axes: tuple[int, ...], fast: bool, over_devices: Callable[..., Any] = _as_given
) -> tuple[Array, Array]:
    """Mean and biased variance; ``over_devices`` averages over devices too."""
    x = _widened(x)
    if fast:
        square = _average(squared(x), axes, mask)  # before the mean: see the top of the file
        mean, square = over_devices(_average(x, axes, mask), square)
        # Rounding can make the difference negative.
        return mean, jnp.maximum(square - squared(mean), 0)
    (mean,) = over_devices(_average(x, axes, mask))
    (var,) = over_devices(_average(squared(x - mean), axes, mask))  # needs the mean first: a second exchange
    return mean, var


_moments = arithmetic("axes", "fast")(_moments_of)


@arithmetic("axes")
def _mean_square(x: Array, mask: Array | None, *, axes: tuple[int, ...]) -> Array:
    return _average(squared(_widened(x)), axes, mask)


@arithmetic("features", "dtype")
def _normalised(
    x: Array,
    mean: Array | None,
    var: Array,
    scale: Array | None,
    bias: Array | None,
    epsilon: float,
    *,
    features: tuple[int, ...],
    dtype: np.dtype,
) -> Array:
    """``(x − mean) / sqrt(var + epsilon) · scale + bias``, computed in the widest dtype."""
    wide = x.dtype if var.dtype == x.dtype else common_dtype(x, var)
    y = as_dtype(x, wide)
    if mean is not None:
        y = y - as_dtype(mean, wide)
    factor = lax.rsqrt(var + jnp.asarray(epsilon, var.dtype))
    if features != (x.ndim - 1,):
        scale, bias = (each if each is None else _spread(each, shape=x.shape, axes=features) for each in (scale, bias))
    with promoted_ranks():
        if scale is not None:
            factor = as_dtype(factor, wide) * as_dtype(scale, wide)
        y = y * as_dtype(factor, wide)
        if bias is not None:
            y = y + as_dtype(bias, wide)
    return as_dtype(y, dtype)


class BatchNorm(_Norm):
    """Normalise each feature over the batch and all positions: ``y = (x − mean) / sqrt(var + epsilon) · scale + bias``.

    In training it uses the statistics of the batch, and moves the running averages towards them:
    ``running ← momentum · running + (1 − momentum) · batch``, with the biased variance and without gradient. Otherwise
    it uses the running averages.

    Shapes:
        x, y: any shape with ``num_features`` along ``axis``. mask: broadcasts to ``x``.

    Variables:
        mean: ``BatchStat``, ``(num_features,)``, float32, starts at 0. var: the same, starts at 1.
        scale: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_scale``.
        bias: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        num_features: length of ``axis``.
        use_running_average: whether to use the running averages; ``None`` leaves it to each call.
        momentum: weight of the old running average in each update.
        epsilon: added to the variance.
        axis: the axis of features.
        dtype: dtype of the result; ``None`` means the common dtype of input, statistics and parameters.
        param_dtype: dtype in which the parameters are stored.
        use_bias: whether to shift.
        use_scale: whether to scale.
        bias_init: initializer of ``bias``.
        scale_init: initializer of ``scale``.
        axis_name: name of an axis of ``vmap`` or ``shard_map`` over which statistics are averaged too.
        axis_index_groups: groups of indices along that axis that are averaged separately.
        use_fast_variance: E[x²] − E[x]² instead of E[(x − E[x])²]; one pass, less exact for a large mean.
        promote_dtype: replaces the function that brings input, statistics and parameters to one dtype.
        rngs: draws one key from the ``params`` stream for each parameter.
        bias_metadata: metadata of ``bias``.
        scale_metadata: metadata of ``scale``.

    Raises:
        ShapeError: ``x`` is not ``num_features`` long along ``axis``.
        ArgumentError: ``use_running_average`` is ``None`` here and in the call.

    Warns:
        SingleValueWarning: in training, ``x`` has one value per feature and ``axis_name`` is ``None``: the variance
            of the batch is 0, so the result is ``bias`` for any ``x``.

    Example:
        >>> norm = plait.BatchNorm(3, momentum=0.5, rngs=plait.Rngs(0))
        >>> _ = norm(jnp.full((4, 3), 2.0))
        >>> norm.mean[...].tolist(), norm.var[...].tolist()
        ([1.0, 1.0, 1.0], [0.5, 0.5, 0.5])

    Reference: Ioffe and Szegedy, "Batch Normalization", 2015, arXiv:1502.03167.
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool | None = False,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        axis: int = -1,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = HashableMapping(),
        scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self._add_bias(use_bias, bias_init, bias_metadata, rngs)
        self.use_running_average = use_running_average
        self.momentum = momentum
        self.axis = without_arrays(axis)
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))

    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        use_running_average = resolve_switch(
            "use_running_average", use_running_average, self.use_running_average, layer=self
        )
        size = weight_length(self.mean.value, 0, self.num_features)
        check_axis(x, self.axis, size, layer=self, size_name="num_features")
        running = (self.mean.value, self.var.value)
        x, mean, var, scale, bias = self.promote_dtype((x, *running, *self._scale_and_bias()), dtype=self.dtype)
        features = (self.axis % x.ndim,)
        if use_running_average:
            mean, var = (_spread(stat, shape=x.shape, axes=features) for stat in (mean, var))
        else:
            axes = _all_but(features, x.ndim)
            if self.axis_name is None and all(x.shape[axis] == 1 for axis in axes):
                _warn_of_single_values(x, self)
            mean, var = self._statistics(x, axes, mask)
            self._remember(mean, var)
        return self._normalise(x, mean, var, scale, bias, features)

    def _remember(self, mean: Array, var: Array) -> None:
        for stat, batch in ((self.mean, mean), (self.var, var)):
            stat.value = _moved(stat.value, batch, self.momentum, 1 - self.momentum)

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            use_running_average: whether to use the running averages instead of the statistics of the batch.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(_Norm):
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
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self._add_bias(use_bias, bias_init, bias_metadata, rngs)
        self.reduction_axes = without_arrays(reduction_axes)
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_array(x, layer=self)
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        features = self._feature_axes(x, self.feature_axes)
        mean, var = self._statistics(x, _resolve_axes(self.reduction_axes, x, self), mask)
        return self._normalise(x, mean, var, scale, bias, features)


class RMSNorm(_Norm):
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
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self.reduction_axes = without_arrays(reduction_axes)
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, mask: Array | None = None) -> Array:
        check_array(x, layer=self)
        scale = None if self.scale is None else self.scale[...]
        x, scale = self.promote_dtype((x, scale), dtype=self.dtype)
        features = self._feature_axes(x, self.feature_axes)
        axes = _resolve_axes(self.reduction_axes, x, self)
        square = _mean_square(x, mask, axes=axes)
        if self.axis_name is not None:
            (square,) = self._over_devices(square)
        return self._normalise(x, None, square, scale, None, features)


class GroupNorm(_Norm):
    """Normalise groups of features over an example: ``y = (x − mean) / sqrt(var + epsilon) · scale + bias``.

    Shapes:
        x, y: ``(batch, ..., num_features)``. mask: broadcasts to ``x``.

    Variables:
        scale: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_scale``.
        bias: ``Param``, ``(num_features,)``, ``param_dtype``; ``None`` without ``use_bias``.

    Args:
        num_features: length of the last axis of ``x``.
        num_groups: number of groups; ``None`` when ``group_size`` is given.
        group_size: features per group; ``None`` when ``num_groups`` is given.
        epsilon: added to the variance.
        dtype: dtype of the result; ``None`` means the common dtype of input and parameters.
        param_dtype: dtype in which the parameters are stored.
        use_bias: whether to shift.
        use_scale: whether to scale.
        bias_init: initializer of ``bias``.
        scale_init: initializer of ``scale``.
        reduction_axes: axes of ``x`` over which the statistics are taken, including the last one (within its group);
            ``None`` means all but the first.
        axis_name: name of an axis of ``vmap`` or ``shard_map`` over which statistics are averaged too.
        axis_index_groups: groups of indices along that axis that are averaged separately.
        use_fast_variance: E[x²] − E[x]² instead of E[(x − E[x])²]; one pass, less exact for a large mean.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        rngs: draws one key from the ``params`` stream for each parameter.
        bias_metadata: metadata of ``bias``.
        scale_metadata: metadata of ``scale``.

    Raises:
        ArgumentError: not exactly one of ``num_groups`` and ``group_size`` was given, it does not divide
            ``num_features``, or ``reduction_axes`` does not include the last axis.
        ShapeError: the last axis of ``x`` is not ``num_features`` long.

    Example:
        >>> norm = plait.GroupNorm(4, num_groups=2, rngs=plait.Rngs(0))
        >>> norm(jnp.array([[1.0, 3.0, 10.0, 30.0]])).round(3).tolist()
        [[-1.0, 1.0, -1.0, 1.0]]

    Reference: Wu and He, "Group Normalization", 2018, arXiv:1803.08494.
    """

    derived_arguments = ("group_size",)  # follows from num_groups when a layer is rebuilt from its attributes

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = 32,
        group_size: int | None = None,
        *,
        epsilon: float = 1e-6,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Initializer = default_bias_init,
        scale_init: Initializer = default_scale_init,
        reduction_axes: Axes | None = None,
        axis_name: str | None = None,
        axis_index_groups: Any = None,
        use_fast_variance: bool = True,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        bias_metadata: Mapping[str, Any] = HashableMapping(),
        scale_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.feature_axis = -1
        self.num_groups, self.group_size = _resolve_groups(num_features, num_groups, group_size)
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self._add_bias(use_bias, bias_init, bias_metadata, rngs)
        self.reduction_axes = without_arrays(reduction_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_min_rank(x, 2, "a batch axis first, features last", layer=self)
        check_axis(x, -1, self.num_features, layer=self, size_name="num_features")
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        axes = tuple(range(1, x.ndim)) if self.reduction_axes is None else _resolve_axes(self.reduction_axes, x, self)
        if x.ndim - 1 not in axes:
            raise ArgumentError(
                "GroupNorm computes its statistics over groups of features",
                at=describe_place(self),
                found=f"reduction_axes={self.reduction_axes}, without the last axis",
                expected="reduction_axes with the feature axis, -1",
                do="add -1 to reduction_axes, or omit reduction_axes",
            )
        grouped = (*x.shape[:-1], self.num_groups, self.group_size)
        if mask is not None:
            mask = _of_rank(jnp.asarray(mask), x.ndim)
            mask = jnp.reshape(mask, (*mask.shape[:-1], *((1, 1) if mask.shape[-1] == 1 else grouped[-2:])))
        # The last axis of x became two: the groups, which are not reduced, and the features in a group.
        axes = tuple(x.ndim if axis == x.ndim - 1 else axis for axis in axes)
        mean, var = self._statistics(jnp.reshape(x, grouped), axes, mask)
        mean, var = (_ungrouped(stat, grouped=grouped) for stat in (mean, var))
        return self._normalise(x, mean, var, scale, bias, (x.ndim - 1,))


class InstanceNorm(_Norm):
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
        super().__init__(
            num_features,
            epsilon=epsilon,
            dtype=dtype,
            param_dtype=param_dtype,
            use_scale=use_scale,
            scale_init=scale_init,
            axis_name=axis_name,
            axis_index_groups=axis_index_groups,
            use_fast_variance=use_fast_variance,
            promote_dtype=promote_dtype,
            rngs=rngs,
            scale_metadata=scale_metadata,
        )
        self._add_bias(use_bias, bias_init, bias_metadata, rngs)
        self.feature_axes = without_arrays(feature_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_min_rank(x, 2, "a batch axis first, then features and positions", layer=self)
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        if 0 in _resolve_axes(self.feature_axes, x, self):
            raise ArgumentError(
                "InstanceNorm treats the first axis as the batch, so it cannot be a feature axis",
                at=describe_place(self),
                found=f"feature_axes={self.feature_axes} and an input of shape {x.shape}",
                expected="feature_axes without axis 0",
                do="move the features to another axis with jnp.moveaxis",
            )
        features = self._feature_axes(x, self.feature_axes)
        mean, var = self._statistics(x, _all_but((0, *features), x.ndim), mask)
        return self._normalise(x, mean, var, scale, bias, features)


@arithmetic()
def _moved(running: Array, batch: Array, momentum: float, rest: float) -> Array:
    """The running average after a batch."""
    running, batch = lax.stop_gradient((running, jnp.reshape(batch, running.shape)))
    wide = common_dtype(running, batch)  # with 64 bits, batches are wider than what is stored; the products are not
    return as_dtype(as_dtype(momentum * running, wide) + as_dtype(rest * batch, wide), running.dtype)


def _resolve_groups(num_features: int, num_groups: int | None, group_size: int | None) -> tuple[int, int]:
    """The number and the size of the groups.

    Raises:
        ArgumentError: not exactly one was given, or it does not divide ``num_features``.
    """
    if (num_groups is None) == (group_size is None):
        raise ArgumentError(
            "GroupNorm takes either num_groups or group_size",
            found=f"num_groups={num_groups} and group_size={group_size}",
            expected="exactly one of the two; num_groups is 32 by default",
            do=f"use num_groups=None, group_size={group_size or 16}, or omit group_size",
        )
    name, value = ("num_groups", num_groups) if num_groups is not None else ("group_size", group_size)
    assert value is not None
    if value <= 0 or num_features % value:
        fitting = next(n for n in range(min(max(value, 1), num_features), 0, -1) if num_features % n == 0)
        raise ArgumentError(
            f"the {name} of a GroupNorm must divide its number of features",
            found=f"num_features={num_features} and {name}={value}",
            expected=f"a {name} that divides {num_features}",
            do=f"for example {name}={fitting}",
        )
    return (value, num_features // value) if num_groups is not None else (num_features // value, value)


def _resolve_axes(axes: Axes, x: Array, layer: _Norm) -> tuple[int, ...]:
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


def _all_but(axes: Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(axis for axis in range(ndim) if axis not in axes)


def _widened(x: Array) -> Array:
    return x if x.dtype == jnp.float32 else as_dtype(x, common_dtype(x, jnp.float32))


def squared(x: Array) -> Array:
    """``|x|²``, real also for complex ``x``."""
    return lax.square(x.real) + lax.square(x.imag) if jnp.iscomplexobj(x) else lax.square(x)


def _average(x: Array, axes: tuple[int, ...], mask: Array | None) -> Array:
    where = None if mask is None else _of_rank(jnp.asarray(mask, bool), x.ndim)
    return jnp.mean(x, axes, keepdims=True, where=where)


def _of_rank(mask: Array, ndim: int) -> Array:
    """A mask with leading axes of length 1. ``jnp.mean`` broadcasts it, and XLA fuses that with the sums."""
    return jnp.reshape(mask, (1,) * (ndim - mask.ndim) + mask.shape)


def _warn_of_single_values(x: Array, layer: BatchNorm) -> None:
    """Warn, not raise: people use a batch of one to inspect a model (``eval_shape``, tables of its layers)."""
    warnings.warn(
        f"BatchNorm in training has only one value per feature: the result is the bias alone.\n"
        f"  at        {describe_place(layer)}\n"
        f"  found     an input of shape {x.shape}\n"
        f"  expected  more than one value for each of the {layer.num_features} features\n"
        f"  do        train with larger batches, or use the running averages: model.eval(), or "
        f"layer(x, use_running_average=True)",
        SingleValueWarning,
        stacklevel=3,
    )


@arithmetic("shape", "axes")
def _spread(value: Array, *, shape: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """A vector of features, with an axis of length 1 for each other axis of the shape."""
    return jnp.reshape(value, [size if axis in axes else 1 for axis, size in enumerate(shape)])


@arithmetic("grouped")
def _ungrouped(stat: Array, *, grouped: tuple[int, ...]) -> Array:
    """A statistic per group, repeated for each feature."""
    stat = jnp.broadcast_to(stat, (*stat.shape[:-2], *grouped[-2:]))
    return jnp.reshape(stat, (*stat.shape[:-2], grouped[-2] * grouped[-1]))
