"""Batch normalisation: statistics of the batch in training, running averages in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import BatchStat
from ..errors import SingleValueWarning
from ..typing import Array, DTypeLike, Initializer
from ..util.notices import warn
from ..util.static_values import HashableMapping
from .checks import check_array, check_axis, resolve_switch, weight_length
from .initializers import default_bias_init, default_scale_init
from .linear import without_arrays
from .norm import Norm, all_but
from .norm_statistics import moments, moved, normalised, spread
from .promotion import promote_dtype


class BatchNorm(Norm):
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
        self._store(locals())
        self.use_running_average = use_running_average
        self.momentum = momentum
        self.axis = without_arrays(axis)
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))

    def __call__(self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None) -> Array:
        use_running_average = resolve_switch(
            "use_running_average", use_running_average, self.use_running_average, layer=self
        )
        check_array(x, layer=self)
        running = (self.mean.value, self.var.value)
        x, mean, var, scale, bias = self.promote_dtype((x, *running, *self._scale_and_bias()), dtype=self.dtype)
        size = weight_length(mean, 0, self.num_features)
        check_axis(x, self.axis, size, layer=self, size_name="num_features")
        features = (self.axis % x.ndim,)
        if use_running_average:
            mean, var = (spread(stat, shape=x.shape, axes=features) for stat in (mean, var))
        else:
            axes = all_but(features, x.ndim)
            if self.axis_name is None and all(x.shape[axis] == 1 for axis in axes):
                _warn_of_single_values(x, self)
            mean, var = moments(x, mask, axes=axes, fast=self.use_fast_variance, **self._devices())
            for stat, batch in ((self.mean, mean), (self.var, var)):
                stat.value = moved(stat.value, batch, self.momentum, 1 - self.momentum)
        return normalised(x, mean, var, scale, bias, self.epsilon, features=features, dtype=self.dtype)

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            use_running_average: whether to use the running averages instead of the statistics of the batch.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


def _warn_of_single_values(x: Array, layer: BatchNorm) -> None:
    """Warn, not raise: people use a batch of one to inspect a model (``eval_shape``, tables of its layers)."""
    warn(
        SingleValueWarning,
        "BatchNorm in training has only one value per feature: the result is the bias alone.",
        at=describe_place(layer),
        found=f"an input of shape {x.shape}",
        expected=f"more than one value for each of the {layer.num_features} features",
        do="train with larger batches, or use the running averages: model.eval(), or "
        "layer(x, use_running_average=True)",
    )
