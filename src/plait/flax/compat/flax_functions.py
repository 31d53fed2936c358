"""Functions and types of Flax NNX that plait itself does not use, for ``plait.as_flax``.

Private ones are there if published packages call them. ``flax_paths.py`` says where a program finds them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from ...core.nodes.module import Module
from ...core.variables.filters import resolve_filters
from ...errors import ArgumentError, ArgumentTypeError
from ...nn.conv import channels_last
from ...nn.norm_statistics import mean_square, moments, normalised
from ...nn.promotion import common_dtype
from ...typing import Array, DTypeLike, FilterLiteral
from ...util.paths import Key as Key, Path
from ..bridge.module.running import current_context
from .private_names import PytreeState

A = TypeVar("A")

Filter, PathParts, filters_to_predicates, ObjectState = FilterLiteral, Path, resolve_filters, PytreeState


def first_from(*args: A | None, error_msg: str) -> A:
    """The first argument that is not ``None``.

    Raises:
        ValueError: all are ``None``; the message is ``error_msg``.
    """
    for arg in args:
        if arg is not None:
            return arg
    raise ValueError(error_msg)


def canonicalize_padding(padding: Any, rank: int) -> str | Sequence[tuple[int, int]]:
    """The padding of a convolution as JAX takes it.

    Args:
        padding: a name, which is returned unchanged, one number, or a number or a pair for each axis.
        rank: the number of spatial axes.

    Raises:
        ArgumentError: the padding has none of these forms.
    """
    if isinstance(padding, str):
        return padding
    each = [padding] * rank if isinstance(padding, int) else padding
    if isinstance(each, Sequence) and len(each) == rank:
        pairs = [(side, side) if isinstance(side, int) else tuple(side) for side in each]
        if all(len(pair) == 2 for pair in pairs):
            return pairs
    raise ArgumentError(
        "this is not a padding for a convolution",
        found=repr(padding),
        expected=f"a name, a number, or a sequence of {rank} numbers or pairs of numbers",
        do='use, for example, padding="SAME" or padding=1',
    )


@dataclasses.dataclass(frozen=True)
class UUID:
    """An identifier; each that ``uuid`` returns differs from all others."""

    id: int


_numbers = itertools.count()


def uuid() -> UUID:
    """A new identifier."""
    return UUID(next(_numbers))


def _conv_dimension_numbers(input_shape: Sequence[int]) -> lax.ConvDimensionNumbers:
    """The dimension numbers of a convolution for inputs of this shape: ``(batch, *spatial, features)``."""
    return channels_last(len(input_shape) - 2)


def resolve_kwargs(fun: Any = None, args: Any = (), kwargs: Any = None) -> Any:
    """The arguments of a call by position, defaults included; without arguments, a decorator that passes them so.

    Raises:
        ArgumentTypeError: an argument can be passed by name only.
    """
    if fun is None:
        return lambda f: functools.wraps(f)(lambda *args, **kwargs: f(*resolve_kwargs(f, args, kwargs)))
    if not isinstance(fun, functools.partial):
        bound = inspect.signature(fun).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if kwargs:
        raise ArgumentTypeError(
            "keyword arguments could not be resolved to positions",
            found=f"{', '.join(kwargs)} of {getattr(fun, '__name__', fun)}",
            expected="arguments that can be passed by position",
            do="pass them by position",
        )
    return args


def _resolve_bound_callable(f: Callable[..., Any]) -> tuple[Callable[..., Any], Any, bool]:
    """``(function, module, True)`` for a method of a module, or for a partial of one; else ``(f, None, False)``."""
    method = f.func if isinstance(f, functools.partial) else f
    if not isinstance(method, types.MethodType) or not isinstance(method.__self__, Module):
        return f, None, False
    function = method.__func__
    if isinstance(f, functools.partial):
        function = functools.partial(function, *f.args, **f.keywords)
    return function, method.__self__, True


def _select_last_carry(sequence: Any, seq_lengths: Array) -> Any:
    """The last step of each sequence in ``(time, batch, ...)``, as ``(batch, ...)``."""
    return jax.tree.map(lambda x: x[seq_lengths - 1, jnp.arange(x.shape[1])], sequence)


def _canonicalize_axes(rank: int, axes: int | Sequence[int]) -> tuple[int, ...]:
    """Axes as non-negative numbers, in order, each once."""
    each = axes if isinstance(axes, Sequence) else (axes,)
    return tuple(sorted({axis + rank if axis < 0 else axis for axis in each}))


def _compute_stats(
    x: Any,
    axes: int | Sequence[int],
    dtype: DTypeLike | None,
    axis_name: Hashable | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    mask: Array | None = None,
) -> tuple[Array, Array]:
    """Mean, or zeros, and variance over the axes, in float32 or wider."""
    x = jnp.asarray(x)
    x = x.astype(common_dtype(x.dtype if dtype is None else jnp.dtype(dtype), jnp.float32))
    axes = _canonicalize_axes(x.ndim, axes)
    groups = None if axis_index_groups is None else tuple(map(tuple, axis_index_groups))
    if use_mean:
        stats = moments(x, mask, axes=axes, fast=use_fast_variance, axis_name=axis_name, axis_index_groups=groups)
    else:
        var = mean_square(x, mask, axes=axes, axis_name=axis_name, axis_index_groups=groups)
        stats = jnp.zeros_like(var), var
    mean, var = (jnp.squeeze(each, axes) for each in stats)
    return mean, var


def _normalize(
    x: Array,
    mean: Array,
    var: Array,
    scale: Array | None,
    bias: Array | None,
    reduction_axes: int | Sequence[int],
    feature_axes: int | Sequence[int],
    dtype: DTypeLike | None,
    epsilon: float,
) -> Array:
    """``(x - mean) / sqrt(var + epsilon) * scale + bias``, where the statistics lack the ``reduction_axes``."""
    mean, var = (jnp.expand_dims(each, _canonicalize_axes(x.ndim, reduction_axes)) for each in (mean, var))
    features = _canonicalize_axes(x.ndim, feature_axes)
    return normalised(x, mean, var, scale, bias, epsilon, features=features, dtype=dtype)


class _ModuleContext:
    """The running ``bridge.Module`` of this thread, as the last element of a list."""

    @property
    def module_stack(self) -> list[Any]:
        entry = current_context()
        return [None] if entry is None else [None, entry]


MODULE_CONTEXT = _ModuleContext()
