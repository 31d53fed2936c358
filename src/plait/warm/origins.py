"""Where code comes from: JAX and Python's library, an installed package, or the user. (rule W3)"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import os
import sys
import sysconfig
from types import FunctionType, ModuleType
from typing import Any

_BY_VERSION = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes", "builtins"})
_OWN = __name__.partition(".")[0]


def _paths(*names: str) -> tuple[str, ...]:
    return tuple({path for name in names if (path := sysconfig.get_path(name))})


# An environment may see the packages of another one: of the system, of the user, or by a ``.pth`` file.
_SITES = tuple(path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages"))
INSTALLED = (*_paths("purelib", "platlib"), *_SITES)
_STANDARD = (*_paths("stdlib", "platstdlib"), os.path.dirname(os.__file__))


class Origin(enum.Enum):
    """The origin of a module: whether its version determines its content, or its code is compared, or also what it
    reads."""

    VERSION = enum.auto()
    PACKAGE = enum.auto()
    USER = enum.auto()


@functools.lru_cache(maxsize=4096)
def origin_of(module: str | None) -> Origin:
    """The origin of a module of this name. A file of the user's may be named like a standard module."""
    if module is None:
        return Origin.USER
    top = module.partition(".")[0]
    if top in _BY_VERSION or (top.startswith("namedtuple_") and top not in sys.modules):
        return Origin.VERSION
    if is_own(top):
        return Origin.PACKAGE
    place = _place_of(top)
    if place.startswith(INSTALLED):
        return Origin.PACKAGE
    is_standard = top in sys.stdlib_module_names and (not place or place.startswith(_STANDARD))
    return Origin.VERSION if is_standard else Origin.USER


def is_users(value: Any) -> bool:
    """Whether a function, a class or another object is of the user's. Functions belong to the module whose globals they
    use: ``functools.wraps`` gives them the name of another."""
    if isinstance(value, FunctionType):
        module = value.__globals__.get("__name__")
        return isinstance(module, str) and origin_of(module) is Origin.USER
    module = getattr(value if isinstance(value, type) else type(value), "__module__", None)
    # some types in C belong to a module that does not exist
    return isinstance(module, str) and module in sys.modules and origin_of(module) is Origin.USER


def is_own(module: str | None) -> bool:
    """Whether a module is part of plait."""
    return module is not None and module.partition(".")[0] == _OWN


def contents_of(module: ModuleType) -> dict[str, Any]:
    """The names in a module. Some modules load another package when any attribute is asked for, even their name."""
    return ModuleType.__getattribute__(module, "__dict__")


def places_of(module: Any) -> list[str]:
    """The folders and the file of a module; those of wrapped modules may be missing, or ``None``."""
    scope = contents_of(module) if isinstance(module, ModuleType) else getattr(module, "__dict__", {})
    return [place for place in (*(scope.get("__path__") or ()), scope.get("__file__")) if isinstance(place, str)]


def imported(module: str) -> ModuleType:
    """A module. One whose import goes on is not waited for: another thread imports it, and may wait for this one.

    Raises:
        ImportError: it is not there.
    """
    found = sys.modules.get(module)
    return importlib.import_module(module) if found is None else found


def _place_of(top: str) -> str:
    """The folder or file of a top-level module; empty if it has none."""
    found = sys.modules.get(top)
    if found is not None:
        return next(iter(places_of(found)), "")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return ""
    return spec.origin or "" if spec is not None and spec.has_location else ""
