"""A method for a finite set of sizes: one program for each; TensorFlow chooses the one that matches the input.

For functions that cannot be traced with dynamic sizes, since they branch on them, and for devices that need fixed ones.
All programs read the same variables.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ...errors import ArgumentError
from ...util.dependencies import require
from ..program.sizes import FUNCTIONS, names_in, size_for
from .conversion import specs_and_sizes


@dataclasses.dataclass(frozen=True)
class Variants:
    """The sizes that an input may have.

    Args:
        input_shape: a symbolic shape, or a pytree of such.
        sizes: the values of all names in it, for each combination.
    """

    input_shape: Any
    sizes: Sequence[Mapping[str, int]]


def every_size(input_shape: Any, values: Any) -> Variants:
    """Each combination of the values that the names in ``input_polymorphic_shape`` may have.

    Args:
        input_shape: a symbolic shape, or a pytree of such.
        values: ``{"batch": (1, 8)}``.

    Raises:
        ArgumentError: a name has no values, there are values for an unknown name, or values are not sizes.
    """
    texts = map(str, jax.tree_util.tree_leaves(input_shape))  # jax2tf.PolyShape, the older form, is a leaf too
    words = {word for text in texts for word in names_in(text)}
    names = sorted(words - FUNCTIONS)
    if words & {"mod", "floordiv"}:  # JAX does not evaluate these, even for numbers
        raise ArgumentError(
            "a size that is a quotient or a remainder cannot be listed",
            found=f"input_polymorphic_shape={input_shape!r}",
            expected="names, and their sums, products, max and min",
            do="give the size a separate name, with its own values",
        )
    if not isinstance(values, Mapping) or set(values) != set(names) or not names:
        raise ArgumentError(
            "input_polymorphic_shape_symbol_values does not match input_polymorphic_shape",
            found=f"input_polymorphic_shape_symbol_values={values!r}",
            expected=f"values for {', '.join(map(repr, names))}" if names else "names in input_polymorphic_shape",
            do='input_polymorphic_shape="b, ...", input_polymorphic_shape_symbol_values={"b": (1, 8)}',
        )
    for name in names:
        sizes = values[name]
        is_sequence = isinstance(sizes, (list, tuple, range)) and len(set(sizes)) == len(sizes) > 0
        if not is_sequence or not all(type(size) is int and size >= 0 for size in sizes):
            raise ArgumentError(
                "the values of a size are not sizes",
                at=f"input_polymorphic_shape_symbol_values[{name!r}]",
                found=repr(sizes),
                expected="a sequence of different whole numbers",
                do="input_polymorphic_shape_symbol_values={'b': (1, 8)}",
            )
    combinations = itertools.product(*(values[name] for name in names))
    return Variants(input_shape, [dict(zip(names, each, strict=True)) for each in combinations])


def fitting(x: Any, variants: Variants) -> dict[int, list[tuple[int, ...]]]:
    """The variants that match the known sizes of an input, with the fixed shapes of its tensors.

    Raises:
        ArgumentError: no variant matches.
    """
    inputs = specs_and_sizes(x, variants.input_shape)
    found = {}
    for index, numbers in enumerate(variants.sizes):
        shapes = [tuple(size_for(size, numbers) for size in sizes) for _, sizes in inputs]
        if all(spec.shape.is_compatible_with(shape) for (spec, _), shape in zip(inputs, shapes, strict=True)):
            found[index] = shapes
    if not found:
        raise ArgumentError(
            "an input has a size that is not among input_polymorphic_shape_symbol_values",
            found=", ".join(str(tuple(spec.shape)) for spec, _ in inputs),
            expected=f"input_polymorphic_shape={variants.input_shape!r} with one of {list(variants.sizes)}",
            do="pad the input, or add the size to input_polymorphic_shape_symbol_values",
        )
    return found


def call_by_size(x: Any, functions: Sequence[Callable[[Any], Any]], variants: Variants) -> Any:
    """The outputs of the function for the input's size; only unknown sizes are compared at run time.

    Args:
        x: a pytree of tensors.
        functions: a ``tf.function`` for each variant.
        variants: the sizes.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to convert a function")
    x = jax.tree_util.tree_map(tf.convert_to_tensor, x)
    tensors, structure = jax.tree_util.tree_flatten(x)
    left = fitting(x, variants)

    def branch(index: int, shapes: list[tuple[int, ...]]) -> Callable[[], Any]:
        def call() -> Any:
            fixed = [tf.ensure_shape(tensor, shape) for tensor, shape in zip(tensors, shapes, strict=True)]
            return functions[index](jax.tree_util.tree_unflatten(structure, fixed))

        return call

    branches = [branch(index, shapes) for index, shapes in left.items()]
    if len(branches) == 1:
        return branches[0]()
    sizes = tf.concat([tf.shape(tensor) for tensor in tensors], 0)
    known = tf.constant([[size for shape in shapes for size in shape] for shapes in left.values()], tf.int32)
    hits = tf.reduce_all(tf.equal(known, sizes), 1)
    message = "an input has a size that is not among input_polymorphic_shape_symbol_values; found, and expected:"
    check = tf.debugging.Assert(tf.reduce_any(hits), [message, sizes, known])
    with tf.control_dependencies([] if check is None else [check]):
        chosen = tf.argmax(tf.cast(hits, tf.int32), output_type=tf.int32)
    return tf.switch_case(chosen, branches)
