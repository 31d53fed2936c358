"""Switches that are variables of the environment."""

from __future__ import annotations

import os


def flag(name: str, default: str) -> bool:
    """Whether a switch is on: anything but ``0``, ``false``, ``no`` and ``off``; if it is empty, its default."""
    return (os.environ.get(name) or default).lower() not in ("0", "false", "no", "off")
