"""The command ``plait compile``: stores compiled programs before the first process needs them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from .cli_export import made
from .errors import ArgumentError
from .ground.words import describe_type

_EXAMPLE = "plait compile train:calls, where calls() returns [(step, (model, optimizer, batch))]"


def add_command(commands: Any) -> None:
    """Add the command to the parser."""
    compile = commands.add_parser("compile", help="store compiled programs before they are needed", allow_abbrev=False)
    compile.description = (
        "Compile the programs of functions jitted with plait.jit(..., cache=FOLDER), and store them there. Nothing is "
        "run. Your function returns the calls: a list of (function, args) or (function, args, kwargs). Arrays may be "
        "jax.ShapeDtypeStruct, and models may come from plait.eval_shape, so no memory is needed. Exit status 1 if a "
        "program cannot be stored."
    )
    compile.add_argument(
        "calls", metavar="MODULE:FUNCTION", help="function that returns the calls, as train:calls (default: calls)"
    )
    compile.set_defaults(run=_compile)


def _compile(options: argparse.Namespace) -> int:
    status = 0
    calls = made(options.calls, what="the function that returns the calls", default="calls", do=_EXAMPLE)
    for number, (function, args, kwargs) in enumerate(_checked(options.calls, calls), 1):
        counts = function.jitted_fn.store(*args, **kwargs)
        found = "stored" if counts["stored"] else "there already" if counts["loaded"] else "not stored"
        if counts["not stored"]:
            found, status = "not stored", 1
        name = getattr(function, "__qualname__", type(function).__name__)
        print(f"{number}. {name}: {found}, {function.jitted_fn.stores().folder.path}")
    return status


def _checked(place: str, calls: Any) -> Iterator[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """The calls, each as function, args and kwargs.

    Raises:
        ArgumentError: the function returned something other than calls of jitted functions.
    """
    if not isinstance(calls, (list, tuple)):
        calls = [calls]
    for call in [calls] if isinstance(calls, tuple) and calls and callable(calls[0]) else calls:
        parts: Any = call if isinstance(call, (list, tuple)) else ()
        is_call = len(parts) in (2, 3) and hasattr(parts[0], "jitted_fn") and isinstance(parts[1], (list, tuple))
        if not is_call or (len(parts) == 3 and not isinstance(parts[2], dict)):
            raise ArgumentError(
                "compile takes calls of jitted functions",
                at=place,
                found=f"{describe_type(call)} of {len(parts)} parts" if parts else describe_type(call),
                expected="(function, args) or (function, args, kwargs), with a function from plait.jit",
                do=_EXAMPLE,
            )
        yield parts[0], tuple(parts[1]), dict(parts[2]) if len(parts) == 3 else {}
