"""Settings on which traces may depend. ``Restoring`` sets attributes, and restores them on exit."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, TypeVar

import jax

from ..typing import Value
from ..util.jax_versions import top_level_trace, trace_state

F = TypeVar("F", bound=Callable[..., Any])


class Restoring:
    """Attributes of ``owner``, already set; as a context manager or decorator it restores the previous values on
    exit."""

    def __init__(self, owner: object, **values: Any) -> None:
        self._owner, self._values = owner, values
        self._before: dict[str, object] | None = None
        self.__enter__()

    def __enter__(self) -> Restoring:
        if self._before is None:  # created now, or entered again after the first block restored the previous values
            self._before = {name: getattr(self._owner, name) for name in self._values}
            self._set(self._values)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            self._set(self._before)
            self._before = None

    def _set(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            setattr(self._owner, name, value)

    def __call__(self, f: F) -> F:
        self.__exit__()

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with Restoring(self._owner, **self._values):
                return f(*args, **kwargs)

        return wrapper  # type: ignore[return-value]


class Settings:
    """Settings of a thread or task on which a trace may depend; a subclass lists its fields with annotations and
    defaults.

    JAX keeps what it traces, lowers and compiles by settings of the thread; ``in_force``, which is one of them, holds
    ours. A task that waits in a ``with`` leaves it to the next, so whatever reads a setting or calls a transform calls
    ``put_in_force`` first. In a trace our settings are those by which JAX keeps it.

    Until a field is set for the first time it is a plain attribute of its class, which is read faster.
    """

    _fields: ClassVar[dict[str, _Field]]

    def __init_subclass__(cls) -> None:
        cls._fields = {name: _Field(getattr(cls, name)) for name in cls.__annotations__}

    def __setattr__(self, name: str, value: Value) -> None:
        if getattr(self, name) == value:
            return
        values = _looked_up(self, name).changed(put_in_force(), value)
        _own.set(None if values == in_force.get_global() else values)
        in_force(values).__enter__()


class _Field:
    def __init__(self, default: object) -> None:
        self.default = default

    def __get__(self, settings: Settings | None, cls: type) -> Any:
        return dict(put_in_force()).get(self, self.default)

    def changed(self, values: Values, value: Value) -> Values:
        """The settings with another value of this one."""
        return frozenset(each for each in {**dict(values), self: value}.items() if each[1] != each[0].default)


def _looked_up(settings: Settings, name: str) -> _Field:
    """A field, which from now on is looked up."""
    touched.ever = True
    field = settings._fields[name]
    setattr(type(settings), name, field)
    return field


S = TypeVar("S", bound=Settings)
Values = frozenset[tuple[_Field, object]]  # settings that differ from their defaults

# A setting of JAX: our settings of this thread, or those of the process.
in_force = jax.make_user_context(frozenset())
# The settings of a thread or task; ``None`` if they are those of the process.
_own: ContextVar[Values | None] = ContextVar("plait_settings", default=None)
# Whether a setting was ever changed.
touched = types.SimpleNamespace(ever=False)
_declared: dict[str, Settings] = {}


def put_in_force() -> Values:
    """The settings of this thread or task; from now on JAX has them too."""
    if trace_state.value is not top_level_trace:
        return in_force.value
    own = _own.get()
    values = in_force.get_global() if own is None else own
    if in_force.value != values:  # those of another task
        in_force(values).__enter__()
    return values


def declared(called: str, settings: S) -> S:
    """Put settings into ``settings_in_force``."""
    _declared[called] = settings
    return settings


def set_default(settings: Settings, name: str, value: Value) -> None:
    """Set a field here, and in the threads and tasks that have no settings of their own."""
    in_force.set_global(_looked_up(settings, name).changed(in_force.get_global(), value))
    setattr(settings, name, value)


class _VariableFlags(Settings):
    hijax: bool = False
    ref: bool = False
    eager_sharding: bool = True


def settings_in_force() -> dict[str, tuple[object, ...]]:
    """Our settings, by what they are called."""
    return {
        called: tuple(getattr(settings, name) for name in type(settings).__annotations__)
        for called, settings in _declared.items()
    }


def _jax_settings() -> dict[str, object]:
    """JAX's current settings in this thread, by name, and the mesh."""
    found = {name: getattr(jax.config, name, None) for name in jax.config.values}
    mesh = jax.sharding.get_abstract_mesh()
    return {**found, "the current mesh": None if mesh is None or mesh.empty else str(mesh)}


def all_settings() -> dict[str, object]:
    """All settings in force, and JAX's."""
    return {**_jax_settings(), **settings_in_force()}


defaults = declared("variable defaults", _VariableFlags())
