"""A method's options, with Orbax Export's names, and the resulting input shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError
from ...util.dependencies import require
from ..program.checks import check_known, check_type
from ..program.lowering import PLATFORMS
from ..program.numbers import instead_of_numbers, is_number_dtype
from ..program.sizes import read_sizes
from .readers import Reader

ADVICE = 'JaxModule(..., input_polymorphic_shape="b, ...")'
OPTIONS = (
    "polymorphic_constraints", "with_gradient", "native_serialization_platforms",
    "native_serialization_disabled_checks",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How one method is converted; the fields are the options of ``jax2tf.convert`` that still have an effect.

    Args:
        with_gradient: whether TensorFlow may differentiate it.
        platforms: where it can run.
        disabled_checks: safety checks of ``jax.export`` to disable.
        reader: the reader that will run it.
        input_shape: symbolic sizes of the input, in any form that ``jax.export.symbolic_args_specs`` takes.
        constraints: assumptions about symbolic sizes, such as ``"b >= 2"``.
    """

    with_gradient: bool
    platforms: tuple[str, ...]
    disabled_checks: tuple[Any, ...]
    reader: Reader
    input_shape: Any
    constraints: tuple[str, ...]


def resolve_conversion(
    kwargs: Mapping[str, Any] | None, *, input_shape: Any, trainable: bool, reader: Reader
) -> Conversion:
    """The options of one method, from its ``jax2tf_kwargs``.

    Raises:
        ArgumentError: an option is unknown, unsupported, or contradicts the module.
    """
    given = dict(kwargs or {})
    if "polymorphic_shapes" in given:
        raise ArgumentError(
            "JaxModule sets polymorphic_shapes itself",
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
            expected="gradients if and only if a parameter is trainable",
            do="omit with_gradient, and pass which parameters are trainable: JaxModule(..., trainable=True)",
        )
    for deprecated in ("enable_xla", "native_serialization"):
        if given.pop(deprecated, True) is False:
            raise ArgumentError(
                f"{deprecated}=False requests a conversion that JAX has removed",
                found=f"jax2tf_kwargs with {deprecated}=False",
                expected=f"{deprecated}=True, or nothing",
                do=f"remove {deprecated} from jax2tf_kwargs",
            )
    platforms = given.pop("native_serialization_platforms", None)
    constraints = given.pop("polymorphic_constraints", ())
    checks = given.pop("native_serialization_disabled_checks", ())
    check_known("jax2tf_kwargs has an unknown option", given, OPTIONS, "remove the key")
    platforms = PLATFORMS if platforms is None else tuple(platforms)
    return Conversion(trainable, platforms, tuple(checks), reader, input_shape, tuple(constraints))


def input_specs(x: Any, conversion: Conversion) -> list[jax.ShapeDtypeStruct]:
    """The traced shape of each tensor of an input; dynamic sizes are symbolic."""
    pairs = specs_and_sizes(x, conversion.input_shape, conversion.constraints)
    return [jax.ShapeDtypeStruct(sizes, dtype_in_jax(spec)) for spec, sizes in pairs]


def specs_and_sizes(x: Any, input_shape: Any, constraints: Sequence[str] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The spec of each tensor of an input, with its sizes: symbolic ones from ``input_shape``, otherwise fixed.

    Raises:
        ArgumentError: a symbolic shape does not fit its tensor, or a size is neither fixed nor symbolic.
    """
    specs, scope = _specs_of(x), jax.export.SymbolicScope(constraints)
    pairs = []
    for spec, shape in zip(jax.tree_util.tree_leaves(specs), _shape_of_each_leaf(specs, input_shape), strict=True):
        if spec.shape.rank is None:
            raise ArgumentError(
                "the rank of an input is not known",
                found=f"a tensor of shape {spec.shape}",
                expected="a known number of axes; sizes may be unknown",
                do="give its shape in input_signature: tf.TensorSpec((None, 2), tf.float32)",
            )
        sizes = read_sizes(shape, tuple(spec.shape), scope)
        if None in sizes:
            raise ArgumentError(
                "a size of the input is neither fixed nor symbolic",
                found=f"a tensor of shape {tuple(spec.shape)}, with input_polymorphic_shape={shape!r}",
                expected="a name in input_polymorphic_shape for each size that is None in the input signature",
                do=ADVICE,
            )
        pairs.append((spec, sizes))
    return pairs


def _specs_of(x: Any) -> Any:
    """``tf.TensorSpec`` for each tensor, array or ``tf.TensorSpec`` of a pytree."""
    tf = require("tensorflow", extra="tensorflow", purpose="to describe an input")

    def spec(leaf: Any) -> Any:
        if isinstance(leaf, tf.TensorSpec):
            return leaf
        _check_tensor(tf, leaf)
        shaped = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        return tf.TensorSpec(shaped.shape, shaped.dtype)

    return jax.tree_util.tree_map(spec, x)


def _check_tensor(tf: Any, leaf: Any) -> None:
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


def _shape_of_each_leaf(tensors: Any, shapes: Any) -> list[str | None]:
    """``input_polymorphic_shape`` may be a prefix of the input's structure."""
    # jax2tf.PolyShape, the older form of a shape, is a tuple whose string is the newer form.
    texts = jax.tree_util.tree_map(lambda shape: str(shape) if isinstance(shape, tuple) else shape, shapes)
    is_leaf = lambda shape: shape is None or isinstance(shape, str)
    try:
        each = jax.tree.leaves(jax.tree.broadcast(texts, tensors, is_leaf=is_leaf), is_leaf=is_leaf)
    except ValueError as error:
        raise ArgumentError(
            "the structure of input_polymorphic_shape differs from that of the input",
            found=f"input_polymorphic_shape={shapes!r} for an input of structure "
            f"{jax.tree_util.tree_structure(tensors)}",
            expected="one symbolic shape, or a pytree of them with the input's structure",
            do=ADVICE,
        ) from error
    message = "input_polymorphic_shape has an entry that is not a shape"
    expected = "strings such as 'b, ...', and None for fixed shapes"
    for shape in each:
        check_type(message, shape, (str, type(None)), expected, ADVICE)
    return each
