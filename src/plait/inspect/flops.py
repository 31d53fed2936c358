"""The floating-point operations of one equation, counted as XLA does.

A product counts two for each pair of numbers, a reduction one for each number that it takes in, every other arithmetic
operation one for each number of its result. Exponentials, logarithms and the like, and what only moves numbers, count
nothing. Unlike XLA, a random number counts one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .module_operations import ModuleOperations


def flops_of(eqn: Any) -> int:
    """The floating-point operations of an equation without programs inside."""
    return _COUNTS.get(eqn.primitive.name, _of_result)(eqn) if eqn.outvars else 0


def _of_result(eqn: Any) -> int:
    return _size(eqn.outvars[0])


def _of_updates(eqn: Any) -> int:
    return _size(eqn.invars[2])


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))


def _of_product(eqn: Any) -> int:
    """Twice the pairs: each number of the first with those of the second that share its batch and contracted axes.

    The rows of a ragged product belong to one group each.
    """
    ragged = eqn.params.get("ragged_dot_dimension_numbers")
    numbers = eqn.params["dimension_numbers"] if ragged is None else ragged.dot_dimension_numbers
    shared = [*numbers[0][1], *numbers[1][1], *(() if ragged is None else ragged.rhs_group_dimensions)]
    return 2 * _size(eqn.invars[0]) * math.prod(np.delete(eqn.invars[1].aval.shape, shared).tolist())


def _of_scaled_product(eqn: Any) -> int:
    return 2 * _of_result(eqn) * eqn.invars[0].aval.shape[-1]


def _of_convolution(eqn: Any) -> int:
    """Twice the pairs of an input and a weight; what is padding is no input."""
    params, shape = eqn.params, eqn.outvars[0].aval.shape
    images, kernel = (each.aval.shape for each in eqn.invars)
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


def _of_reduction(eqn: Any) -> int:
    return (_size(eqn.invars[0]) - _of_result(eqn)) * _of_combination(eqn)


def _of_windows(eqn: Any) -> int:
    return _of_result(eqn) * (math.prod(eqn.params["window_dimensions"]) - 1) * _of_combination(eqn)


def _of_combination(eqn: Any) -> int:
    """The operations that make one number of two."""
    return _total(eqn.params["jaxpr"]) if "jaxpr" in eqn.params else 1


def _of_fft(eqn: Any) -> int:
    return 8 * _size(eqn.invars[0]) * math.prod(length.bit_length() - 1 for length in eqn.params["fft_lengths"])


def costliest(branches: Sequence[Any]) -> Sequence[Any]:
    """The branch of a ``cond`` with the most operations, which is the one that XLA counts."""
    return [max(branches, key=_total)]


def _total(jaxpr: Any) -> int:
    return sum(each.times * flops_of(each.eqn) for each in ModuleOperations(()).of(jaxpr, costliest))


# Primitive → what counts its operations; of all others, each number of the result counts one.
_COUNTS: dict[str, Callable[[Any], int]] = {
    name: count
    for names, count in (
        (
            """
            broadcast_in_dim broadcast_to reshape transpose squeeze expand_dims slice dynamic_slice dynamic_update_slice
            concatenate stack unstack tile split pad gather scatter iota rev copy copy_p device_put name tie
            bitcast_convert_type stop_gradient optimization_barrier sharding_constraint layout_constraint reshard
            with_memory_space_constraint all_gather all_gather_invariant all_to_all ragged_all_to_all ppermute pvary
            pbroadcast axis_index random_wrap random_unwrap random_seed random_clone new_ref get swap freeze
            """,
            lambda eqn: 0,
        ),
        (
            """
            exp exp2 expm1 log log1p logistic tanh sin cos tan sinh cosh asin acos atan asinh acosh atanh atan2 erf erfc
            pow sqrt rsqrt cbrt
            """,
            lambda eqn: 0,
        ),
        ("dot_general ragged_dot_general scaled_dot", _of_product),
        ("scaled_matmul_wrapper", _of_scaled_product),
        ("conv_general_dilated", _of_convolution),
        ("fft", _of_fft),
        (
            """
            reduce reduce_sum reduce_prod reduce_max reduce_min reduce_and reduce_or reduce_xor reduce_scatter
            argmax argmin
            """,
            _of_reduction,
        ),
        (
            "reduce_window reduce_window_sum reduce_window_max reduce_window_min select_and_gather_add",
            _of_windows,
        ),
        ("scatter-add scatter-sub scatter-mul scatter-min scatter-max", _of_updates),
    )
    for name in names.split()
}
