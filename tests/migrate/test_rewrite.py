"""Rewriting one program: imports of Flax NNX become imports of plait, and everything else stays, byte for byte."""

import ast

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("libcst")

from plait.migrate.known import DIFFERENCES, has_name
from plait.migrate.rewrite import UnreadableError, rewrite

CASES = {
    "the usual import": ("from flax import nnx\n", "import plait as nnx\n"),
    "under another name": ("from flax import nnx as n\n", "import plait as n\n"),
    "the older home": ("from flax.experimental import nnx\n", "import plait as nnx\n"),
    "as a module": ("import flax.nnx as nnx\n", "import plait as nnx\n"),
    "among others": ("import os, flax.nnx as nnx, sys # all\n", "import os, plait as nnx, sys # all\n"),
    "members": ("from flax.nnx import Linear, Conv as C\n", "from plait import Linear, Conv as C\n"),
    "members in parentheses": (
        "from flax.nnx import (\n  Linear,  # a\n  Conv,\n)\n",
        "from plait import (\n  Linear,  # a\n  Conv,\n)\n",
    ),
    "a star": ("from flax.nnx import *\n", "from plait import *\n"),
    "a public module": ("from flax.nnx import graph\n", "from plait import graph\n"),
    "members of a public module": ("from flax.nnx.graph import split\n", "from plait.graph import split\n"),
    "a public module by name": ("import flax.nnx.graph as g\n", "import plait.graph as g\n"),
    "public names from a private place": ("from flax.nnx.nn.linear import Linear\n", "from plait import Linear\n"),
    "names of a private place only": (
        "from flax.nnx.module import first_from\n",
        "from plait.module import first_from\n",
    ),
    "a private place itself": ("import flax.nnx.nn.dtypes as d\n", "import plait.nn.dtypes as d\n"),
    "private names stay": ("from flax.nnx.nn.linear import _zork\n", "from flax.nnx.nn.linear import _zork\n"),
    "with linen": (
        "from flax import linen as nn, nnx  # both\nx = 1\n",
        "from flax import linen as nn  # both\nimport plait as nnx\nx = 1\n",
    ),
    "before linen": ("from flax import nnx, linen\n", "from flax import linen\nimport plait as nnx\n"),
    "comments inside": (
        "from flax import (\n    struct,  # s\n    nnx,  # n\n)\n",
        "from flax import (\n    struct,  # s\n)\n# n\nimport plait as nnx\n",
    ),
    "in a function": (
        "def f():\n\tfrom flax import linen, nnx\n\treturn nnx\n",
        "def f():\n\tfrom flax import linen\n\timport plait as nnx\n\treturn nnx\n",
    ),
    "in a try block": (
        "try:\n  from flax import nnx\nexcept ImportError: nnx = None\n",
        "try:\n  import plait as nnx\nexcept ImportError: nnx = None\n",
    ),
    "on one line": (
        "if x: from flax import nnx, struct; y = 2\n",
        "if x: from flax import struct; import plait as nnx; y = 2\n",
    ),
    "after a semicolon": ("x = 1; from flax import nnx\n", "x = 1; import plait as nnx\n"),
    "written out": ("import flax\nflax.nnx.Linear\n", "import plait\nplait.Linear\n"),
    "written out, in parentheses": ("import flax\n(flax . nnx).Linear\n", "import plait\n(plait).Linear\n"),
    "written out, by its module": ("import flax.nnx\nx = flax.nnx.Param(1)\n", "import plait\nx = plait.Param(1)\n"),
    "written out beside linen": (
        "import flax\nflax.nnx.Linear, flax.linen.Dense\n",
        "import flax, plait\nplait.Linear, flax.linen.Dense\n",
    ),
    "written out after an import of linen": (
        "import flax.linen\nflax.nnx.Linear, flax.linen.Dense\n",
        "import flax.linen, plait\nplait.Linear, flax.linen.Dense\n",
    ),
    "flax under another name": (
        "import flax as fx\nfx.nnx.Linear, fx.struct\n",
        "import flax as fx, plait\nplait.Linear, fx.struct\n",
    ),
    "linen alone": ("import flax\nfrom flax import linen as nnx_like\n", None),
    "no import of nnx": ("nnx = 3\nprint(nnx)\n", None),
    "text about it": ('"""from flax import nnx"""\n# import flax.nnx\n', None),
    "another package": ("from mylib.flax import nnx\nfrom .flax import nnx\n", None),
    "an attribute of something else": ("import flax\nself.flax.nnx\n", None),
}


@pytest.mark.parametrize("case", CASES)
def test_imports_are_rewritten(case):
    before, after = CASES[case]
    assert rewrite(before.encode()).source.decode() == (before if after is None else after)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_a_byte_order_mark_and_a_missing_last_line_end_stay(case, line_end, mark):
    before, after = CASES[case]
    before, after = before.removesuffix("\n"), (after or before).removesuffix("\n")
    if "\n" in before:  # a program of one line does not say how its lines end
        before, after = (text.replace("\n", line_end) for text in (before, after))
    assert rewrite(mark + before.encode()).source == mark + after.encode()


def test_another_encoding_stays():
    text = "# -*- coding: latin-1 -*-\nfrom flax import nnx  # é\nx = 'ü'\n"
    assert rewrite(text.encode("latin-1")).source == text.replace("from flax import nnx", "import plait as nnx").encode(
        "latin-1"
    )


LINES = st.sampled_from(
    [
        "x = 1",
        "x  =  (1,\n  2)",
        "# a comment ",
        "y = '''two\nlines \t\n'''",
        "class A: pass",
        "def f(a, *, b = 2): return {a : b}",
        "",
        "   ",
        "z = x if x else \\\n   3",
        "@f\nclass B(A):\n\n    q: int=3",
        "print( nnx.Linear ) # nnx",
        "async def g():\n  await h ( )",
        "x = f'{x!r:>{3}}' 'é'",
        "\x0c",
        "lambda *_: 0;",
    ]
)
IMPORTS = st.sampled_from([before for before, _ in CASES.values()])


@given(st.lists(LINES | IMPORTS, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_what_is_no_import_of_nnx_stays_byte_for_byte(pieces, line_end, ends):
    text = "\n".join(piece.removesuffix("\n") for piece in pieces) + ("\n" if ends else "")
    source = text.replace("\n", line_end).encode()
    after = rewrite(source).source
    ast.parse(after)
    left = iter(after.splitlines(keepends=True))
    for line in source.splitlines(keepends=True):
        if b"flax" not in line and b"nnx" not in line and line.strip() not in (b")", b""):
            assert any(line.rstrip(b"\r\n") == other.rstrip(b"\r\n") for other in left), line
    assert rewrite(after).source == after  # nothing is left to do
    if not any(b"flax" in line for line in source.splitlines()):
        assert after == source


def findings(text):
    return [(found.line, found.text) for found in rewrite(text.encode()).findings]


def test_names_that_plait_lacks_are_found_by_line():
    text = (
        "from flax import nnx\nimport flax\n\nnnx.zork(1)\nflax.nnx.zork.deep\nnnx.initializers.zork\nnnx.Linear.zork\n"
    )
    assert findings(text) == [
        (4, "plait has no nnx.zork"),
        (5, "plait has no nnx.zork"),
        (6, "plait has no nnx.initializers.zork"),
    ]


def test_members_that_plait_lacks_are_found_at_their_import():
    assert findings("from flax.nnx import (Linear,\n zork)\n") == [(1, "plait has no nnx.zork")]
    ((line, text),) = findings("x = 1\nimport flax.nnx.secret as s\n")
    assert (line, text.startswith("plait has no public module nnx.secret")) == (2, True)


def test_differences_are_found_under_every_name():
    for text in (
        "from flax import nnx as n\nn.state(model)",
        "import flax\nflax.nnx.state(model)",
        "import flax.nnx as z\nz.state",
    ):
        ((line, found),) = findings(text)
        assert (line, found.partition(":")[0]) == (2, "nnx.state")


def test_the_differences_are_those_of_public_names():
    assert all(has_name((name,)) and text for name, text in DIFFERENCES.items())


@pytest.mark.parametrize(
    ("call", "is_old"),
    [
        ("nnx.Optimizer(model, tx)", True),
        ("nnx.Optimizer(model, tx=tx)", True),
        ("nnx.Optimizer(model, tx, wrt=nnx.Param)", False),
        ("nnx.Optimizer(model, tx, nnx.Param)", False),
        ("nnx.Optimizer(*args)", False),
    ],
)
def test_old_calls_of_the_optimizer_are_found_with_the_new_call(call, is_old):
    found = findings(f"from flax import nnx\n{call}\n")
    assert ([line for line, _ in found] == [2]) is is_old
    assert all("wrt=nnx.Param" in text for _, text in found)


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("optimizer = nnx.Optimizer(m, tx, wrt=nnx.Param)\noptimizer.update(grads)", [3]),
        ("self.opt = nnx.Optimizer(m, tx, wrt=nnx.Param)\ndef f(self): self.opt.update(grads)", [3]),
        ("optimizer = nnx.Optimizer(m, tx, wrt=nnx.Param)\noptimizer.update(m, grads)", []),
        ("optimizer = nnx.ModelAndOptimizer(m, tx)\noptimizer.update(grads)", []),
        ("table = dict()\ntable.update(grads)", []),
    ],
)
def test_updates_with_gradients_alone_are_found(program, lines):
    found = findings(f"from flax import nnx\n{program}\n")
    assert [line for line, text in found] == lines
    assert all("optimizer.update(model, grads)" in text for _, text in found)


def test_strings_that_name_nnx_are_found():
    ((line, text),) = findings("import importlib\nimportlib.import_module('flax.nnx')\n")
    assert (line, "'flax.nnx'" in text) == (2, True)


def test_examples_in_docstrings_are_found():
    text = 'def f():\n    """Do it.\n\n    >>> from flax import linen, nnx\n    """\n"from flax import nnx is old"\n'
    assert [line for line, _ in findings(text)] == [2, 6]
    assert findings('"""A layer of flax.nnx for us."""\n') == []


def test_a_name_in_the_way_is_found():
    assert [line for line, _ in findings("import flax\nplait = 3\nflax.nnx.Linear\n")] == [2]


def test_expressions_nested_too_deeply_are_refused():
    with pytest.raises(UnreadableError, match="nested too deeply"):
        rewrite(b"from flax import nnx\nx = " + b"+".join([b"1"] * 1500))


@pytest.mark.parametrize(
    ("source", "line"),
    [(b"from flax import nnx\nx = (\n", 3), (b"# coding: zork\n", None), (b"\x00nnx", 1), (b"nnx\rx = 1\r", None)],
)
def test_what_is_no_python_is_refused(source, line):
    with pytest.raises(UnreadableError) as caught:
        rewrite(source)
    assert caught.value.line in (line, line and line - 1)
