"""Public names found where ``_public.py`` says they live, and public modules imported by their public path.

``plait.graph`` is ``plait.flax.compat.graph``: both paths stand for one module, for imports, for what lies below it,
and for ``python -m``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

from .._public import LAZY_MODULES, MODULES, PROGRAMS, PUBLIC, RENAMED

ROOT = __name__.rsplit(".", 2)[0]


def public_value(name: str) -> Any:
    """The value of a public name, whose module is imported."""
    module = importlib.import_module(f"{ROOT}.{PUBLIC[name]}")
    if name in MODULES or name in LAZY_MODULES:
        return module
    return getattr(module, RENAMED.get(name, ("", name))[1])


class AliasFinder:
    """Finds modules of a package by other paths.

    Args:
        root: the package.
        homes: path below the package → path below it of the module itself.
    """

    def __init__(self, root: str, homes: Mapping[str, str]) -> None:
        self.root = root
        self.homes = {path: home for path, home in homes.items() if path != home}

    def find_spec(self, name: str, parents: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module that has another path, or lies below one that has."""
        path, _, below = name.removeprefix(f"{self.root}.").partition(".")
        if path not in self.homes or not name.startswith(f"{self.root}."):
            return None
        own = importlib.util.find_spec(f"{self.root}.{self.homes[path]}.{below}".rstrip("."))
        return None if own is None else AliasSpec(name, own)


class AliasSpec(ModuleSpec):
    """The spec of a module under another name.

    Args:
        name: the other name.
        own: the spec of the module itself.
    """

    def __init__(self, name: str, own: ModuleSpec) -> None:
        loader: Any = AliasLoader(own)
        super().__init__(name, loader, origin=own.origin, is_package=loader.is_package(name))
        self.own = own

    @property
    def parent(self) -> str | None:
        """The package of the module itself, to which its imports are relative where it runs as a program."""
        return self.own.parent


class AliasLoader:
    """Imports the module itself, and puts it in the place of the requested one.

    Args:
        own: the spec of the module itself.
    """

    def __init__(self, own: ModuleSpec) -> None:
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.own.name)

    def get_code(self, name: str) -> CodeType | None:
        """The code of the module, for ``runpy``."""
        return self.own.loader.get_code(self.own.name)  # type: ignore[union-attr]

    def is_package(self, name: str) -> bool:
        return self.own.submodule_search_locations is not None


sys.meta_path.insert(0, AliasFinder(ROOT, {**MODULES, **LAZY_MODULES, **PROGRAMS}))
