"""Thread-local settings that take effect immediately and, as a context manager or decorator, are restored on exit."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class _Defaults(threading.local):
    hijax = False
    ref = False
    eager_sharding = True


defaults = _Defaults()

# The settings of this thread that a trace may depend on: name → function that returns the current value.
settings_in_force: dict[str, Callable[[], Any]] = {
    "variable defaults": lambda: (defaults.hijax, defaults.ref, defaults.eager_sharding)
}


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

    def __call__(self, function: F) -> F:
        self.__exit__()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Restoring(self._owner, **self._values):
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class _VariableDefaults(Restoring, Mapping[str, bool]):
    def __repr__(self) -> str:
        return f"VarDefaults({', '.join(f'{name}={value}' for name, value in self.items())})"

    def __getitem__(self, name: str) -> bool:
        return {"hijax": defaults.hijax, "ref": defaults.ref}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("hijax", "ref"))

    def __len__(self) -> int:
        return 2


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> _VariableDefaults:
    """The default flags of new variables in this thread; keywords set them.

    Args:
        hijax: not supported by plait; with ``True``, constructing a variable raises an error.
        ref: whether new variables store their value in a JAX reference.

    Returns:
        A mapping of the current flags. As a context manager or decorator it restores the previous ones.

    Example:
        >>> with plait.var_defaults(ref=True):
        ...     v = plait.Param(jnp.zeros(2))
        >>> v.ref, plait.var_defaults()["ref"]
        (True, False)
    """
    given = {"hijax": hijax, "ref": ref}
    return _VariableDefaults(defaults, **{name: value for name, value in given.items() if value is not None})


def use_eager_sharding(value: bool, /) -> Restoring:
    """Set whether new variables of this thread are placed on devices according to their metadata (default ``True``).

    Takes effect immediately; as a context manager or decorator it restores the previous setting.

    Example:
        >>> with plait.use_eager_sharding(False):
        ...     v = plait.Param(jnp.zeros(2))
        >>> v.eager_sharding, plait.using_eager_sharding()
        (False, True)
    """
    return Restoring(defaults, eager_sharding=bool(value))


def using_eager_sharding() -> bool:
    """Whether new variables of this thread are placed on devices according to their metadata.

    Example:
        >>> plait.using_eager_sharding()
        True
    """
    return defaults.eager_sharding
