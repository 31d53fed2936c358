"""The modules of Flax as objects that can be imported and have Flax's names, for ``plait.as_flax``.

Each provides the names of the plait modules listed for it here, in this order, and every public name of plait: a
program may write ``nnx.Linear`` as ``nnx.nn.linear.Linear``. Flax's private names are not there, except the few that
published packages use.
"""

from __future__ import annotations

import importlib
import importlib.machinery
from types import ModuleType
from typing import Any

from ..._public import PUBLIC
from ...util.public_modules import ROOT, public_value
from ...util.sentinels import NOTHING

_OWN = "flax.compat.flax_functions"
# Modules below flax.nnx that have the same path below plait.
_SAME_PLACE = (
    "bridge bridge.interop bridge.variables bridge.wrappers compat nn.activations nn.initializers spmd training "
    "training.ema training.metrics training.optimizer"
)
# Modules for which plait has only its public names.
_PUBLIC_NAMES = (
    "deprecations extract helpers nn nn.stochastic summary transforms transforms.autodiff transforms.compilation "
    "transforms.general transforms.iteration visualization"
)
# Flax module below flax.nnx → modules below plait that have its names, separated by spaces; before the public names.
HOMES: dict[str, str] = {
    "": "",
    **{path: path for path in _SAME_PLACE.split()},
    **dict.fromkeys(_PUBLIC_NAMES.split(), ""),
    "bridge.module": f"bridge.module {_OWN}",
    "filterlib": f"core.variables.filters {_OWN}",
    "graph": f"graph {_OWN}",
    "graphlib": f"graph {_OWN}",
    "ids": _OWN,
    "module": _OWN,
    "nn.attention": "nn.dot_product",
    "nn.dtypes": "nn.promotion",
    "nn.linear": f"nn.initializers {_OWN}",
    "nn.lora": "nn.initializers",
    "nn.normalization": f"nn.initializers {_OWN}",
    "nn.recurrent": f"nn.recurrent nn.initializers {_OWN}",
    "proxy_caller": "core.states.proxy_caller",
    "pytreelib": "core.nodes.attributes flax.compat.private_names",
    "reprlib": "flax.compat.reprs",
    "rnglib": f"core.rngs {_OWN}",
    "statelib": f"core.states.state core.states.state_functions core.states.pure_dicts {_OWN}",
    "tracers": "flax.compat.private_names",
    "transforms.transforms": _OWN,
    "traversals": "core.states.mappings",
    "variablelib": (
        "core.variables.variables core.variables.variable_kinds core.variables.variable_metadata "
        "core.states.variable_state core.intermediates.variable_names partitioning.initializers "
        "flax.compat.variable_defaults"
    ),
}

# Aliases of Flax modules.
SAME: dict[str, str] = {
    "metrics": "training.metrics",
    "object": "pytreelib",
    "optimizer": "training.optimizer",
    "wrappers": "bridge.wrappers",
}


def names_of(path: str) -> list[str]:
    """The names of a Flax module that plait has, without those of ``nnx`` itself."""
    names = set() if path else {*PUBLIC, *SAME, *(path for path in HOMES if path and "." not in path)}
    for home in HOMES[path].split():
        module = importlib.import_module(f"{ROOT}.{home}")
        names |= {name for name in dir(module) if not name.startswith("_") and _is_own(getattr(module, name))}
    return sorted(names)


def _is_own(value: Any) -> bool:
    return not isinstance(value, ModuleType) and str(getattr(value, "__module__", ROOT)).startswith(ROOT)


def find(root: str, path: str, name: str) -> Any:
    """The value of ``root.path.name``, where ``root`` is ``flax.nnx`` or another name of it.

    Raises:
        AttributeError: plait has nothing with that name.
    """
    below = f"{path}.{name}" if path else SAME.get(name, name)
    if below in HOMES:
        return importlib.import_module(f"{root}.{below}")
    for home in HOMES[path].split() if name != "Any" else ():  # there it is Python's
        value = getattr(importlib.import_module(f"{ROOT}.{home}"), name, NOTHING)
        if value is not NOTHING and (home == _OWN or not name.startswith("_")):
            return value
    if name in PUBLIC:
        return public_value(name)
    raise AttributeError(f"module {f'{root}.{path}'.rstrip('.')!r} has no attribute {name!r}")


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
