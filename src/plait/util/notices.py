"""Warnings in the form of plait's errors, reported at the line of the user's code.

``docs/stability.md`` lists every deprecated name. A test compares the list with the calls of ``deprecated``, and fails
at the version in which a name should have been removed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax

from .. import errors
from ..errors import NothingSelectedWarning, PlaitError
from .words import describe_filter

_NOT_THE_USERS = (
    *(os.path.dirname(os.path.abspath(str(place))) + os.sep for place in (errors.__file__, jax.__file__)),
    contextlib.__file__,  # a warning may be issued at the end of a ``with`` block
)


def warn(kind: type[Warning], message: str, **parts: str | None) -> None:
    """Warn with the parts of an error: ``at``, ``found``, ``expected``, ``do``."""
    warnings.warn(str(PlaitError(message, **parts)), kind, stacklevel=_levels_out())


def warn_nothing_selected(
    who: str, filter: Any, kinds: Iterable[type | None], *, at: str | None, so: str, do: str
) -> None:
    """Warn that a filter matched nothing.

    Args:
        who: the function or object that uses the filter.
        kinds: the types of the existing leaves: variable classes, ``None`` for a bare array.
        so: the consequence.
    """
    counts = Counter("array" if kind is None else kind.__name__ for kind in kinds)
    warn(
        NothingSelectedWarning,
        f"{who}: the filter {describe_filter(filter)} selects nothing, {so}",
        at=at,
        found=", ".join(f"{count} {name}" for name, count in counts.most_common()) or "no variables",
        expected="at least one variable that the filter matches",
        do=do,
    )


def deprecated(what: str, *, since: str, instead: str, removed_in: str) -> None:
    """Warn, at the line of the user's code, that a name will be removed.

    Args:
        what: the deprecated use, as code if possible: ``rngs.fork(split=k)``.
        since: the first version of plait that warns.
        instead: the replacement, as code if possible.
        removed_in: the first version without it.
    """
    message = f"{what}: deprecated since plait {since}, to be removed in {removed_in}"
    warn(DeprecationWarning, message, do=f"use {instead}")


def _levels_out() -> int:
    """The number of frames from ``warn`` to the user's code, which is in none of the files above."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
        level += 1
    return level
