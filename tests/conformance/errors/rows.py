"""What a row of the table of errors is, and how it is run.

A row is a mistake in a user's program, the error that answers it, and the program that follows the error's advice.
Where the advice holds Python, the cure takes it from the message, word for word; so it runs, or the test fails.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import plait

SOURCE = Path(plait.__file__).parent


@dataclasses.dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        wrong: the code that raises, or warns.
        error: the class of the error or warning.
        says: regular expressions that the message matches: a word of it, and the path.
        cure: the program that follows the advice. ``$`` stands for ``fix``.
        fix: a piece of the advice that is Python, word for word; the cure is ``fix`` alone if none is given.
        setup: code before both; ``model``, ``x``, … are there already (``program``).
    """

    wrong: str
    error: type[BaseException]
    says: tuple[str, ...] | str
    cure: str = "$"
    fix: str = ""
    setup: str = ""


class Two(plait.Module):
    """A model with a list, a statistic, a stream, and an integer."""

    def __init__(self, rngs):
        self.layers = [plait.Linear(2, 2, rngs=rngs), plait.Linear(2, 2, rngs=rngs)]
        self.calls = plait.BatchStat(jnp.zeros(()))
        self.drop = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def program() -> dict[str, Any]:
    """The names that every program of the table begins with."""
    names = {"jax": jax, "jnp": jnp, "np": np, "plait": plait, "Two": Two, "rngs": plait.Rngs(0)}
    names |= {"P": jax.sharding.PartitionSpec, "x": jnp.ones((4, 2))}
    names["model"] = Two(plait.Rngs(0))
    return names


def run(code: str, names: dict[str, Any]) -> None:
    exec(textwrap.dedent(code), names)


def caught(row: Row) -> tuple[BaseException, dict[str, Any]]:
    """What the mistake of a row raises, and the names that its program has by then."""
    names = program()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if issubclass(row.error, Warning) else "ignore")
        run(row.setup, names)
        try:
            run(row.wrong, names)
        except BaseException as error:
            return error, names
    raise AssertionError(f"nothing was raised by {row.wrong}")


def advice(error: BaseException) -> str:
    """The last part of a message."""
    return str(error).partition("\n  do        ")[2]


def follow(row: Row) -> None:
    """Run the program that does what the message says."""
    names = program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(row.setup, names)
        run(row.cure.replace("$", row.fix), names)


def code_in(text: str) -> Iterator[str]:
    """The pieces of a text that look like Python: what stands in backticks, calls, and keyword arguments."""
    yield from re.findall(r"`([^`]+)`", text)
    text = re.sub(r"`[^`]+`", "", text)
    for found in re.finditer(r"(?<![\w.])(?:lambda [\w, ]+: |[\w.\[\]]+ = )?[A-Za-z_][\w.]*(?:\(|=(?=[^\s=]))", text):
        yield _whole(text, found.start(), found.end())


def _whole(text: str, start: int, end: int) -> str:
    """The piece from ``start`` on: until its brackets are closed and, for a keyword argument, its value ends."""
    keyword = text[end - 1] == "="
    depth = 0
    for place in range(start, len(text)):
        sign = text[place]
        if keyword and depth == 0 and place >= end and sign in " ,;:)":
            return text[start:place]
        depth += (sign in "([{") - (sign in ")]}")
        if not keyword and sign in ")]}" and depth == 0:
            return text[start : place + 1]
    return text[start:]


def compiles(code: str) -> bool:
    """Whether a piece is Python: statements, or a keyword argument, which reads as an assignment."""
    try:
        ast.parse(code.removeprefix("@"))
    except SyntaxError:
        return False
    return True


def raised_at(error: BaseException) -> set[tuple[str, int]]:
    """The lines of plait that an error, and those that it came from, passed through."""
    found, stack, seen = set(), [error], set()
    while stack:
        each = stack.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        stack += [each.__cause__, each.__context__]
        traceback = each.__traceback__
        while traceback is not None:
            file = traceback.tb_frame.f_code.co_filename
            if file.startswith(str(SOURCE)):
                found.add((file, traceback.tb_lineno))
            traceback = traceback.tb_next
    return found


@dataclasses.dataclass(frozen=True)
class Site:
    """A statement of plait that raises an error, or warns."""

    file: str
    function: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{Path(self.file).relative_to(SOURCE)}:{self.first} ({self.function})"


# Python's own protocols: an attribute or a key that is not there, what a subclass defines, an error passed on inside.
BUILTINS = {"AttributeError", "KeyError", "TypeError", "ValueError", "NotImplementedError", "StopIteration"}
WARNERS = {"warn", "warn_nothing_selected"}


def sites(file: Path) -> Iterator[Site]:
    """Every statement of a file that raises an error of plait's, or warns."""

    def visit(node: ast.AST, function: str) -> Iterator[Site]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from visit(child, child.name)
                continue
            if _raises(child) or _warns(child):
                yield Site(str(file), function, child.lineno, child.end_lineno)
            yield from visit(child, function)

    yield from visit(ast.parse(file.read_text()), "")


def _raises(node: ast.AST) -> bool:
    if not isinstance(node, ast.Raise) or node.exc is None:
        return False
    called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return not (isinstance(called, ast.Name) and called.id in BUILTINS)


def _warns(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in WARNERS
