"""The files of installed packages that take part in a program.

What a package computes depends on more than the code that was entered: on constants, defaults, tables, other modules.
All of it comes from its files. So for each package that takes part, the content of the files of its loaded modules is
compared; JAX, jaxlib and NumPy are identified by their versions. (rule W3)
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import weakref
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

from .descriptions import Origin, digest, origin_of

_HEAD = 1 << 16  # of a compiled module, which contains the identity of its build
_digests: weakref.WeakKeyDictionary[ModuleType, str] = weakref.WeakKeyDictionary()


def sources_of(packages: Iterable[str]) -> dict[str, list[str]]:
    """The files of the loaded modules of installed packages and of those that they use, relative to the folder that
    contains the package.

    Args:
        packages: names of modules.
    """
    names = {*packages}
    tops = {name.partition(".")[0] for each in names for name in (each, *_used(sys.modules.get(each)))}
    return {top: sorted(_loaded(top)) for top in sorted(tops) if origin_of(top) is Origin.PACKAGE}


def _used(module: ModuleType | None) -> Iterable[str]:
    """The names of the modules whose functions, classes or other values a module uses."""
    for value in [] if module is None else [*_contents(module).values()]:
        if isinstance(value, ModuleType):
            name = _contents(value).get("__name__")
            if isinstance(name, str):
                yield name
        elif isinstance(value, (FunctionType, type)):
            yield str(value.__module__)


def _contents(module: ModuleType) -> dict[str, Any]:
    """The names in a module. Some modules load another package when any attribute is asked for, even their name."""
    return ModuleType.__getattribute__(module, "__dict__")


def sources_token(top: str, files: Iterable[str]) -> str:
    """The content of some files of a package; modules that are already loaded are read once per process."""
    try:
        folder = _folder(importlib.import_module(top))
    except ImportError:
        return "absent"
    loaded = _loaded(top)
    return digest("sources", [part for name in files for part in (name, _content(folder, name, loaded.get(name)))])


def _loaded(top: str) -> dict[str, ModuleType]:
    """The loaded modules of a package, by their files."""
    folder = _folder(sys.modules.get(top))
    found: dict[str, ModuleType] = {}
    for name, module in [*sys.modules.items()]:
        file = _contents(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and name.partition(".")[0] == top:
            found[file.removeprefix(folder + os.sep)] = module
    return found


def _folder(module: ModuleType | None) -> str:
    """The folder that contains a top-level package or module."""
    scope = {} if module is None else _contents(module)
    places = [*(scope.get("__path__") or ()), scope.get("__file__")]  # those of wrapped modules may be None
    return os.path.dirname(next((place for place in places if isinstance(place, str)), ""))


def _content(folder: str, name: str, module: ModuleType | None) -> str:
    known = None if module is None else _digests.get(module)
    if known is None:
        known = _content_of(os.path.join(folder, name))
        if module is not None:
            _digests[module] = known
    return known


def _content_of(file: str) -> str:
    """The content of a Python file; of a compiled module its size and beginning."""
    try:
        with open(file, "rb") as opened:
            if file.endswith(".py"):
                return hashlib.sha256(opened.read()).hexdigest()
            return f"{os.path.getsize(file)}:{hashlib.sha256(opened.read(_HEAD)).hexdigest()}"
    except OSError:
        return "absent"
