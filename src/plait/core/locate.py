"""Where an object stands in a model, for error messages.

A layer does not know its path. When something goes wrong it is looked up: first from the modules whose methods are
running (the frames of the call stack, outermost first), then from the local variables of the running functions, then
from the roots that crossings have walked. Only errors pay for this.
"""

from __future__ import annotations

import sys
from typing import Any

from ..paths import Path, format_path
from .module import Pytree
from .nodes import Kind, kind_of, pytree_impl, unwrapped
from .trace_guard import find_paths
from .walks import walked_roots


def path_within(root: Any, target: Any) -> Path | None:
    """The first path from a root to an object, or ``None``."""
    seen = {id(root)}
    stack: list[tuple[Path, Any]] = [((), root)]
    while stack:
        path, value = stack.pop()
        if value is target:
            return path
        if isinstance(value, Pytree):
            children: Any = value._graph_flatten()[0]
        elif kind_of(value) is Kind.PYTREE:
            children = pytree_impl(type(value)).flatten(value)[0]
        else:
            continue
        for key, child in reversed(children):
            child = unwrapped(child)
            if kind_of(child) is Kind.PYTREE or id(child) not in seen:
                seen.add(id(child))
                stack.append(((*path, key), child))
    return None


def modules_in_use() -> list[tuple[str, Any]]:
    """Modules known to the running functions: first those whose methods run, outermost first, then local variables.

    Each comes with the name that stands for it in a path: nothing for ``self``, the variable's name otherwise.
    """
    running: list[tuple[str, Any]] = []
    local: list[tuple[str, Any]] = []
    frame: Any = sys._getframe(1)
    while frame is not None:
        for position, (name, value) in enumerate(list(frame.f_locals.items())):
            if isinstance(value, Pytree):
                is_receiver = position == 0 and name == "self"
                (running if is_receiver else local).append(("" if is_receiver else name, value))
        frame = frame.f_back
    return running[::-1] + local


def find_path(target: Any) -> str | None:
    """The path of an object as a user would write it, from the outermost model that is known to hold it."""
    for name, root in [*modules_in_use(), *(("", root) for root in walked_roots())]:
        if root is not target and not name.startswith("_"):
            path = path_within(root, target)
            if path:
                return format_path((name, *path) if name else path)
    return None


def describe_place(target: Any) -> str:
    """An object with its path, for the ``at`` of an error: ``encoder.layers[3] (a Linear)``."""
    path = find_path(target)
    kind = type(target).__name__
    return f"{path} (a {kind})" if path else f"a {kind}"


find_paths.append(find_path)
