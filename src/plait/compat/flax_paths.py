"""The modules of Flax as objects, to import and to look names up in.

What they hold is said in ``flax_modules.py``. They are made in two places by the same means. Below ``plait`` they serve
a program that changed one import: where plait has no module of that path there is a ``FlaxModule``, and where it has
one, as ``plait.nn.linear``, that module keeps its names and finds the others of Flax's here. Below ``flax.nnx`` they
serve ``plait.as_flax``.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

from .._public import LAZY_MODULES, MODULES, PUBLIC, RENAMED as PUBLIC_RENAMED
from .flax_modules import HOMES, RENAMED, SAME

ROOT = __name__.rpartition(".compat.")[0]
_ABSENT: Any = object()


def names_of(path: str) -> list[str]:
    """The names of a module of Flax that plait has, those of ``nnx`` itself not repeated."""
    names = {*RENAMED.get(path, ())}
    if not path:
        names |= {*PUBLIC, *SAME, *(path for path in HOMES if path and "." not in path)}
    for home in HOMES[path].split():
        module = importlib.import_module(f"{ROOT}.{home}")
        names |= {name for name in dir(module) if not name.startswith("_") and _is_own(getattr(module, name))}
    return sorted(names)


def _is_own(value: Any) -> bool:
    return not isinstance(value, ModuleType) and str(getattr(value, "__module__", ROOT)).startswith(ROOT)


def find(root: str, path: str, name: str) -> Any:
    """What ``root.path.name`` is, where ``root`` stands for ``flax.nnx``.

    Raises:
        AttributeError: plait has nothing of that name.
    """
    below = f"{path}.{name}" if path else SAME.get(name, name)
    if below in HOMES:
        return importlib.import_module(f"{root}.{below}")
    if name in RENAMED.get(path, ()):
        place, _, name = RENAMED[path][name].rpartition(":")
        return getattr(importlib.import_module(f"{ROOT}.{place}"), name) if place else _public_value(name)
    for home in HOMES[path].split() if not name.startswith("_") else ():
        value = _own_value(importlib.import_module(f"{ROOT}.{home}"), name)
        if value is not _ABSENT:
            return value
    if name in PUBLIC:
        return _public_value(name)
    raise AttributeError(f"module {f'{root}.{path}'.rstrip('.')!r} has no attribute {name!r}")


def _public_value(name: str) -> Any:
    module = importlib.import_module(f"{ROOT}.{PUBLIC[name]}")
    if name in MODULES or name in LAZY_MODULES:
        return module
    return getattr(module, PUBLIC_RENAMED.get(name, ("", name))[1])


def _own_value(module: ModuleType, name: str) -> Any:
    """A name of the module's file. Asking the object would come back to ``find`` where it is widened."""
    if name in vars(module):
        return vars(module)[name]
    try:
        return vars(module)["__getattr__"](name)
    except (KeyError, AttributeError):
        return _ABSENT


class FlaxModule(ModuleType):
    """A module of Flax that plait stands in for; a name is looked up when it is first asked for."""

    def __init__(self, root: str, path: str) -> None:
        super().__init__(f"{root}.{path}".rstrip("."), f"plait in the place of flax.nnx{'.' * bool(path)}{path}.")
        # A package without a folder: the files of Flax are found by nobody, so no class is there twice.
        self.__path__ = []
        # Spelt as words that Python reserves, so that they hide no name of Flax.
        self.__flax_path__ = root, path
        self.__used__: set[str] = set()
        self.__lacking__: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return names_of(self.__flax_path__[1])
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        try:
            value = find(*self.__flax_path__, name)
        except AttributeError:
            if not name.startswith("_"):
                self.__lacking__.add(name)
            raise
        self.__used__.add(name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return names_of(self.__flax_path__[1])

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


class _Widened(ModuleType):
    """A module of plait that has the path of a module of Flax, and finds the names that it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return find(ROOT, vars(self)["__flax_path__"], name)

    def __reduce__(self) -> Any:  # by name, as cloudpickle does for modules of Python's own class alone
        return importlib.import_module, (self.__name__,)


def register() -> None:
    """Make the paths of Flax below ``flax.nnx`` importable below ``plait``; called once, when plait has its own."""
    for path in HOMES:
        name = f"{ROOT}.{path}"
        if not path or path.partition(".")[0] in LAZY_MODULES:
            continue
        module = sys.modules.get(name)
        if module is None:
            sys.modules[name] = FlaxModule(ROOT, path)
        else:
            module.__dict__["__flax_path__"] = path
            module.__class__ = _Widened
            # What the file itself means by a renamed name, as `Any` of typing, is not what Flax's users mean.
            module.__dict__.update({name: find(ROOT, path, name) for name in RENAMED.get(path, ())})


class FlaxFinder:
    """Gives Python the modules of ``flax.nnx``: first in ``sys.meta_path``, it comes before the files of Flax."""

    roots = ("flax.nnx", "flax.experimental.nnx")

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that plait stands in for; an empty path is ``flax.nnx`` itself."""
        for root in self.roots:
            below = "" if name == root else name.removeprefix(f"{root}.")
            if below != name and below in HOMES:
                return importlib.machinery.ModuleSpec(name, self, is_package=True, origin="plait")  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        root = next(root for root in self.roots if spec.name == root or spec.name.startswith(f"{root}."))
        return FlaxModule(root, spec.name.removeprefix(root).lstrip("."))

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: names are looked up on access."""
