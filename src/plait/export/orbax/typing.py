"""The function types of the SavedModel interface, and the keys that connect functions in pipelines."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...ground.words import describe_type
from ..program.checks import check_some

ApplyFn = Callable[[Any, Any], Any]  # (parameters, input), where the input is a pytree


@dataclasses.dataclass(frozen=True)
class ApplyFnInfo:
    """An apply function with keys for its inputs and outputs, so that a pipeline can connect it to processors.

    Args:
        apply_fn: a function ``(params, x)``, where ``x`` is a dictionary with the input keys. It returns a mapping with
            the output keys, or the values in their order: a sequence, or the value itself for one key.
        input_keys: keys of its inputs.
        output_keys: keys of its outputs.

    Raises:
        ArgumentError: there are no keys, a duplicate key, or a key that is not a string.

    Example:
        >>> info = plait.export.typing.ApplyFnInfo(lambda p, x: x["ids"] * p, ("ids",), ("scores",))
        >>> info.output_keys
        ('scores',)
    """

    apply_fn: ApplyFn
    input_keys: Sequence[str]
    output_keys: Sequence[str]

    def __post_init__(self) -> None:
        for name in ("input_keys", "output_keys"):
            object.__setattr__(self, name, checked_keys(name, getattr(self, name), "ApplyFnInfo"))
            message = "a method in a pipeline needs at least one input and one output"
            advice = "ApplyFnInfo(apply_fn, input_keys=('x',), output_keys=('y',))"
            check_some(message, name, getattr(self, name), advice, at="ApplyFnInfo")


def checked_keys(argument: str, keys: Any, owner: str) -> tuple[str, ...]:
    """The keys as a tuple.

    Raises:
        ArgumentError: the keys are a string instead of a sequence, or a key is a duplicate or not a string.
    """
    each = tuple(keys) if isinstance(keys, (list, tuple)) else None
    if each is None or not all(isinstance(key, str) and key for key in each) or len(set(each)) != len(each):
        raise ArgumentError(
            f"{argument} must be unique names",
            at=owner,
            found=f"{argument}={keys!r}" if each is not None or isinstance(keys, str) else describe_type(keys),
            expected="a sequence of different names",
            do=f"{argument}=('x', 'mask')",
        )
    return each


def info_of(function: Any) -> ApplyFnInfo | None:
    """The keys of a method of a ``JaxModule``, if it has them."""
    return getattr(function, "apply_fn_info", None)
