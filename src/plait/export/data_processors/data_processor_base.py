"""What every step of a pipeline has: a name, keys, and a call on tensors."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentTypeError
from ...words import describe_type
from ..typing import checked_keys


class DataProcessor(abc.ABC):
    """One step before or after a method. Subclasses say what it does with tensors.

    Args:
        name: what errors call it.
        input_keys: the values that it takes, one argument for each. Without keys it takes what the step before it
            returned; the first one takes the inputs of the signature.
        output_keys: the values that it gives: a mapping with these keys, a sequence in their order, or the value itself
            for one key. Either both are given, or none.

    Raises:
        ArgumentError: keys that are no names, or only one of the two.
    """

    def __init__(self, name: str, input_keys: Sequence[str] = (), output_keys: Sequence[str] = ()) -> None:
        self.name = name
        self.input_keys = checked_keys("input_keys", input_keys, name)
        self.output_keys = checked_keys("output_keys", output_keys, name)

    @abc.abstractmethod
    def __call__(self, *tensors: Any) -> Any:
        """The step on tensors, while TensorFlow traces a signature."""

    @property
    def input_signature(self) -> Any:
        """The signature of a step that knows its own, which then need not be given to ``ServingConfig``."""
        return None

    @property
    def has_keys(self) -> bool:
        """Whether the step is connected by keys."""
        return bool(self.input_keys or self.output_keys)

    def __repr__(self) -> str:
        keys = f", {list(self.input_keys)} -> {list(self.output_keys)}" if self.has_keys else ""
        return f"{type(self).__name__}({self.name!r}{keys})"


def checked_function(function: Any, kind: str) -> Callable[..., Any]:
    """The function as it is.

    Raises:
        ArgumentTypeError: it cannot be called.
    """
    if not callable(function):
        raise ArgumentTypeError(
            f"{kind} takes a function",
            found=describe_type(function),
            expected="a function of tensors",
            do=f"{kind}(lambda x: x)",
        )
    return function


def name_of(function: Any) -> str:
    """What a step is called that was given no name."""
    return getattr(function, "__name__", type(function).__name__)
