"""Descriptions of values and code, by which programs are told apart. (rules W2, W3)"""

import argparse
import dataclasses
import enum
import functools
import logging
import math
import operator
import pathlib
import re
import threading
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.core.objects.statics import HashableMapping
from plait.warm.codes import code_token
from plait.warm.descriptions import Describer, Unrecordable

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
    *(math.nan, -math.nan, complex(0, math.nan), complex(0, -math.nan), 0.0, -0.0),
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


# Values --------------------------------------------------------------------------------------------------------------


def made_by(body, **scope):
    """The function f that this text defines, always anew."""
    exec(compile(body, "made.py", "exec"), scope := {"__name__": "made", **scope})
    return scope["f"]


def of_class(name="C", bases=(), **attributes):
    return type(name, bases, {"__module__": "made", **attributes})


def closure(value, *, name="held"):
    scope = {"__name__": "made"}
    exec(f"def outer({name}):\n    def f(): return {name}\n    return f", scope)
    return scope["outer"](value)


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a, **rest):
        self.a = a
        for name, value in rest.items():
            setattr(self, name, value)


class Numbers(list):
    def __init__(self, *numbers, **attributes):
        super().__init__(numbers)
        vars(self).update(attributes)


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    names: tuple = ()


def plain(x, y=0, *, z=0):
    return x


def other(x):
    return x + 1


def attributed(**attributes):
    f = made_by("def f(x): return x")
    vars(f).update(attributes)
    return f


FORMS = [((2, 2), ("a", "b")), ((4, 1), ("a", "b")), ((2, 2), ("a", "c"))]
MESHES = [jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(shape), names) for shape, names in FORMS]
NAMED, P = jax.sharding.NamedSharding, jax.sharding.PartitionSpec

# For each kind of value what builds some, all told apart.
KINDS = {
    "numbers": lambda: [
        1, 1.0, True, 1 + 0j, 1 + 1j, -0.0, 0.0, "1", b"1", bytearray(b"1"), None, ..., 10**30,
    ],
    "containers": lambda: [
        [1, 2], (1, 2), {1, 2}, frozenset({1, 2}), {1: 2}, {2: 1}, [1, [2]], [[1], 2], [], (), {},
    ],
    "orders": lambda: [
        {"a": 1, "b": 2}, {"b": 2, "a": 1}, types.MappingProxyType({"a": 1, "b": 2}),
    ],
    "mappings": lambda: [
        HashableMapping({"a": 1}), HashableMapping({"a": 2}), HashableMapping({"b": 1}),
    ],
    "namespaces": lambda: [
        types.SimpleNamespace(a=1), types.SimpleNamespace(a=2), types.SimpleNamespace(b=1),
    ],
    "arrays of jax": lambda: [
        jnp.ones(2), jnp.zeros(2), jnp.ones((2, 1)), jnp.ones(2, int), jnp.asarray(1.0), jnp.float32(1),
        jax.random.key(0), jax.random.key(1), jax.random.PRNGKey(0),
    ],
    "dtypes": lambda: [
        np.dtype("int32"), np.dtype("int64"), np.dtype(">i4"), jnp.bfloat16, jnp.float16,
    ],
    "functions": lambda: [
        plain, other, closure(1), closure(2), closure(1, name="kept"), attributed(a=1), attributed(a=2),
        made_by("def f(x, y=1): return x"), made_by("def f(x, y=2): return x"),
        made_by("def f(x, *, y=1): return x"), made_by("def f(x, *, y=2): return x"), np.sum, len, "a".join,
        "b".join, math.sin, [].append, functools.reduce,
    ],
    "partials": lambda: [
        functools.partial(plain, 1), functools.partial(plain, 2), functools.partial(plain, y=1),
        functools.partial(plain, y=2), functools.partial(other, 1), functools.partialmethod(plain, 1),
        functools.partialmethod(plain, 2), functools.partialmethod(plain, y=1),
    ],
    "methods": lambda: [
        Settings(1.0).__init__, Settings(2.0).__init__, Settings(1.0).__eq__, staticmethod(plain),
        staticmethod(other), classmethod(plain), property(plain), property(other), property(plain, other),
        property(plain, None, other), functools.cached_property(plain), functools.cached_property(other),
        functools.lru_cache(closure(1)), functools.lru_cache(closure(2)),
    ],
    "operators": lambda: [
        operator.itemgetter(1), operator.itemgetter(2), operator.itemgetter(1, 2), operator.attrgetter("a"),
        operator.attrgetter("b"), operator.methodcaller("a", 1), operator.methodcaller("a", 2), re.compile("a"),
        re.compile("b"), re.compile("a", re.I),
    ],
    "classes": lambda: [
        of_class(), of_class("D"), of_class(a=1), of_class(a=2), of_class(b=1), of_class(f=plain), of_class(f=other),
        of_class(bases=(dict,)), of_class(bases=(of_class(a=1),)), of_class(bases=(of_class(a=2),)), int, np.ndarray,
        plait.Linear, int | str, typing.Callable[[int], str],
    ],
    "objects": lambda: [
        Settings(), Settings(0.2), Settings(names=("a",)), Slots(1), Slots(2), Slots(1, b=1), Slots(None),
        Numbers(1), Numbers(1, 2), Numbers(1, a=1), Numbers(1, a=2), Numbers(1, _hash=1), Numbers(1, _hash=2),
        dataclasses.field(default=1),
        dataclasses.field(default=2), dataclasses.field(default=1, repr=False), pathlib.Path("a"), pathlib.Path("b"),
        logging.getLogger("a"), logging.getLogger("b"), plait.static(1), plait.static(2),
    ],
    "places": lambda: [
        jax.devices()[0], jax.devices()[1], P("a"), P("b"), P(None, "a"), P(("a", "b")), P("a", None), *MESHES,
        *(NAMED(mesh, P("a")) for mesh in MESHES), NAMED(MESHES[0], P("b")),
        jax.sharding.SingleDeviceSharding(jax.devices()[0]), jax.sharding.SingleDeviceSharding(jax.devices()[1]),
    ],
    "jitted": lambda: [
        plait.jit(plain), plait.jit(other), plait.jit(plain, static_argnums=1),
        plait.jit(plain, static_argnames="z"), plait.jit(plain, donate_argnums=0), plait.jit(plain, inline=True),
        plait.jit(plain, in_shardings=NAMED(MESHES[0], P())), plait.jit(plain, out_shardings=NAMED(MESHES[0], P())),
        plait.jit(plain, graph_updates=False), jax.jit(plain), jax.jit(other), jax.jit(plain, static_argnums=1),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_differ_have_other_tokens_and_equal_ones_the_same(kind):
    """W2, W3: also if they are made anew, as in another process."""
    tokens, again = ([Describer().token(value, "here") for value in KINDS[kind]()] for _ in range(2))
    values = KINDS[kind]()
    assert [value for value, a, b in zip(values, tokens, again, strict=True) if a != b] == []
    same = [(values[i], values[j]) for i in range(len(tokens)) for j in range(i) if tokens[i] == tokens[j]]
    assert same == []


def test_a_structure_that_contains_itself_has_a_token():
    """W3: and one that does so elsewhere has another."""
    first, second, third = [1], [1], [1, [2]]
    first.append(first)
    second.append(first)
    third[1].append(third[1])
    tokens = [Describer().token(each, "here") for each in (first, second, third)]
    assert len({*tokens}) == 3


REFUSED = {
    "here, function 'outer.<locals>.f', its variable 'held'": lambda: closure(threading.Lock()),
    "here, function 'f', a default": lambda: made_by("def f(x, y=held): pass", held=iter([])),
    "here, function 'f', an attribute": lambda: attributed(a=iter([])),
    "here.rate": lambda: Settings(rate=iter([])),
    "here['a']": lambda: {"a": iter([])},
    "the class C, its attribute 'a'": lambda: of_class(a=iter([])),
    "here: a Linear that is not an argument": lambda: plait.Linear(1, 1, rngs=plait.Rngs(0)),
    f"here: {open.__module__}.open, whose result varies": lambda: open,
    "here: the module 'tests.compare' itself": lambda: __import__("tests.compare").compare,
}


@pytest.mark.parametrize("place", REFUSED)
def test_what_cannot_be_described_is_named_by_its_place(place):
    """W4."""
    with pytest.raises(Unrecordable) as error:
        Describer().token(REFUSED[place](), "here")
    assert str(error.value).startswith(place), error.value


@pytest.mark.parametrize("function", [open, input, eval, exec, globals, compile, __import__, breakpoint])
def test_builtins_that_reach_anything_are_refused(function):
    """W4."""
    with pytest.raises(Unrecordable, match=f"here: .*{function.__qualname__}, whose result varies"):
        Describer().token(function, "here")


def test_functions_of_libraries_are_described_by_name(monkeypatch):
    """W3: the versions of libraries are part of the environment, so their code need not be read."""
    function = jax.tree.map
    assert Describer().token(function, "here") == f"named:{function.__module__}:{function.__qualname__}"
    cached = functools.lru_cache(made_by("def f(x): return x", __name__="argparse"))
    monkeypatch.setattr(argparse, "f", cached, raising=False)
    assert Describer().token(cached, "here") == "named:argparse:f"


@pytest.mark.parametrize("tree", [{"a": 1}, ["a"], (1, {"b": (2, None)}), {"b": 1}, [], {}], ids=repr)
def test_trees_are_described_by_what_holds_the_leaves(tree):
    token = Describer().treedef(jax.tree.structure(tree), "the arguments")
    assert Describer().treedef(jax.tree.structure(jax.tree.map(lambda _: 5, tree)), "elsewhere") == token
    others = [{"a": 1}, ["a"], (1, {"b": (2, None)}), {"b": 1}, [], {}, (1, {"b": [2, None]}), (1, {"b": (2, 3)})]
    tokens = [Describer().treedef(jax.tree.structure(other), "the arguments") for other in others]
    assert tokens.count(token) == 1
