"""A TensorFlow function as a step of a pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..dependencies import require
from .data_processor_base import DataProcessor, checked_function, name_of


class TfDataProcessor(DataProcessor):
    """A TensorFlow function before or after a method; it may work on text, and use tables.

    Args:
        tf_fn: a function of tensors.
        name: what errors call it; by default the function's name.
        input_keys, output_keys: as in ``DataProcessor``.

    Example:
        >>> plait.export.data_processors.TfDataProcessor(lambda x, k: x * k, "scale", ("x", "k"), ("scaled",))
        TfDataProcessor('scale', ['x', 'k'] -> ['scaled'])
    """

    def __init__(
        self,
        tf_fn: Callable[..., Any],
        name: str | None = None,
        input_keys: Sequence[str] = (),
        output_keys: Sequence[str] = (),
    ) -> None:
        self._tf_fn = checked_function(tf_fn, "TfDataProcessor")
        super().__init__(name or name_of(tf_fn), input_keys, output_keys)

    @property
    def input_signature(self) -> Any:
        """That of the ``tf.function``, if it is one and has it."""
        return getattr(self._tf_fn, "input_signature", None)

    def __call__(self, *tensors: Any) -> Any:
        return self._traced(*tensors)

    @functools.cached_property
    def _traced(self) -> Any:
        if hasattr(self._tf_fn, "get_concrete_function"):
            return self._tf_fn
        return require("tensorflow", extra="tensorflow", purpose="to run a processor").function(self._tf_fn)
