"""What the SavedModel interface takes as a function, and the keys by which pipelines connect functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...words import describe_type
from ..program.checks import check_some

ApplyFn = Callable[[Any, Any], Any]  # of the parameters and the one input, a pytree


@dataclasses.dataclass(frozen=True)
class ApplyFnInfo:
    """An apply function whose input and outputs have keys, so that a pipeline can connect it with its processors.

    Args:
        apply_fn: a function ``(params, x)``, where ``x`` is a dictionary with the input keys. It returns a mapping with
            the output keys, or the values in their order: a sequence, or the value itself for one key.
        input_keys: what the function takes.
        output_keys: what it gives.

    Raises:
        ArgumentError: no keys, a key twice, or something that is no key.

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
            message = "a method in a pipeline takes and gives at least one value"
            advice = "ApplyFnInfo(apply_fn, input_keys=('x',), output_keys=('y',))"
            check_some(message, name, getattr(self, name), advice, at="ApplyFnInfo")


def checked_keys(argument: str, keys: Any, owner: str) -> tuple[str, ...]:
    """The keys as a tuple.

    Raises:
        ArgumentError: a text instead of a sequence, a key that is no text, or a key twice.
    """
    each = tuple(keys) if isinstance(keys, (list, tuple)) else None
    if each is None or not all(isinstance(key, str) and key for key in each) or len(set(each)) != len(each):
        raise ArgumentError(
            f"{argument} are names, each once",
            at=owner,
            found=f"{argument}={keys!r}" if each is not None or isinstance(keys, str) else describe_type(keys),
            expected="a sequence of different names",
            do=f"{argument}=('x', 'mask')",
        )
    return each


def info_of(function: Any) -> ApplyFnInfo | None:
    """The keys of a method of a ``JaxModule``, if it has them."""
    return getattr(function, "apply_fn_info", None)
