"""The modules whose methods were running when an error occurred, and their paths.

Calls of transforms announce their objects on the errors that leave them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from traceback import walk_tb
from typing import Any, NamedTuple

from ...typing import Node, Value
from ...util.jax_versions import frame_locals
from ...util.paths import Path, format_path
from ...util.words import with_article
from ..graph.locate import path_within
from ..nodes.pytree import Pytree


class Running(NamedTuple):
    """A module whose method was running, with its path in the outermost module, if known."""

    module: Node
    method: str
    path: Path | None


def _objects_by_frame(error: BaseException) -> Iterator[tuple[Any, bool, list[object]]]:
    """The frames of the traceback, outermost first: each with whether its block was inside, and with its objects."""
    calls = getattr(error, "_plait_calls", {})
    for frame, _ in walk_tb(error.__traceback__):
        inside, refs = calls.get(id(frame), (False, ()))
        yield frame, inside, [ref() for ref in refs]


def modules_of_error(error: BaseException) -> list[Running]:
    """The modules whose methods were running, outermost first. Paths continue inside calls of transforms."""
    found: list[Running] = []
    known: list[tuple[Path, Value]] = []
    outside: list[Path | None] = []
    for frame, inside, roots in _objects_by_frame(error):
        code, variables = frame.f_code, frame_locals(frame)
        if inside:
            known += [(path, root) for path, root in zip(outside, roots, strict=False) if path is not None]
        elif roots:
            outside = [_path_from(known, root) for root in roots]
        owner = next(iter(variables.values()), None) if code.co_argcount else None
        if isinstance(owner, Pytree) and hasattr(type(owner), code.co_name):
            known = known or [((), owner)]
            found.append(Running(owner, code.co_name, _path_from(known, owner)))
    return found


def causes(error: BaseException) -> Iterator[BaseException]:
    """The chain of causes of an error. One of them has the location of code that JAX has traced."""
    cause = getattr(error, "comes_from", None) or error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def objects_of_error(error: BaseException) -> list[tuple[Path, Value]]:
    """The objects of the outermost call of a transform that was running, as roots: each with an empty path."""
    return [((), root) for root in next((roots for *_, roots in _objects_by_frame(error) if roots), ())]


def _path_from(known: Sequence[tuple[Path, Value]], target: object) -> Path | None:
    """The path of an object inside one of the objects with known paths, innermost first."""
    paths = ((path, path_within(root, target)) for path, root in reversed(known))
    return next(((*path, *rest) for path, rest in paths if rest is not None), None)


def place_of(error: BaseException) -> str | None:
    """Where an error occurred: ``layers[1] (a Linear), in __call__``; ``None`` if no method of a module ran."""
    running = modules_of_error(error)
    if not running:
        return None
    module, method, path = running[-1]
    kind = with_article(type(module).__name__)
    return f"{format_path(path)} ({kind}), in {method}" if path else f"{kind}, in {method}"
