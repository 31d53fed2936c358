"""Calls a JAX function from TensorFlow: one ``XlaCallModule`` operation, and another for its gradient.

The function is lowered when TensorFlow traces the caller, for the shapes in that trace. Its parameters are arguments of
the operation, never constants in it. The gradient is ``jax.vjp`` of the same function, lowered in the same way, so
``tf.GradientTape`` gets JAX's derivative, also through a SavedModel that was saved with its custom gradients.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ...errors import ArgumentTypeError
from ...ground.dependencies import require
from ..program.lowering import PLATFORMS, lowered
from ..program.numbers import instead_of_numbers, is_number_dtype
from .calling import call_exported, without_foreign_calls
from .readers import Reader, current_reader


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """How a function becomes an operation.

    Attributes:
        with_gradient: whether TensorFlow may differentiate it.
        platforms: where it can run.
        disabled_checks: safety checks of ``jax.export`` to disable.
        reader: the reader that will run it; ``None`` means that of the model being written.
    """

    with_gradient: bool = False
    platforms: tuple[str, ...] = PLATFORMS
    disabled_checks: tuple[Any, ...] = ()
    reader: Reader | None = None


def call_from_tensorflow(
    function: Callable[[Any, Any], Any],
    variables: Sequence[Any],
    params_def: Any,
    x: Any,
    shapes: Sequence[jax.ShapeDtypeStruct],
    options: CallOptions,
) -> Any:
    """``function(params, x)`` as TensorFlow operations on the current values of ``variables``.

    Args:
        function: the JAX function.
        variables: a TensorFlow variable (or tensor) for each leaf of the parameters.
        params_def: the structure of the parameters.
        x: a pytree of tensors.
        shapes: the traced shape of each leaf of ``x``; dynamic sizes are symbolic.
        options: how the function is converted.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to convert a function")
    inputs, x_def = jax.tree_util.tree_flatten(x)
    tensors = [tf.convert_to_tensor(each) for each in (*variables, *inputs)]
    fixed = [jax.ShapeDtypeStruct(tuple(each.shape), dtype_in_jax(each)) for each in tensors[: len(variables)]]
    out_defs: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        params = jax.tree_util.tree_unflatten(params_def, leaves[: len(variables)])
        outputs = function(params, jax.tree_util.tree_unflatten(x_def, leaves[len(variables) :]))
        leaves_out, out_def = jax.tree_util.tree_flatten(outputs)
        out_defs.append(out_def)
        return [jax.numpy.asarray(leaf) for leaf in leaves_out]

    outputs = _call(tf, flat, tensors, [*fixed, *shapes], options)
    return jax.tree_util.tree_unflatten(out_defs[-1], outputs)


def _call(tf: Any, flat: Callable[..., list[Any]], tensors: list[Any], specs: list[Any], options: CallOptions) -> list:
    """The results of ``flat`` for ``tensors``."""
    reader = options.reader or current_reader()
    lower = functools.partial(lowered, platforms=options.platforms, disabled_checks=options.disabled_checks)

    def operation(exported: jax.export.Exported, tensors: Sequence[Any]) -> list[Any]:
        return call_exported(tf, without_foreign_calls(exported), tensors, reader)

    exported = lower(flat, *specs)
    # TensorFlow has 64-bit tensors; JAX, by default, does not.
    tensors = [tf.cast(tensor, spec.dtype.name) for tensor, spec in zip(tensors, specs, strict=True)]
    if not options.with_gradient:
        message = "this method was converted with with_gradient=False: none of its parameters is trainable"
        return _without_gradient(tf, operation(exported, tensors), message)

    # A cotangent is passed for each real output, and returned for each real input.
    smooth_in = [index for index, spec in enumerate(specs) if _is_smooth(spec.dtype)]
    smooth_out = [index for index, aval in enumerate(exported.out_avals) if _is_smooth(aval.dtype)]

    def pull_back(*arguments: Any) -> list[Any]:
        leaves, cotangents = list(arguments[: len(specs)]), arguments[len(specs) :]

        def smooth(*values: Any) -> list[Any]:
            for index, value in zip(smooth_in, values, strict=True):
                leaves[index] = value
            outputs = flat(*leaves)
            return [outputs[index] for index in smooth_out]

        return list(jax.vjp(smooth, *(leaves[index] for index in smooth_in))[1](list(cotangents)))

    def differentiable(*arguments: Any) -> tuple[list[Any], Callable[..., list[Any]]]:
        def gradient(*cotangents: Any) -> list[Any]:
            found: list[Any] = [None] * len(specs)
            avals = [exported.out_avals[index] for index in smooth_out]
            more_specs = [*specs, *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)]
            more = [*arguments, *(cotangents[index] for index in smooth_out)]
            # A gradient of the gradient would not be saved with the model, so there is none before saving either.
            message = "second-order gradients of a converted method are not supported in TensorFlow, only in JAX"
            values = _without_gradient(tf, operation(lower(pull_back, *more_specs), more), message)
            for index, value in zip(smooth_in, values, strict=True):
                found[index] = value
            return found

        return operation(exported, arguments), gradient

    outputs = tf.custom_gradient(differentiable)(*tensors)
    return list(outputs)


def _without_gradient(tf: Any, tensors: list[Any], message: str) -> list[Any]:
    return [tf.raw_ops.PreventGradient(input=tensor, message=message) for tensor in tensors]


def _is_smooth(dtype: Any) -> bool:
    return jax.numpy.issubdtype(dtype, jax.numpy.inexact)


def check_tensor(tf: Any, leaf: Any) -> None:
    """Raise for a value that is not a tensor or array of numbers.

    Raises:
        ArgumentTypeError: names what was found.
    """
    found = instead_of_numbers(leaf)
    if tf.is_tensor(leaf):
        numeric = leaf.dtype not in (tf.variant, tf.resource) and is_number_dtype(leaf.dtype.as_numpy_dtype)
        found = None if numeric else f"a tensor of dtype {leaf.dtype.name}"
    if found is not None:
        raise ArgumentTypeError(
            "a method takes a pytree of tensors of numbers",
            found=found,
            expected="tensors of numbers",
            do="convert the inputs to one pytree of tensors in tf_preprocessor",
        )


def dtype_in_jax(tensor: Any) -> np.dtype:
    """The dtype that JAX computes with; by default it has no 64-bit dtypes."""
    return jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype)
