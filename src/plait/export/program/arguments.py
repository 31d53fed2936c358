"""Maps the inputs of an export to the arguments of its function.

Inputs in a list are positional. Inputs in a dictionary are passed to the arguments with their names, in any order.
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
    """A function from inputs by name to arguments.

    Args:
        specs: the inputs, in order.
        function: the function that takes them.
        skipped: the number of parameters of ``function`` before the inputs.
        by_name: whether to match inputs by name. If ``function`` has none of the names, they are positional anyway, and
            the names are only those of the file.

    Raises:
        ArgumentError: some inputs have the names of parameters, but not all, so that one would be misassigned.
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
                "the inputs match the arguments of the function neither by name nor by order",
                at=name,
                found=f"inputs {', '.join(names)}",
                expected=f"arguments {', '.join(known)}",
                do="name the inputs like the arguments, or pass them in a list, in order, as InputSpec(..., name=...)",
            )
    return positional
