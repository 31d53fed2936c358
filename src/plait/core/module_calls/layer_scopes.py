"""Operations named by the path of their layer, with JAX's named scopes.

Only exports and their error messages use this; in other programs the names are relative and have no mark
(``module_names.py``). The names remain in the exported program, where profilers and converters show them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ...typing import Node, Tree
from ...util.paths import format_path
from ..nodes.module import Module
from ..nodes.nodes import iter_graph_nodes
from .method_observers import observed_methods

_MARK = "@"  # before a path, to distinguish it from names of JAX and users


@contextlib.contextmanager
def layer_scopes(root: Node) -> Iterator[None]:
    """Inside the block, methods of the modules in ``root`` run in a scope named by their path."""
    modules = [(path, module) for path, module in iter_graph_nodes(root) if isinstance(module, Module)]
    places = {id(module): format_path(path) for path, module in modules if path}

    def in_scope(module: Node, name: str, call: Callable[[], Tree]) -> Tree:
        place = places.get(id(module))
        if place is None:
            return call()
        with jax.named_scope(_MARK + place):
            return call()

    with observed_methods([module for _, module in modules], in_scope):
        yield


def layer_of(eqn: Any) -> str | None:
    """The path of the innermost layer of an operation in a traced program."""
    found = re.findall(rf"{_MARK}([^/()]+)", str(eqn.source_info.name_stack))
    return found[-1] if found else None
