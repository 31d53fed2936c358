"""Deprecation of public names: a warning that says since when, the replacement, and when the name is removed.

``docs/stability.md`` lists every deprecated name. A test compares the list with the calls of ``deprecated``, and fails
at the version in which a name should have been removed.
"""

from __future__ import annotations

from .notices import warn


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
