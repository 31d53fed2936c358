"""Writes a program while hypothesis draws it."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.differential.program import Program, Step

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]


class Pen:
    """The lines of one program, and the choices behind them."""

    def __init__(self, draw: Draw, area: str) -> None:
        self.draw = draw
        self.area = area
        self.definitions: list[str] = []
        self.steps: list[Step] = []
        self._names: collections.Counter[str] = collections.Counter()

    def pick(self, *options: T) -> T:
        return self.draw(st.sampled_from(options))

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to ``most`` of them, in an order of their own."""
        return self.draw(st.lists(st.sampled_from(options), max_size=most, unique=True))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(1, 100)) > 100 - percent

    def number(self, least: int, most: int) -> int:
        return self.draw(st.integers(least, most))

    def name(self, stem: str) -> str:
        """A name that the program does not have yet."""
        self._names[stem] += 1
        count = self._names[stem]
        return stem if count == 1 else f"{stem}{count}"

    def define(self, text: str) -> None:
        if text not in self.definitions:
            self.definitions.append(text)

    def step(self, text: str, *shows: str) -> None:
        self.steps.append(Step(text, shows))

    def options(self, percent: int, **values: Sequence[str]) -> str:
        """Each option, with a chance, as ``, name=value``."""
        return "".join(f", {name}={self.pick(*texts)}" for name, texts in values.items() if self.chance(percent))

    def program(self) -> Program:
        return Program(self.area, "\n\n\n".join(self.definitions), tuple(self.steps))
