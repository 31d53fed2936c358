"""Finding the path of an object in a model, for error messages.

A layer does not know its path. For an error, the path is searched: first from the modules whose methods are running
(the frames of the call stack, outermost first), then from the variables that the running functions use, then from the
roots that calls of transforms have walked. The longest path is used, since it begins at the largest model. Only errors
pay for the search.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from traceback import walk_stack

from ...errors import ArgumentError
from ...typing import Node, Value
from ...util.jax_versions import current_trace, describe_trace, frame_locals
from ...util.paths import Path, format_path
from ...util.words import describe_type, with_article
from .. import hooks
from ..nodes.journal import trace_of
from ..nodes.nodes import children_if_any, visit
from ..nodes.pytree import Pytree
from ..traces.guard import call_with_model
from ..variables.variables import Variable
from .walks import walked_roots

_PACKAGE = __name__.partition(".")[0] + "."


def path_within(root: Node, target: object) -> Path | None:
    """The first path from a root to an object, or ``None``. Parts that cannot be walked are skipped."""
    return next((place.path for place in visit(root, children=children_if_any) if place.value is target), None)


def modules_in_use() -> list[tuple[str, Node]]:
    """Modules in the running functions: first those whose methods are running, outermost first, then those in
    variables.

    Each comes with its prefix in a path: empty for ``self``, otherwise the name of the variable.
    """
    running: list[tuple[str, Node]] = []
    local: list[tuple[str, Node]] = []
    for frame, _ in walk_stack(sys._getframe(1)):
        ours = frame.f_globals.get("__name__", "").startswith(_PACKAGE)  # plait's internal names mean nothing to a user
        code = frame.f_code
        for position, (name, value) in enumerate(frame_locals(frame).items()):
            if isinstance(value, Pytree):
                if position == 0 and code.co_argcount and hasattr(type(value), code.co_name):
                    running.append(("", value))
                elif not ours and name.isidentifier():
                    local.append((name, value))
        if not ours:
            used = ((name, frame.f_globals.get(name)) for name in code.co_names)
            local.extend((name, value) for name, value in used if isinstance(value, Pytree))
    return running[::-1] + local


def find_path(target: object) -> str | None:
    """The path of an object as a user would write it, from the outermost known model that contains it."""
    roots = [*modules_in_use(), *(("", root) for root in walked_roots())]
    paths = [(name, path_within(root, target) or ()) for name, root in roots if not name.startswith("_")]
    name, path = max(paths, key=lambda found: len(found[1]), default=("", ()))
    return format_path((name, *path) if name else path) if path else None


def path_of_value(value: Value) -> str | None:
    """The path of the variable that holds a value, in the known modules, outermost first."""
    for name, root in [*modules_in_use(), *(("", root) for root in walked_roots())]:
        for place in visit(root, children=children_if_any):
            if isinstance(place.value, Variable) and place.value._cell.raw is value:
                return format_path((name, *place.path) if name else place.path)
    return None


def describe_place(target: object) -> str:
    """An object with its path, for the ``at`` of an error: ``encoder.layers[3] (a Linear)``."""
    path = find_path(target)
    kind = type(target).__name__
    return f"{path} ({with_article(kind)})" if path else with_article(kind)


def check_no_captured_objects(
    name: str, objects: Iterable[Node], known: Collection[int], roots: Sequence[Node]
) -> None:
    """Raise if one of the objects that leave a function belongs to another trace and was not passed to it.

    Args:
        known: the ids of what was passed to it.
        roots: what leaves the function, for the path.

    Raises:
        ArgumentError: names the object, and the trace that it belongs to.
    """
    here = current_trace()
    for item in objects:
        trace = trace_of(item, here)
        if trace is not here and id(item) not in known:
            path = path_within([*roots], item)
            raise ArgumentError(
                f"{name} cannot return an object that the function captured from outside",
                at=describe_place(item),
                found=f"{describe_type(item)} of {describe_trace(trace)}"
                + (f", reached as {format_path(path[1:])}" if path and len(path) > 1 else ""),
                expected="objects that were passed as arguments or created inside",
                do=f"make the model an argument of the function: {call_with_model(name)}",
            )


hooks.find_path = find_path
