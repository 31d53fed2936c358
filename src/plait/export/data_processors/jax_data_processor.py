"""A JAX function as a step of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..conversion import call_from_tensorflow, resolve_conversion
from .data_processor_base import DataProcessor, checked_function, name_of


class JaxDataProcessor(DataProcessor):
    """A JAX function without parameters before or after a method, converted as the method is.

    Args:
        jax_fn: a function of arrays.
        name: what errors call it; by default the function's name.
        input_keys, output_keys: as in ``DataProcessor``.
        input_polymorphic_shape: the free sizes, as in ``JaxModule``: one for all arguments, or a sequence with one for
            each.
        jax2tf_kwargs: options of the conversion, as in ``JaxModule``. ``with_gradient=True`` lets gradients through.

    Example:
        >>> plait.export.data_processors.JaxDataProcessor(jax.nn.softmax, "softmax", ("logits",), ("p",), "b, ...")
        JaxDataProcessor('softmax', ['logits'] -> ['p'])
    """

    def __init__(
        self,
        jax_fn: Callable[..., Any],
        name: str | None = None,
        input_keys: Sequence[str] = (),
        output_keys: Sequence[str] = (),
        input_polymorphic_shape: Any = None,
        jax2tf_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._jax_fn = checked_function(jax_fn, "JaxDataProcessor")
        super().__init__(name or name_of(jax_fn), input_keys, output_keys)
        shape = input_polymorphic_shape
        self._options = resolve_conversion(
            jax2tf_kwargs,
            input_shape=tuple(shape) if isinstance(shape, list) else shape,
            trainable=bool((jax2tf_kwargs or {}).get("with_gradient", False)),
        )

    def __call__(self, *tensors: Any) -> Any:
        return call_from_tensorflow(
            lambda _, inputs: self._jax_fn(*inputs), [], jax.tree_util.tree_structure(()), tensors, self._options
        )
