"""Which input of an export goes to which argument of its function.

Inputs in a list go by position. Inputs in a dictionary have names that the user chose, in an order that may be any:
they go to the arguments of these names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from .input_spec import InputSpec

Call = tuple[list[Any], dict[str, Any]]  # arguments by position and by name
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments(
    specs: Sequence[InputSpec], function: Callable[..., Any], skipped: int, *, by_name: bool
) -> Callable[[Mapping[str, Any]], Call]:
    """What gives the arguments for inputs by name.

    Args:
        specs: the inputs, in order.
        function: takes them.
        skipped: how many parameters of ``function`` come before the inputs.
        by_name: whether the names of the inputs say where they go. If ``function`` has none of them, they go by
            position all the same: the names are then those of the file alone.

    Raises:
        ArgumentError: some inputs have the names of parameters, but not all, and one would go to another.
    """
    names = [spec.name for spec in specs]
    positional = lambda xs: ([xs[name] for name in names], {})
    if not by_name:
        return positional
    try:
        parameters = list(inspect.signature(function).parameters.values())[skipped:]
    except (TypeError, ValueError):  # a function without a signature
        return positional
    known = [parameter.name for parameter in parameters if parameter.kind in _BY_NAME]
    if set(names) <= set(known):
        return lambda xs: ([], {name: xs[name] for name in names})
    for index, name in enumerate(names):
        if name in known and parameters[index : index + 1] != [p for p in parameters if p.name == name]:
            raise ArgumentError(
                "the inputs are neither the arguments of the function nor in their order",
                at=name,
                found=f"inputs {', '.join(names)}",
                expected=f"arguments {', '.join(known)}",
                do="name the inputs like the arguments, or give them in a list, in order, as InputSpec(..., name=...)",
            )
    return positional
