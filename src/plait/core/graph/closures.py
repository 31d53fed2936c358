"""Functions in attributes that close over a node of their own graph, which a copy of the graph does not replace."""

from __future__ import annotations

import weakref
from typing import Any

from ...errors import CapturedModelWarning
from ...ground.notices import warn
from ...ground.paths import format_path
from ...ground.words import with_article
from ..objects.pytree import Pytree
from ..objects.variables import Variable
from .flatten import Walk, path_of

# Functions that were warned about.
_told: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_about_closures(walk: Walk) -> None:
    """Warn, once for each function, that a static function of a graph closes over a node of that graph.

    Warns:
        CapturedModelWarning: names the attribute, and what it closes over.
    """
    for function, link in walk.closures:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
            if isinstance(value, (Pytree, Variable)) and value in walk.refs and function not in _told:
                _told.add(function)
                path = path_of(link)
                warn(
                    CapturedModelWarning,
                    "a function in an attribute closes over a part of its own model",
                    at=format_path(path),
                    found=f"{function.__name__!r}, whose {name!r} is {with_article(type(value).__name__)} of it; "
                    "in transforms and clones it uses the original, with its old values",
                    expected="a function that takes what it uses, or a method, whose owner is replaced with the model",
                    do=f"bind it: self.{path[-1]} = functools.partial(function, {name})",
                )
