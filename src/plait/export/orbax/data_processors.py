"""Pre- and postprocessing steps of a method, for ``ServingConfig(preprocessors=..., postprocessors=...)``."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ...ground.dependencies import require
from ..program.checks import check_type
from .conversion import resolve_conversion
from .typing import checked_keys


class DataProcessor(abc.ABC):
    """One step before or after a method. Subclasses define its function on tensors.

    Args:
        name: its name in errors.
        input_keys: the values that it takes, one argument for each. Without keys it takes the output of the previous
            step; the first one takes the inputs of the signature.
        output_keys: the values that it returns: a mapping with these keys, a sequence in their order, or the value
            itself for one key. Pass both, or neither.

    Raises:
        ArgumentError: keys are not names, or only one of the two is given.
    """

    def __init__(self, name: str, input_keys: Sequence[str] = (), output_keys: Sequence[str] = ()) -> None:
        self.name = name
        self.input_keys = checked_keys("input_keys", input_keys, name)
        self.output_keys = checked_keys("output_keys", output_keys, name)

    @abc.abstractmethod
    def __call__(self, *tensors: Any) -> Any:
        """Run the step on tensors, while TensorFlow traces a signature."""

    @property
    def input_signature(self) -> Any:
        """The step's own signature, if it has one; then ``ServingConfig`` does not need it."""
        return None

    @property
    def has_keys(self) -> bool:
        """Whether the step is connected by keys."""
        return bool(self.input_keys or self.output_keys)

    def __repr__(self) -> str:
        keys = f", {list(self.input_keys)} -> {list(self.output_keys)}" if self.has_keys else ""
        return f"{type(self).__name__}({self.name!r}{keys})"


class JaxDataProcessor(DataProcessor):
    """A JAX function without parameters before or after a method, converted like the method.

    Args:
        jax_fn: a function of arrays.
        name: its name in errors; by default the function's name.
        input_keys, output_keys: as in ``DataProcessor``.
        input_polymorphic_shape: the dynamic sizes, as in ``JaxModule``: one for all arguments, or a sequence with one
            for each.
        jax2tf_kwargs: options of the conversion, as in ``JaxModule``. ``with_gradient=True`` enables gradients.

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
        _check_function(jax_fn, "JaxDataProcessor")
        self._jax_fn = jax_fn
        super().__init__(name or _name_of(jax_fn), input_keys, output_keys)
        shape = input_polymorphic_shape
        self._conversion = resolve_conversion(
            jax2tf_kwargs,
            input_shape=tuple(shape) if isinstance(shape, list) else shape,
            trainable=bool((jax2tf_kwargs or {}).get("with_gradient", False)),
        )

    def __call__(self, *tensors: Any) -> Any:
        no_params = jax.tree_util.tree_structure(())
        return self._conversion.called(lambda _, inputs: self._jax_fn(*inputs), [], no_params, tensors)


class TfDataProcessor(DataProcessor):
    """A TensorFlow function before or after a method; it may work on text, and use tables.

    Args:
        tf_fn: a function of tensors.
        name: its name in errors; by default the function's name.
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
        _check_function(tf_fn, "TfDataProcessor")
        self._tf_fn = tf_fn
        super().__init__(name or _name_of(tf_fn), input_keys, output_keys)

    @property
    def input_signature(self) -> Any:
        """The signature of the function, if it is a ``tf.function`` with a signature."""
        return getattr(self._tf_fn, "input_signature", None)

    def __call__(self, *tensors: Any) -> Any:
        return self._traced(*tensors)

    @functools.cached_property
    def _traced(self) -> Any:
        if hasattr(self._tf_fn, "get_concrete_function"):
            return self._tf_fn
        return require("tensorflow", extra="tensorflow", purpose="to run a processor").function(self._tf_fn)


def _check_function(function: Any, kind: str) -> None:
    check_type(f"{kind} takes a function", function, Callable, "a function of tensors", f"{kind}(lambda x: x)")


def _name_of(function: Any) -> str:
    """The default name of a step."""
    return getattr(function, "__name__", type(function).__name__)
