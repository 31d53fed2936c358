"""Calls a JAX function from TensorFlow: one ``XlaCallModule`` operation, and another for its gradient.

The function is lowered when TensorFlow traces the caller, for the shapes in that trace. Its parameters are arguments of
the operation, never constants in it. The gradient is ``jax.vjp`` of the same function, lowered in the same way, so
``tf.GradientTape`` gets JAX's derivative, also through a SavedModel that was saved with its custom gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export

from ...util.dependencies import require
from ..program.lowering import lowered
from .calling import call_exported, without_foreign_calls
from .conversion import Conversion, dtype_in_jax, input_specs


def call_from_tensorflow(
    function: Callable[[Any, Any], Any],
    variables: Sequence[Any],
    params_def: Any,
    x: Any,
    conversion: Conversion,
) -> Any:
    """``function(params, x)`` as TensorFlow operations on the current values of ``variables``.

    Args:
        function: the JAX function.
        variables: a TensorFlow variable (or tensor) for each leaf of the parameters.
        params_def: the structure of the parameters.
        x: a pytree of tensors.
        conversion: how the function is converted.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to convert a function")
    shapes = input_specs(x, conversion)
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

    outputs = _call(tf, flat, tensors, [*fixed, *shapes], conversion)
    return jax.tree_util.tree_unflatten(out_defs[-1], outputs)


def _call(
    tf: Any, flat: Callable[..., list[Any]], tensors: list[Any], specs: list[Any], conversion: Conversion
) -> list[Any]:
    """The results of ``flat`` for ``tensors``."""
    lower = functools.partial(lowered, platforms=conversion.platforms, disabled_checks=conversion.disabled_checks)

    def operation(exported: jax.export.Exported, tensors: Sequence[Any]) -> list[Any]:
        return call_exported(tf, without_foreign_calls(exported), tensors, conversion.reader)

    exported = lower(flat, *specs)
    # TensorFlow has 64-bit tensors; JAX, by default, does not.
    tensors = [tf.cast(tensor, spec.dtype.name) for tensor, spec in zip(tensors, specs, strict=True)]
    if not conversion.with_gradient:
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
