"""Unique values, which stand for something that no user's value can be."""

from __future__ import annotations

from typing import Any


class Sentinel:
    """A unique value, pickled by its name.

    Args:
        module: the module in which it is assigned.
        name: its name in that module.
        text: its ``repr``.
    """

    def __init__(self, module: str, name: str, text: str) -> None:
        self.__module__, self.name, self.text = module, name, text

    def __repr__(self) -> str:
        return self.text

    def __reduce__(self) -> str:
        return self.name


# There is no value: an argument was not passed, a key is not there.
NOTHING: Any = Sentinel(__name__, "NOTHING", "<nothing>")
