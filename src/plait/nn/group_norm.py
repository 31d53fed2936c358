"""Group normalisation: statistics of groups of features, over all positions of an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.rngs import Rngs
from ..errors import ArgumentError
from ..typing import Array, Axes, DTypeLike, Initializer
from ..util.static_values import HashableMapping
from .checks import check_axis, check_min_rank
from .initializers import default_bias_init, default_scale_init
from .linear import without_arrays
from .norm import Norm, resolve_axes
from .norm_statistics import moments, normalised, of_rank, ungrouped
from .promotion import promote_dtype


class GroupNorm(Norm):
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
        self._store(locals())
        self.reduction_axes = without_arrays(reduction_axes)

    def __call__(self, x: Array, *, mask: Array | None = None) -> Array:
        check_min_rank(x, 2, "a batch axis first, features last", layer=self)
        x, scale, bias = self.promote_dtype((x, *self._scale_and_bias()), dtype=self.dtype)
        check_axis(x, -1, self.num_features, layer=self, size_name="num_features")
        axes = tuple(range(1, x.ndim)) if self.reduction_axes is None else resolve_axes(self.reduction_axes, x, self)
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
            mask = of_rank(jnp.asarray(mask), x.ndim)
            mask = jnp.reshape(mask, (*mask.shape[:-1], *((1, 1) if mask.shape[-1] == 1 else grouped[-2:])))
        # The last axis of x became two: the groups, which are not reduced, and the features in a group.
        axes = tuple(x.ndim if axis == x.ndim - 1 else axis for axis in axes)
        each = jnp.reshape(x, grouped)
        mean, var = moments(each, mask, axes=axes, fast=self.use_fast_variance, **self._devices())
        mean, var = (ungrouped(stat, grouped=grouped) for stat in (mean, var))
        return normalised(x, mean, var, scale, bias, self.epsilon, features=(x.ndim - 1,), dtype=self.dtype)


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
        fitting = next((n for n in range(min(max(value, 1), num_features), 0, -1) if num_features % n == 0), 1)
        raise ArgumentError(
            f"the {name} of a GroupNorm must divide its number of features",
            found=f"num_features={num_features} and {name}={value}",
            expected=f"a {name} that divides {num_features}",
            do=f"for example {name}={fitting}",
        )
    return (value, num_features // value) if num_groups is not None else (num_features // value, value)
