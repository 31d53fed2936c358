"""The modules of Flax as objects that can be imported and have Flax's names.

``flax_modules.py`` lists their contents. They exist in two places. Below ``plait`` they serve a program that changed
one import: for a path that plait lacks there is a ``FlaxModule``; a module that plait has, such as ``plait.nn.linear``,
keeps its names and finds Flax's other names here. Below ``flax.nnx`` they serve ``plait.as_flax``.
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
    """The names of a Flax module that plait has, without those of ``nnx`` itself."""
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
    """The value of ``root.path.name``, where ``root`` stands for ``flax.nnx``.

    Raises:
        AttributeError: plait has nothing with that name.
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
    """A name from the module's file. ``getattr`` on an extended module would call ``find`` again."""
    if name in vars(module):
        return vars(module)[name]
    try:
        return vars(module)["__getattr__"](name)
    except (KeyError, AttributeError):
        return _ABSENT


class FlaxModule(ModuleType):
    """A Flax module that plait replaces; each name is looked up on first use."""

    def __init__(self, root: str, path: str) -> None:
        super().__init__(f"{root}.{path}".rstrip("."), f"plait in place of flax.nnx{'.' * bool(path)}{path}.")
        # A package without a folder: Python never finds the files of Flax, so no class exists twice.
        self.__path__ = []
        # Spelled like names that Python reserves, so that they hide no name of Flax.
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
    """A plait module with the path of a Flax module; it finds the names that it lacks."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return find(ROOT, vars(self)["__flax_path__"], name)

    def __reduce__(self) -> Any:  # by name, which cloudpickle does only for modules of Python's own class
        return importlib.import_module, (self.__name__,)


def register() -> None:
    """Make Flax's paths, and public modules that live elsewhere, importable below ``plait``; called once."""
    sys.meta_path.insert(0, OwnFinder())


class OwnFinder:
    """Finds ``plait.graph``, which is ``plait.compat.graph``, and the modules of ``HOMES`` below ``plait``."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a public module that lives elsewhere, of a module that gets Flax's names, or of Flax's module."""
        below = name.removeprefix(f"{ROOT}.")
        is_flax_s = below in HOMES and below.partition(".")[0] not in LAZY_MODULES
        if below == name or not (is_flax_s or below in MODULES):
            return None
        if MODULES.get(below, below) != below:
            return importlib.machinery.ModuleSpec(name, _Alias(below), origin="plait")  # type: ignore[arg-type]
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None:
            return importlib.machinery.ModuleSpec(name, _Absent(below), is_package=True, origin="plait")  # type: ignore[arg-type]
        if is_flax_s and spec.loader is not None:
            spec.loader = _Widening(below, spec.loader)  # type: ignore[assignment]
        return spec


class _Alias:
    """Loads a public module that lives elsewhere: both names stand for one module."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        own = importlib.import_module(f"{ROOT}.{MODULES[self.path]}")
        sys.modules[module.__name__] = own
        if self.path in HOMES:
            _widen(own, self.path)


class _Absent(_Alias):
    """Makes a module that plait lacks; names are looked up on access."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return FlaxModule(ROOT, self.path)

    def exec_module(self, module: ModuleType) -> None:
        pass


class _Widening(_Alias):
    """Loads a module of plait as another loader does, and adds Flax's names."""

    def __init__(self, path: str, loader: Any) -> None:
        self.path, self.loader = path, loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = module.__spec__.loader = self.loader  # type: ignore[union-attr]
        self.loader.exec_module(module)
        _widen(module, self.path)


def _widen(module: ModuleType, path: str) -> None:
    module.__dict__["__flax_path__"] = path
    module.__class__ = _Widened
    # The file itself may use a renamed name, such as `Any` from typing, for something other than Flax does.
    module.__dict__.update({name: find(ROOT, path, name) for name in RENAMED.get(path, ())})


class FlaxFinder:
    """Gives Python the modules of ``flax.nnx``; it is first in ``sys.meta_path``, before the files of Flax."""

    roots = ("flax.nnx", "flax.experimental.nnx")

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module that plait replaces; an empty path is ``flax.nnx`` itself."""
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
