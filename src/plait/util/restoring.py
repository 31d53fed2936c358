"""Attributes that are set immediately and, as a context manager or decorator, restored on exit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Restoring:
    """Attributes of ``owner``, already set; as a context manager or decorator it restores the previous values on
    exit."""

    def __init__(self, owner: Any, **values: Any) -> None:
        self._owner, self._values = owner, values
        self._before: dict[str, Any] | None = None
        self.__enter__()

    def __enter__(self) -> Restoring:
        if self._before is None:  # created now, or entered again after the first block restored the previous values
            self._before = {name: getattr(self._owner, name) for name in self._values}
            self._set(self._values)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            self._set(self._before)
            self._before = None

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self._owner, name, value)

    def __call__(self, f: F) -> F:
        self.__exit__()

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Restoring(self._owner, **self._values):
                return f(*args, **kwargs)

        return wrapper  # type: ignore[return-value]
