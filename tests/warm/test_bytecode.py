"""Instructions of code, as Python's own ``dis`` reads them. (rule W3)"""

import dis
import functools
import importlib
from pathlib import Path
from types import CodeType

import pytest

from plait.warm.bytecode import decoded

MODULES = ["plait.core.graph.plan", "plait.warm.programs", "jax._src.numpy.lax_numpy", "optax._src.combine", "typing"]
MODULES += ["dataclasses", "enum", "asyncio.base_events", "inspect"]
TEXTS = {
    "a class body": """
class C:
    a = 1
    b = [a for _ in range(a)]
    class D(C0): c = a
""",
    "cells": """
def f(a, b):
    c = a
    def g():
        nonlocal c
        c += b
        del c
    return g
""",
    "super": """
class C(B):
    def f(self):
        return super().f(), super().g, super
""",
    "imports": """
def f():
    import a.b as c, d
    from .e import g as h, i
    from j import k
    return c, d, h, i
""",
    "many names": "def f(x):\n" + "".join(f"    x.a{i} = g{i}.b{i}.c({i}, {i}.5)\n" for i in range(400)),
    "many variables": "def f():\n" + "".join(f"    a{i} = b{i} = {i}\n" for i in range(400)) + "    return a399, b1",
    "generators": """
async def f(a):
    async with a as b:
        yield [c async for c in b]
    await a.d
""",
    "exceptions": """
def f():
    try: g()
    except E as e: raise h from e
    finally: del i
""",
    "patterns": """
def f(a):
    match a:
        case C(b=c, d=[1, *e]): return c, e
        case {'k': v, **w}: return v, w
""",
}


def every(code):
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from every(inner)


def as_dis_reads(code):
    for step in dis.get_instructions(code):
        if step.opname not in ("EXTENDED_ARG", "CACHE"):
            is_value = step.opcode in {*dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hasconst}
            is_known = type(step.argval).__name__ != "_Unknown"  # the names of keyword arguments, to Python 3.11
            yield step.opname, step.argval if is_value and is_known else None


def compare(code):
    for each in every(code):
        found = list(decoded(each))
        expected = list(as_dis_reads(each))
        assert [operation for operation, _ in found] == [operation for operation, _ in expected]
        for (operation, value), (_, wanted) in zip(found, expected, strict=True):
            assert wanted is None or (type(value), value) == (type(wanted), wanted), (each, operation)


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_are_those_of_dis(name):
    compare(compile(TEXTS[name], "<text>", "exec"))


@pytest.mark.parametrize("name", MODULES)
def test_so_are_those_of_whole_modules(name):
    module = importlib.import_module(name)
    compare(compile(Path(module.__file__).read_text(), module.__file__, "exec"))


def test_code_that_has_run_has_the_same_instructions():
    """Python specializes instructions of code that runs often."""

    def f(x):
        return [y.real + functools.reduce(max, (y, 2)) for y in x]

    before = list(decoded(f.__code__))
    for _ in range(200):
        f([1, 2, 3])
    assert list(decoded(f.__code__)) == before
    compare(f.__code__)
