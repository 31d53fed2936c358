"""Packages whose names load on first use: ``__getattr__`` and ``__dir__`` for their ``__init__``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package that imports nothing by itself.

    Args:
        package: its ``__name__``.
        names: module, relative to the package → the public names that it defines: ``"sharding"``, or ``"..convert"``;
            with a dot at the end, ``"."`` or ``"..nn."``, the names of its public modules.
    """
    places = {name: module for module, given in names.items() for name in given.split()}

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        place = places[name]
        if place.endswith("."):
            return importlib.import_module(_relative(place + name), package)
        return getattr(importlib.import_module(_relative(place), package), name)

    return find, lambda: sorted(places)


def _relative(module: str) -> str:
    return module if module.startswith(".") else f".{module}"
