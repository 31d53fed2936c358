"""How a public name is retired: a warning that says since when, what to write instead, and when the name goes.

``docs/stability.md`` lists every name that is on its way out. A test compares the list with the calls of
``deprecated``, and fails once a version is reached in which a name was to be gone.
"""

from __future__ import annotations

from .notices import warn


def deprecated(what: str, *, since: str, instead: str, removed_in: str) -> None:
    """Warn, at the line of the user's own code, that it uses something that will be removed.

    Args:
        what: the old way, as code where possible: ``rngs.fork(split=k)``.
        since: the first version of plait that warns.
        instead: what to write, as code where possible.
        removed_in: the first version without it.
    """
    message = f"{what}: deprecated since plait {since}, to be removed in {removed_in}"
    warn(DeprecationWarning, message, do=f"use {instead}")
