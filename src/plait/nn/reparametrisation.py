"""Reparametrisation: wrappers that replace the weights of a layer before each call.

``WeightNorm`` rescales each column of a weight to a learned length; ``SpectralNorm`` divides a weight by its
largest singular value. In training both write the new weights into the layer's own variables: the layer then shows the
weights of its last call, and gradients reach the old weights through the formula. In evaluation the variables hold the
new weights only during the call, and nothing is written: the layer works inside transforms that do not carry it. The
layer itself is unmodified. (rules L21, L22)

The wrapper stores its variables in a dictionary, by the weight's path in the layer: ``scales[("kernel",)]``,
``batch_stats[("layers", 0, "kernel", "u")]``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ..core.graph.locate import describe_place
from ..core.graph.traversal import variables
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.states.state import to_flat_state
from ..core.variables.filters import PathContains
from ..core.variables.variable_kinds import BatchStat, Param
from ..core.variables.variables import Variable, cell_of
from ..errors import ArgumentError, ShapeError
from ..typing import Array, DTypeLike, FilterLiteral, Initializer
from ..util.paths import Path, format_path
from .checks import resolve_switch
from .initializers import default_scale_init, initial, normal
from .norm_statistics import squared
from .promotion import as_dtype, promote_dtype

_KERNELS = PathContains("kernel")
_direction_init = normal()


class WeightNorm(Module):
    """A layer whose weights are ``scale · w / ‖w‖``: direction and length are learned separately.

    The length is the Euclidean norm over all axes but ``feature_axes``. Each call writes the new weights into the
    layer, except in evaluation (``eval()``, or ``plait.view(model, deterministic=True)``).

    Shapes:
        those of the layer.

    Variables:
        layer_instance: those of the layer.
        scales: a dictionary from path in the layer (a tuple) to ``Param``, one for each chosen weight, with the shape
            of its feature axes; ``None`` without ``use_scale``.

    Args:
        layer_instance: the layer.
        feature_axes: axes with one scale per entry; ``None`` means one scale for the whole weight.
        use_scale: whether to learn scales; otherwise all lengths are 1.
        scale_init: initializer of the scales.
        epsilon: added to the square of the length.
        dtype: dtype to which the new weights are rounded before they are stored in their own; ``None`` means no other
            than their own. Lengths and scales are computed in the dtype of weight and scale.
        param_dtype: not used, as in Flax: scales are stored in the dtype that ``scale_init`` gives, float32.
        variable_filter: which variables of the layer are weights.
        promote_dtype: replaces the function that brings weight and scale to one dtype.
        rngs: draws one key from the ``params`` stream for each scale. The default ``scale_init``, ones, needs none.

    Raises:
        ShapeError: a weight does not have one of ``feature_axes``.

    Example:
        >>> norm = plait.WeightNorm(plait.Linear(3, 4, rngs=plait.Rngs(0)), rngs=plait.Rngs(1))
        >>> y = norm(jnp.ones((2, 3)))
        >>> jnp.linalg.norm(norm.layer_instance.kernel[...], axis=0).round(3).tolist()
        [1.0, 1.0, 1.0, 1.0]

    Reference: Salimans and Kingma, "Weight Normalization", 2016, arXiv:1602.07868.
    """

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        feature_axes: int | Sequence[int] | None = -1,
        use_scale: bool = True,
        scale_init: Initializer = default_scale_init,
        epsilon: float = 1e-12,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        variable_filter: FilterLiteral = _KERNELS,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
    ) -> None:
        self.layer_instance = layer_instance
        self.deterministic = False
        self.feature_axes = tuple(feature_axes) if isinstance(feature_axes, Sequence) else feature_axes
        self.use_scale = use_scale
        self.scale_init = scale_init
        self.epsilon = epsilon
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.variable_filter = variable_filter
        self.promote_dtype: Callable[..., Any] = promote_dtype
        self.scales: dict[Path, Param[Any]] | None = {} if use_scale else None
        for path, weight in _weights(layer_instance, variable_filter):
            features = self._features(path, weight)
            if self.scales is not None:
                # As in Flax, the default draws no key, so later layers get the same keys.
                key = None if scale_init is default_scale_init else rngs.params()
                shape = tuple(weight.value.shape[axis] for axis in features)
                self.scales[path] = Param(scale_init(key, shape))

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        new = []
        for path, weight in _weights(self.layer_instance, self.variable_filter):
            scale = None if self.scales is None else self.scales[path].value
            features, (w,) = self._features(path, weight), promote_dtype((weight.value,))
            w = _normalised(w, self.epsilon, tuple(axis for axis in range(w.ndim) if axis not in features))
            if scale is not None:
                w, scale = self.promote_dtype((w, scale))
                w = w * jnp.reshape(scale, [w.shape[axis] if axis in features else 1 for axis in range(w.ndim)])
            new.append((weight, _rounded(w, self.dtype, weight.value.dtype)))
        with _holding(new, keep=not self.deterministic):
            return self.layer_instance(x, *args, **kwargs)

    def set_view(self, deterministic: bool | None = None) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            deterministic: whether calls leave the weights of the layer unchanged.
        """
        if deterministic is not None:
            self.deterministic = deterministic

    def _features(self, path: Path, weight: Variable[Any]) -> tuple[int, ...]:
        """The feature axes of a weight as non-negative numbers, in order."""
        axes = self.feature_axes
        wanted = () if axes is None else (axes,) if isinstance(axes, int) else axes
        shape = weight.value.shape
        for axis in wanted:
            if not -len(shape) <= axis < len(shape):
                raise ShapeError(
                    f"a weight under WeightNorm has no axis {axis}",
                    at=f"{format_path(path)} of the layer in {describe_place(self)}",
                    found=f"a {type(weight).__name__} of shape {shape}",
                    expected=f"a weight with the axes feature_axes={axes}",
                    do="choose other feature_axes, or exclude the variable: variable_filter=plait.PathContains(...)",
                )
        return tuple(sorted({axis % len(shape) for axis in wanted}))


class SpectralNorm(Module):
    """A layer whose weights are divided by their largest singular value ``σ``, which bounds its Lipschitz constant.

    ``σ`` is found by power iteration: ``u`` is stored between calls, each step computes ``v ← normal(u Wᵀ)`` and
    ``u ← normal(v W)``; then ``σ = v W uᵀ``. A weight with more than two axes is reshaped to a matrix, ``(-1, last)``.
    Gradients treat ``u`` and ``v`` as constants. Each call writes the new weights into the layer, except with
    ``update_stats=False``, as in evaluation.

    Shapes:
        those of the layer.

    Variables:
        layer_instance: those of the layer.
        batch_stats: a dictionary with two ``BatchStat`` variables for each ``Param`` of two or more axes. The keys are
            its path in the layer followed by ``"u"`` or ``"sigma"``: ``(1, last)`` and ``()``, both ``param_dtype``.

    Args:
        layer_instance: the layer.
        n_steps: steps of power iteration per call.
        epsilon: added to squared lengths.
        dtype: dtype to which the new weights are rounded before they are stored in their own; ``None`` means no other
            than their own. The iteration computes in the common dtype of weight and ``u``.
        param_dtype: dtype of ``u`` and ``sigma``.
        error_on_non_matrix: whether a weight with more than two axes raises.
        update_stats: whether calls store the new ``u``, ``sigma`` and weights. ``train()`` and ``eval()`` switch it,
            and so does setting ``use_running_average``.
        rngs: draws one key from the ``params`` stream for each ``u``.

    Raises:
        ShapeError: a weight is not a matrix, and ``error_on_non_matrix`` is set.
        ArgumentError: ``n_steps`` is less than 1.

    Example:
        >>> norm = plait.SpectralNorm(plait.Linear(3, 4, rngs=plait.Rngs(0)), n_steps=50, rngs=plait.Rngs(1))
        >>> y = norm(jnp.ones((2, 3)))
        >>> float(jnp.linalg.norm(norm.layer_instance.kernel[...], 2).round(3))
        1.0

    Reference: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018, arXiv:1802.05957.
    """

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        n_steps: int = 1,
        epsilon: float = 1e-12,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        error_on_non_matrix: bool = False,
        update_stats: bool = True,
        rngs: Rngs,
    ) -> None:
        if n_steps < 1:
            raise ArgumentError(
                "SpectralNorm needs at least one step of power iteration",
                found=f"n_steps={n_steps}",
                expected="1 or more",
                do="omit n_steps; use update_stats=False to keep the statistics unchanged",
            )
        self.layer_instance = layer_instance
        self.n_steps = n_steps
        self.epsilon = epsilon
        self.dtype: DTypeLike | None = dtype
        self.param_dtype = param_dtype
        self.error_on_non_matrix = error_on_non_matrix
        self.update_stats = update_stats
        self.batch_stats: dict[Path, BatchStat[Any]] = {}
        for path, weight in _matrices(layer_instance):
            if error_on_non_matrix and weight.value.ndim > 2:
                raise ShapeError(
                    "SpectralNorm with error_on_non_matrix=True takes only matrices",
                    at=f"{format_path(path)} of the layer in {describe_place(self)}",
                    found=f"a {type(weight).__name__} of shape {weight.value.shape}, and error_on_non_matrix=True",
                    expected="two axes",
                    do=f"omit error_on_non_matrix: the weight is then reshaped to (-1, {weight.value.shape[-1]})",
                )
            u = initial(_direction_init, rngs.params, (1, weight.value.shape[-1]), param_dtype)
            self.batch_stats[(*path, "u")] = BatchStat(u)
            self.batch_stats[(*path, "sigma")] = BatchStat(jnp.ones((), param_dtype))

    def __call__(self, x: Any, update_stats: bool | None = None) -> Any:
        update_stats = resolve_switch("update_stats", update_stats, self.update_stats, layer=self)
        new = []
        for path, weight in _matrices(self.layer_instance):
            kept_u, kept_sigma = self.batch_stats[(*path, "u")], self.batch_stats[(*path, "sigma")]
            w, u = promote_dtype((weight.value, kept_u.value))
            matrix = jnp.reshape(w, (-1, w.shape[-1]))
            u, v = _power_iteration(lax.stop_gradient(matrix), u, self.n_steps, self.epsilon)
            sigma = jnp.reshape(v @ matrix @ u.T, ())
            new.append((weight, _rounded(w / jnp.where(sigma == 0, 1, sigma), self.dtype, weight.value.dtype)))
            if update_stats:
                kept_u.value = as_dtype(u, kept_u.value.dtype)
                kept_sigma.value = as_dtype(lax.stop_gradient(sigma), kept_sigma.value.dtype)
        with _holding(new, keep=update_stats):
            return self.layer_instance(x)

    def set_view(self, use_running_average: bool | None = None, update_stats: bool | None = None) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            use_running_average: whether to leave ``u`` and ``sigma`` unchanged, as ``BatchNorm`` does its running
                averages.
            update_stats: the opposite, under the constructor's name.
        """
        if use_running_average is not None:
            self.update_stats = not use_running_average
        if update_stats is not None:
            self.update_stats = update_stats


def _weights(layer: Any, filter: FilterLiteral) -> Iterator[tuple[Path, Variable[Any]]]:
    """The layer's own variables that match a filter, with their paths."""
    yield from to_flat_state(variables(layer, filter, graph=True))


def _matrices(layer: Any) -> Iterator[tuple[Path, Variable[Any]]]:
    return ((path, weight) for path, weight in _weights(layer, Param) if weight.value.ndim >= 2)


@contextlib.contextmanager
def _holding(new: list[tuple[Variable[Any], Array]], *, keep: bool) -> Iterator[None]:
    """Give variables new values inside the block; without ``keep`` they are restored afterwards.

    This bypasses the guard against writes from another trace, since no value remains.
    """
    if keep:
        for variable, value in new:
            variable.value = value
        yield
        return
    cells = [(cell_of(variable), value) for variable, value in new]
    old = [cell.raw for cell, _ in cells]
    try:
        for cell, value in cells:
            cell.raw = value
        yield
    finally:
        for (cell, _), value in zip(cells, old, strict=True):
            cell.raw = value


def _rounded(w: Array, dtype: DTypeLike | None, own: DTypeLike) -> Array:
    """A new weight, rounded to ``dtype``, in the weight's own dtype."""
    return as_dtype(w if dtype is None else as_dtype(w, dtype), own)


def _normalised(x: Array, epsilon: float, axes: tuple[int, ...] | None = None) -> Array:
    """``x / ‖x‖``, with ``epsilon`` under the root: zero stays zero."""
    return x * lax.rsqrt(jnp.sum(squared(x), axes, keepdims=True) + epsilon)


def _power_iteration(w: Array, u: Array, n_steps: int, epsilon: float) -> tuple[Array, Array]:
    """Approximate right and left singular vectors of ``w`` for its largest singular value, as rows."""
    for _ in range(n_steps - 1):
        u = _normalised(_normalised(u @ w.T, epsilon) @ w, epsilon)
    v = _normalised(u @ w.T, epsilon)
    return _normalised(v @ w, epsilon), v
