"""Calls that add a label to every traceback through them.

The traceback that JAX stores for an operation has the names of the functions that ran, but no objects. So a labelled
call is made by a function whose name is the label. Only ``debug_nans`` uses labels.
"""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_tb
from types import CodeType, FunctionType, TracebackType
from typing import Any, TypeVar

import jax

R = TypeVar("R")

_FILE = "<a labelled call of plait>"


def wants_labels() -> bool:
    """Whether JAX currently checks for NaN or infinities."""
    config: Any = jax.config
    return config.jax_debug_nans or config.jax_debug_infs


def labelled(label: str, call: Callable[[], R]) -> R:
    """Make the call, with the label in its tracebacks."""
    code: CodeType = _through.__code__.replace(co_name=label, co_qualname=label, co_filename=_FILE)
    return FunctionType(code, {})(call)


def _through(call: Callable[[], R]) -> R:
    return call()


def labels_of(traceback: TracebackType | None) -> list[str]:
    """The labels in a traceback, outermost first."""
    codes = (frame.f_code for frame, _ in walk_tb(traceback))
    return [code.co_name for code in codes if code.co_filename == _FILE]
