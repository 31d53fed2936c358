"""What a row of the table of errors is, and how it is run.

A row is a mistake in a user's program and the error that answers it, which is known by its class and by the place that
it names. Thirty rows are flagships: they have the whole message, and a program that follows its advice. Where the
advice holds Python, that program takes it from the message, word for word; so it runs, or the test fails.
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
from plait.util.jax_versions import whole_tracebacks

SOURCE = Path(plait.__file__).parent


@dataclasses.dataclass(frozen=True)
class Row:
    """One mistake.

    Attributes:
        wrong: the code that raises, or warns.
        error: the class of the error or warning.
        says: regular expressions that the message matches: the path, and what was found there.
        setup: code before both; ``model``, ``x``, … are there already (``program``).
        text: the whole message of a flagship; any white space is as good as any other.
        fix: a piece of the advice that is Python, word for word; the cure is ``fix`` alone if none is given.
        cure: the program that follows the advice. ``$`` stands for ``fix``.
    """

    wrong: str
    error: type[BaseException]
    says: tuple[str, ...] | str = ()
    setup: str = ""
    text: str = ""
    fix: str = ""
    cure: str = "$"


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


def caught(row: Row) -> BaseException:
    """What the mistake of a row raises, or warns."""
    names = program()
    with warnings.catch_warnings():
        warnings.simplefilter("error" if issubclass(row.error, Warning) else "ignore")
        run(row.setup, names)
        try:
            with whole_tracebacks():
                run(row.wrong, names)
        except BaseException as error:
            return error
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


_CODE = re.compile(r"(?<![\w.])(?:lambda [\w, ]+: |[\w.\[\]]+ = )?[A-Za-z_][\w.]*(?:\(|=(?=[^\s=]))")


def code_in(text: str) -> Iterator[str]:
    """The pieces of a text that look like Python: what stands in backticks, calls, and keyword arguments."""
    yield from re.findall(r"`([^`]+)`", text)
    text = re.sub(r"`[^`]+`", "", text)
    place = 0
    while found := _CODE.search(text, place):
        place = _end(text, found.end())
        yield text[found.start() : place]


def _end(text: str, start: int) -> int:
    """Where a piece ends that began before ``start``: where its bracket closes, or the value of its keyword ends."""
    keyword = text[start - 1] == "="
    depth = 0 if keyword else 1
    for place in range(start, len(text)):
        if keyword and depth == 0 and text[place] in " ,;:)":
            return place
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if not keyword and depth == 0:
            return place + 1
    return len(text)


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

    @property
    def place(self) -> str:
        return Path(self.file).relative_to(SOURCE).as_posix()

    def __str__(self) -> str:
        return f"{self.place}:{self.first} ({self.function})"


# Python's own protocols: an attribute or a key that is not there, what a subclass defines, an error passed on inside.
BUILTINS = {"AttributeError", "KeyError", "TypeError", "ValueError", "NotImplementedError", "StopIteration"}
BUILTINS |= {"KeyboardInterrupt"}
# They do not leave their package.
INTERNAL = {"CancelledError", "Damaged", "Interrupted", "NoForm", "Unrecordable", "_NotExcusedError"}
WARNERS = {"warn", "warn_nothing_selected", "deprecated"}


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
    return not (isinstance(called, ast.Name) and called.id in BUILTINS | INTERNAL)


def _warns(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")) in WARNERS
