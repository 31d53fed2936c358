"""Thread-local settings on which traces may depend. ``Restoring`` sets attributes, and restores them on exit."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

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


class Settings(threading.local):
    """Settings of a thread on which a trace may depend; a subclass lists its fields with annotations and defaults.

    What JAX traces, lowers and compiles it keeps by the values of its own settings. ``in_force`` is one of them, and
    changes with ours, so no call compares anything.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        in_force(_unlike_defaults(settings_of_thread())).__enter__()


S = TypeVar("S", bound=Settings)

# A setting of JAX: our settings that differ from their defaults; ``None`` if all are at their defaults.
in_force = jax.make_user_context(None)
_declared: dict[str, Settings] = {}
_defaults: dict[str, tuple[Any, ...]] = {}


def declared(called: str, settings: S) -> S:
    """Put settings, which have their defaults now, in force."""
    _declared[called] = settings
    _defaults[called] = _values(settings, settings)
    return settings


def set_default(settings: Settings, name: str, value: Any) -> None:
    """Set a field in this thread and in those that have not set it."""
    setattr(type(settings), name, value)
    in_force.set_global(_unlike_defaults({called: _values(each, type(each)) for called, each in _declared.items()}))
    setattr(settings, name, value)


def _values(settings: Settings, owner: Any) -> tuple[Any, ...]:
    return tuple(getattr(owner, name) for name in type(settings).__annotations__)


def _unlike_defaults(values: dict[str, tuple[Any, ...]]) -> Any:
    return tuple(each for each in values.items() if each not in _defaults.items()) or None


class _VariableFlags(Settings):
    hijax: bool = False
    ref: bool = False
    eager_sharding: bool = True


def settings_of_thread() -> dict[str, tuple[Any, ...]]:
    """All settings in force."""
    return {called: _values(settings, settings) for called, settings in _declared.items()}


def _jax_settings() -> dict[str, Any]:
    """JAX's current settings in this thread, by name, and the mesh."""
    found = {name: getattr(jax.config, name, None) for name in jax.config.values}
    mesh = jax.sharding.get_abstract_mesh()
    return {**found, "the current mesh": None if mesh is None or mesh.empty else str(mesh)}


def all_settings() -> dict[str, Any]:
    """All settings in force, and JAX's."""
    return {**_jax_settings(), **settings_of_thread()}


defaults = declared("variable defaults", _VariableFlags())
