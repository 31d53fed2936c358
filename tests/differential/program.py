"""A program as data: definitions, then steps, each with the names that it shows; it prints as a program that runs."""

from __future__ import annotations

import dataclasses

HEADER = """\
import collections

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

traces = collections.Counter()  # how often the body of a function ran"""

# What programs need to say often. It is text of theirs, so that a printed program runs by itself.
TOOLS = '''\
def is_float(a):
    return hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating)


def doubled(a):
    """Floats doubled; counts and keys as they are."""
    return a * 2 if is_float(a) else a


def zeroed(a):
    return jnp.zeros_like(a) if is_float(a) else a


def total(tree):
    """The sum of all floats of a tree."""
    return sum([jnp.sum(a.astype(jnp.float32)) for a in jax.tree.leaves(tree) if is_float(a)], jnp.zeros(()))


class Count(nnx.Variable):
    pass'''


@dataclasses.dataclass(frozen=True)
class Step:
    """A few lines of a program, and the names of the values that are looked at after them."""

    text: str
    shows: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Program:
    """Definitions of classes, which programs may have in common, and steps.

    Attributes:
        area: the strategy that drew it.
        definitions: the text of its classes; run once for all programs that have the same.
        steps: what it does. It ends with the first step that raises.
    """

    area: str
    definitions: str
    steps: tuple[Step, ...]

    def text(self) -> str:
        """A program that runs by itself, and prints what it shows."""
        return "\n".join([HEADER, "", "", TOOLS, "", "", self.body(), "print(traces)"]) + "\n"

    def body(self) -> str:
        """The same without what all programs have in common."""
        lines = [self.definitions, "", ""] if self.definitions else []
        for step in self.steps:
            lines.append(step.text)
            lines += [f"print({name!r}, {name})" for name in step.shows]
        return "\n".join(lines)

    __str__ = __repr__ = text


def program(area: str, *steps: str | tuple[str, ...], definitions: str = "") -> Program:
    """A program written by hand: each step is its text, or its text and the names it shows."""
    parts = [(step,) if isinstance(step, str) else step for step in steps]
    return Program(area, definitions, tuple(Step(text, tuple(shows)) for text, *shows in parts))
