"""The floating-point operations of one equation, counted as XLA does.

A product counts two for each pair of numbers, a reduction one for each number that it takes in, every other arithmetic
operation one for each number of its result. Exponentials, logarithms and the like, and what only moves numbers, count
nothing. Unlike XLA, a random number counts one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .module_operations import ModuleOperations

_MOVING = """
    broadcast_in_dim reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice concatenate pad
    gather scatter iota rev copy copy_p device_put sharding_constraint bitcast_convert_type stop_gradient split
    optimization_barrier random_wrap random_unwrap random_seed
"""
_TRANSCENDENTAL = """
    exp exp2 expm1 log log1p logistic tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh atan2 erf erfc pow
    sqrt rsqrt cbrt
"""
_FREE = frozenset((_MOVING + _TRANSCENDENTAL).split())


def flops_of(eqn: Any) -> int:
    """The floating-point operations of an equation without programs inside."""
    name = eqn.primitive.name
    if name in _FREE or not eqn.outvars:
        return 0
    shape, size = getattr(eqn.outvars[0].aval, "shape", ()), _size(eqn.outvars[0])
    if name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * size * math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        return _of_convolution(eqn, shape)
    if name.startswith("scatter"):
        return _size(eqn.invars[2])
    if name.startswith("reduce_window"):
        return size * (math.prod(eqn.params["window_dimensions"]) - 1)
    if name.startswith("reduce_") or name in ("argmax", "argmin"):
        return _size(eqn.invars[0]) - size
    return size


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _of_convolution(eqn: Any, shape: Sequence[int]) -> int:
    """Twice the pairs of an input and a weight; what is padding is no input."""
    params, (images, kernel) = eqn.params, (each.aval.shape for each in eqn.invars)
    numbers = params["dimension_numbers"]
    pairs = 2 * shape[numbers.out_spec[0]] * shape[numbers.out_spec[1]] * kernel[numbers.rhs_spec[1]]
    for number, (axis, window, out) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        spread = params["lhs_dilation"][number]
        starts = np.arange(shape[out]) * params["window_strides"][number] - params["padding"][number][0]
        places = np.add.outer(starts, np.arange(kernel[window]) * params["rhs_dilation"][number])
        inside = (places >= 0) & (places <= (images[axis] - 1) * spread) & (places % spread == 0)
        pairs *= int(inside.sum())
    return pairs


def costliest(branches: Sequence[Any]) -> Sequence[Any]:
    """The branch of a ``cond`` with the most operations, which is the one that XLA counts."""
    return [max(branches, key=_total)]


def _total(jaxpr: Any) -> int:
    return sum(each.times * flops_of(each.eqn) for each in ModuleOperations(()).of(jaxpr, costliest))
