"""Descriptions of values and code, by which programs are told apart. (rules W2, W3)"""

import enum

import jax
import numpy as np
import pytest

from plait.transforms.stored.descriptions import Describer, code_token

FIRST = "def f(x, y=1, *, z=2):\n    return x + y * z"
# The same function but for one thing.
OTHERS = {
    "a number": "def f(x, y=1, *, z=2):\n    return x + y * z + 1",
    "a name": "def f(x, b=1, *, z=2):\n    return x + b * z",
    "an operation": "def f(x, y=1, *, z=2):\n    return x - y * z",
    "the kind of an argument": "def f(x, y=1, z=2):\n    return x + y * z",
    "the name of the function": "def g(x, y=1, *, z=2):\n    return x + y * z",
    "a handler": "def f(x, y=1, *, z=2):\n    try:\n        return x + y * z\n    except KeyError:\n        return x",
}
# Functions that return this constant are all told apart.
CONSTANTS = [
    *("1.5", "2.5", "'a'", "'b'", "b'a'", "1000", "1000.0", "True", "None", "0.0", "-0.0", "...", "3j"),
    *("(1000, 2)", "(1000, 3)", "(1000.0, 2)", "((1000,), 2)", "(True, 2)", "('1000', 2)"),
    *("x in {1000, 2}", "x in {1000, 3}", "x in (1000, 2)", "x in {(1000,), 2}"),
    *("lambda: 1000", "lambda: 1001", "lambda: lambda: 1000", "lambda: lambda: 1001", "[i + 1000 for i in x]"),
]


def code_of(text, file="a.py"):
    scope = {}
    exec(compile(text, file, "exec"), scope)
    return next(value.__code__ for value in scope.values() if hasattr(value, "__code__"))


@pytest.mark.parametrize("name", OTHERS)
def test_code_that_differs_has_another_token(name):
    """W3."""
    assert code_token(code_of(OTHERS[name])) != code_token(code_of(FIRST))


def test_code_that_returns_other_constants_has_another_token():
    """W3: also where Python calls them equal, and inside of other constants and functions."""
    tokens = [code_token(code_of(f"def f(x):\n    return {text}")) for text in CONSTANTS]
    same = [(CONSTANTS[i], CONSTANTS[j]) for i in range(len(tokens)) for j in range(i) if tokens[i] == tokens[j]]
    assert same == []


@pytest.mark.parametrize("text", [FIRST, *(f"def f(x):\n    return {text}" for text in CONSTANTS)])
def test_code_elsewhere_has_the_same_token(text):
    """In another file, on other lines, under a comment."""
    assert code_token(code_of("# moved\n\n" + text, "b.py")) == code_token(code_of(text))


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Signal(enum.Enum):
    RED = 1


# All told apart.
VALUES = [
    *(np.float32(1), np.float32(2), np.float32(1).view(np.int32), np.float64(1), np.bool_(True), 1, True),
    *(np.array([1, 2], np.int32), np.array([1, 3], np.int32), np.array([[1, 2]], np.int32), np.array([1, 2], np.int64)),
    *(np.array([1, 2], ">i4"), np.array(["a", None], object), np.array(["b", None], object)),
    *(Color.RED, Color.BLUE, Signal.RED),
]


def test_numbers_and_arrays_that_differ_have_other_tokens():
    """W3: in value, type or shape."""
    tokens = [Describer().token(value, "here") for value in VALUES]
    same = [(VALUES[i], VALUES[j]) for i in range(len(tokens)) for j in range(i) if tokens[i] == tokens[j]]
    assert same == []


def test_an_array_of_objects_is_described_by_what_they_are():
    """W2: their addresses are of this process alone."""
    first, again = (np.array(["".join(["a", "bc"]), 1.5], object) for _ in range(2))
    assert first[0] is not again[0]
    assert Describer().token(first, "here") == Describer().token(again, "here")


def test_functions_of_libraries_are_described_by_name():
    """W3: the versions of libraries are part of the environment, so their code need not be read."""
    function = jax.tree.map
    assert Describer().token(function, "here") == f"named:{function.__module__}:{function.__qualname__}"


@pytest.mark.parametrize("tree", [{"a": 1}, ["a"], (1, {"b": (2, None)}), {"b": 1}, [], {}], ids=repr)
def test_trees_are_described_by_what_holds_the_leaves(tree):
    token = Describer().treedef(jax.tree.structure(tree), "the arguments")
    assert Describer().treedef(jax.tree.structure(jax.tree.map(lambda _: 5, tree)), "elsewhere") == token
    others = [{"a": 1}, ["a"], (1, {"b": (2, None)}), {"b": 1}, [], {}, (1, {"b": [2, None]}), (1, {"b": (2, 3)})]
    tokens = [Describer().treedef(jax.tree.structure(other), "the arguments") for other in others]
    assert tokens.count(token) == 1
