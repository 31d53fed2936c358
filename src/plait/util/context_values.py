"""Values of context variables that hold inside a ``with`` statement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def held(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside ``with``, in this thread or task, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
