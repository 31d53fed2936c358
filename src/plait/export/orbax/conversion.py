"""A JAX function called from TensorFlow: one ``XlaCallModule`` operation, with another for its gradient.

The function is lowered when TensorFlow traces the caller, for the shapes it finds there. Its parameters are arguments
of the operation, never constants in it. The gradient is ``jax.vjp`` of the same function, lowered in the same way, so
``tf.GradientTape`` gets JAX's derivative, also through a SavedModel that was saved with its custom gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ...dependencies import require
from ...errors import ArgumentError, ArgumentTypeError
from ...words import describe_type
from ..program.lowering import PLATFORMS, for_one_device
from ..tensorflow.calling import call_exported, without_foreign_calls
from ..tensorflow.readers import installed_tensorflow
from .typing import ApplyFn


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How one method is converted; the fields are ``jax2tf.convert``'s options that still mean something.

    Args:
        input_shape: symbolic sizes of the input, in any form that ``jax.export.symbolic_args_specs`` takes.
        with_gradient: whether TensorFlow may differentiate the method.
        constraints: what symbolic sizes may be assumed to fulfil, such as ``"b >= 2"``.
        platforms: where the method can run.
        disabled_checks: safety checks of ``jax.export`` to leave out.
    """

    input_shape: Any = None
    with_gradient: bool = False
    constraints: tuple[str, ...] = ()
    platforms: tuple[str, ...] = PLATFORMS
    disabled_checks: tuple[Any, ...] = ()


def resolve_conversion(kwargs: Mapping[str, Any] | None, *, input_shape: Any, trainable: bool) -> Conversion:
    """The options of one method, from its ``jax2tf_kwargs``.

    Raises:
        ArgumentError: an option that is unknown, that plait cannot honour, or that contradicts the module.
    """
    given = dict(kwargs or {})
    if "polymorphic_shapes" in given:
        raise ArgumentError(
            "polymorphic_shapes is made by JaxModule itself",
            found="jax2tf_kwargs with the key 'polymorphic_shapes'",
            expected="the symbolic sizes of the input in the argument input_polymorphic_shape",
            do=f"JaxModule(..., input_polymorphic_shape={given['polymorphic_shapes']!r})",
        )
    with_gradient = given.pop("with_gradient", trainable)
    if bool(with_gradient) != trainable:
        raise ArgumentError(
            f"with_gradient={bool(with_gradient)} in jax2tf_kwargs contradicts trainable",
            found=f"with_gradient={bool(with_gradient)}, and "
            + ("a trainable parameter" if trainable else "no trainable parameter"),
            expected="gradients exactly where a parameter is trainable",
            do="leave with_gradient out, and say which parameters are trainable: JaxModule(..., trainable=True)",
        )
    for deprecated in ("enable_xla", "native_serialization"):
        if given.pop(deprecated, True) is False:
            raise ArgumentError(
                f"{deprecated}=False asks for a conversion that JAX has retired",
                found=f"jax2tf_kwargs with {deprecated}=False",
                expected=f"{deprecated}=True, or nothing",
                do=f"leave {deprecated} out of jax2tf_kwargs",
            )
    platforms = given.pop("native_serialization_platforms", None)
    constraints = given.pop("polymorphic_constraints", ())
    checks = given.pop("native_serialization_disabled_checks", ())
    if given:
        raise ArgumentError(
            "jax2tf_kwargs has a key that is no option",
            found=", ".join(map(repr, given)),
            expected="polymorphic_constraints, with_gradient, native_serialization_platforms, "
            "native_serialization_disabled_checks",
            do="remove the key",
        )
    return Conversion(
        input_shape=input_shape,
        with_gradient=trainable,
        constraints=tuple(constraints),
        platforms=PLATFORMS if platforms is None else tuple(platforms),
        disabled_checks=tuple(checks),
    )


def call_from_tensorflow(
    function: ApplyFn, variables: Sequence[Any], params_def: Any, x: Any, options: Conversion
) -> Any:
    """``function(params, x)`` as TensorFlow operations on the current values of ``variables``.

    Args:
        function: the JAX function.
        variables: a TensorFlow variable (or tensor) for each leaf of the parameters.
        params_def: the structure of the parameters.
        x: a pytree of tensors.
        options: how the function is converted.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to convert a function")
    inputs, x_def = jax.tree_util.tree_flatten(x)
    for leaf in inputs:
        _check_numeric(tf, leaf)
    tensors = [tf.convert_to_tensor(each) for each in (*variables, *inputs)]
    specs = [*map(_static_spec, tensors[: len(variables)]), *_input_specs(x, options)]
    out_defs: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        params = jax.tree_util.tree_unflatten(params_def, leaves[: len(variables)])
        outputs = function(params, jax.tree_util.tree_unflatten(x_def, leaves[len(variables) :]))
        leaves_out, out_def = jax.tree_util.tree_flatten(outputs)
        out_defs.append(out_def)
        return [jax.numpy.asarray(leaf) for leaf in leaves_out]

    outputs = _call(tf, flat, tensors, specs, options)
    return jax.tree_util.tree_unflatten(out_defs[-1], outputs)


def _call(tf: Any, flat: Callable[..., list[Any]], tensors: list[Any], specs: list[Any], options: Conversion) -> list:
    """The tensors that ``flat`` gives for ``tensors``."""
    exported = _export(flat, specs, options)
    # TensorFlow has 64-bit tensors where JAX, unless told, has none.
    tensors = [tf.cast(tensor, spec.dtype.name) for tensor, spec in zip(tensors, specs, strict=True)]
    if not options.with_gradient:
        message = "this method was converted with with_gradient=False: none of its parameters is trainable"
        return _without_gradient(tf, _operation(tf, exported, tensors), message)

    # A cotangent is passed for each real output, and wanted for each real input.
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
            if smooth_in and smooth_out:
                avals = [exported.out_avals[index] for index in smooth_out]
                more_specs = [*specs, *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals)]
                more = [*arguments, *(cotangents[index] for index in smooth_out)]
                # A gradient of the gradient would not be saved with the model, so there is none before saving either.
                message = "a gradient of a gradient of a converted method was asked for, and only JAX can give it"
                values = _without_gradient(tf, _operation(tf, _export(pull_back, more_specs, options), more), message)
                for index, value in zip(smooth_in, values, strict=True):
                    found[index] = value
            return found

        return _operation(tf, exported, arguments), gradient

    outputs = tf.custom_gradient(differentiable)(*tensors)
    return list(outputs)


def _without_gradient(tf: Any, tensors: list[Any], message: str) -> list[Any]:
    return [tf.raw_ops.PreventGradient(input=tensor, message=message) for tensor in tensors]


def _export(flat: Callable[..., Any], specs: Sequence[Any], options: Conversion) -> jax.export.Exported:
    # Arguments that are not used are kept: an input may be the only one to tell a symbolic size.
    jitted = jax.jit(flat, keep_unused=True)
    export = jax.export.export(jitted, platforms=options.platforms, disabled_checks=options.disabled_checks)
    return for_one_device(export(*specs))


def _operation(tf: Any, exported: jax.export.Exported, tensors: Sequence[Any]) -> list[Any]:
    return call_exported(tf, without_foreign_calls(exported), tensors, installed_tensorflow())


def _is_smooth(dtype: Any) -> bool:
    return jax.numpy.issubdtype(dtype, jax.numpy.inexact)


def _check_numeric(tf: Any, leaf: Any) -> None:
    numeric = (np.ndarray, np.generic, jax.Array, int, float, complex)
    if not tf.is_tensor(leaf) and not isinstance(leaf, numeric):
        raise ArgumentTypeError(
            "a method takes a pytree of tensors",
            found=describe_type(leaf),
            expected="tensors",
            do="turn the inputs into one pytree of tensors in tf_preprocessor",
        )
    dtype: Any = getattr(leaf, "dtype", None)
    if tf.is_tensor(leaf) and dtype in (tf.string, tf.variant, tf.resource):
        raise ArgumentTypeError(
            "a JAX function takes numbers",
            found=f"a tensor of dtype {dtype.name}",
            expected="a tensor of numbers",
            do="turn it into numbers in tf_preprocessor",
        )


def _dtype_in_jax(tensor: Any) -> np.dtype:
    return jax.dtypes.canonicalize_dtype(tensor.dtype.as_numpy_dtype)


def _static_spec(tensor: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(tensor.shape), _dtype_in_jax(tensor))


def _input_specs(x: Any, options: Conversion) -> list[jax.ShapeDtypeStruct]:
    """The input as JAX traces it: symbolic where ``input_shape`` says so, and of fixed size elsewhere."""
    scope = jax.export.SymbolicScope(options.constraints)
    return [
        jax.ShapeDtypeStruct(_sizes(tensor, shape, scope), _dtype_in_jax(tensor))
        for tensor, shape in tensors_and_shapes(x, options.input_shape)
    ]


def tensors_and_shapes(x: Any, input_shape: Any) -> list[tuple[Any, str | None]]:
    """Each tensor (or ``tf.TensorSpec``) of an input, with the text of its symbolic shape."""
    tf = require("tensorflow", extra="tensorflow", purpose="to convert a function")
    x = jax.tree_util.tree_map(lambda leaf: leaf if isinstance(leaf, tf.TensorSpec) else tf.convert_to_tensor(leaf), x)
    return list(zip(jax.tree_util.tree_leaves(x), _shape_of_each_leaf(x, input_shape), strict=True))


def specs_of(x: Any) -> Any:
    """``tf.TensorSpec`` for each array, ``jax.ShapeDtypeStruct`` or ``tf.TensorSpec`` of a pytree."""
    tf = require("tensorflow", extra="tensorflow", purpose="to describe an input")

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, tf.TensorSpec):
            return leaf
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            _check_numeric(tf, leaf)
        shaped = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        return tf.TensorSpec(shaped.shape, shaped.dtype)

    return jax.tree_util.tree_map(spec, x)


def export_method(function: ApplyFn, params: Any, x: Any, options: Conversion) -> jax.export.Exported:
    """``function(params, x)`` as a ``jax.export`` program.

    Args:
        function: the JAX function.
        params: its parameters; they stay arguments.
        x: arrays, ``jax.ShapeDtypeStruct`` or ``tf.TensorSpec``.
        options: how the function is converted.
    """
    x = specs_of(x)
    inputs = jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(x), _input_specs(x, options))
    avals = jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), jax.numpy.result_type(leaf)), params
    )
    return _export(function, (avals, inputs), options)


def _shape_of_each_leaf(tensors: Any, shapes: Any) -> list[str | None]:
    """``input_polymorphic_shape`` may be a prefix of the input's structure."""

    def is_leaf(shape: Any) -> bool:
        return shape is None or isinstance(shape, str)

    # jax2tf.PolyShape, the older way to write a shape, is a tuple whose text is the newer way.
    texts = jax.tree_util.tree_map(lambda shape: str(shape) if isinstance(shape, tuple) else shape, shapes)
    each: list[str | None] = []
    try:
        jax.tree_util.tree_map(
            lambda shape, part: each.extend([shape] * len(jax.tree_util.tree_leaves(part))),
            texts,
            tensors,
            is_leaf=is_leaf,
        )
    except ValueError as error:
        raise ArgumentError(
            "input_polymorphic_shape has another structure than the input",
            found=f"input_polymorphic_shape={shapes!r} for an input of structure "
            f"{jax.tree_util.tree_structure(tensors)}",
            expected="one symbolic shape, or a pytree of them with the input's structure",
            do='JaxModule(..., input_polymorphic_shape="b, ...")',
        ) from error
    wrong = next((shape for shape in each if not is_leaf(shape)), None)
    if wrong is not None:
        raise ArgumentTypeError(
            "input_polymorphic_shape has an entry that is no shape",
            found=describe_type(wrong),
            expected="strings such as 'b, ...', and None for fixed shapes",
            do='JaxModule(..., input_polymorphic_shape="b, ...")',
        )
    return each


UNKNOWN = 2_147_483_629  # stands for a size that TensorFlow does not know, while placeholders are filled in


def sizes_of(tensor: Any, shape: str | None, scope: jax.export.SymbolicScope) -> tuple[Any, ...]:
    """The sizes that a symbolic shape gives to a tensor, which may have other fixed ones; ``UNKNOWN`` where none does.

    Raises:
        ArgumentError: it is no shape, or one of another number of axes.
    """
    if tensor.shape.rank is None:
        raise ArgumentError(
            "the rank of an input is not known",
            found=f"a tensor of shape {tensor.shape}",
            expected="a known number of axes; sizes may be unknown",
            do="give its shape in input_signature: tf.TensorSpec((None, 2), tf.float32)",
        )
    like = tuple(UNKNOWN if size is None else size for size in tensor.shape)
    try:
        sizes = tuple(jax.export.symbolic_shape("..." if shape is None else shape, scope=scope, like=like))
    except (ValueError, TypeError) as error:
        raise _not_fitting(tensor, shape, error) from error
    if len(sizes) != len(like):
        raise _not_fitting(tensor, shape, f"{len(sizes)} sizes for {len(like)} axes")
    return sizes


def _sizes(tensor: Any, shape: str | None, scope: jax.export.SymbolicScope) -> tuple[Any, ...]:
    sizes = sizes_of(tensor, shape, scope)
    if any(
        isinstance(size, int) and old is not None and size != old for size, old in zip(sizes, tensor.shape, strict=True)
    ):
        raise _not_fitting(tensor, shape, "a fixed size differs")
    if any(isinstance(size, int) and size == UNKNOWN for size in sizes):
        raise ArgumentError(
            "a size of the input is neither fixed nor symbolic",
            found=f"a tensor of shape {tuple(tensor.shape)}, with input_polymorphic_shape={shape!r}",
            expected="a name in input_polymorphic_shape for each size that is None in the input signature",
            do='JaxModule(..., input_polymorphic_shape="b, ...")',
        )
    return sizes


def _not_fitting(tensor: Any, shape: str | None, problem: Any) -> ArgumentError:
    return ArgumentError(
        "input_polymorphic_shape does not fit the input",
        found=f"{shape!r} for a tensor of shape {tuple(tensor.shape)}: {problem}",
        expected="a size, a name or _ for each axis, or ... for the rest",
        do='JaxModule(..., input_polymorphic_shape="b, ...")',
    )
