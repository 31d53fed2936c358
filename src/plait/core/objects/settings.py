"""Thread-local settings on which traces may depend; ``Restoring`` sets them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ...util.jax_versions import jax_settings


class Settings(threading.local):
    """Settings of a thread on which a trace may depend; a subclass lists its fields with annotations and defaults.

    What JAX traces, lowers and compiles it keeps by the values of its own settings. ``in_force`` is one of them, and
    changes with ours, so no call compares anything.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        in_force(
            tuple(each for each in settings_of_thread().items() if each not in _defaults.items()) or None
        ).__enter__()

    def values(self) -> tuple[Any, ...]:
        """The values in this thread."""
        return tuple(getattr(self, name) for name in type(self).__annotations__)


S = TypeVar("S", bound=Settings)

# JAX's setting: those that differ from their defaults; ``None`` if there are none.
in_force = jax.make_user_context(None)
# What they are called → function that returns the current values.
settings_in_force: dict[str, Callable[[], tuple[Any, ...]]] = {}
_defaults: dict[str, tuple[Any, ...]] = {}


def declared(called: str, settings: S) -> S:
    """Put settings, which have their defaults now, in force."""
    settings_in_force[called] = settings.values
    _defaults[called] = settings.values()
    return settings


class _VariableFlags(Settings):
    hijax: bool = False
    ref: bool = False
    eager_sharding: bool = True


def settings_of_thread() -> dict[str, tuple[Any, ...]]:
    """All settings in force."""
    return {called: values() for called, values in settings_in_force.items()}


def all_settings() -> dict[str, Any]:
    """All settings in force, and JAX's."""
    return {**jax_settings(), **settings_of_thread()}


defaults = declared("variable defaults", _VariableFlags())
