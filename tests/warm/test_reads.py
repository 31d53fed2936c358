"""What code reads while it is traced: the names in its bytecode, and their values. (rules W3, W4)"""

import importlib
import sys
import sysconfig
import types

import pytest

from plait.warm.codes import digest
from plait.warm.descriptions import Describer, Unrecordable
from plait.warm.names_in_code import names_in
from plait.warm.reads import _ABSENT, Recording, resolved, token_of, value_of

HELPER = """
RATE = {rate}
def scale(x):
    return x * RATE
"""
STEP = """
import math
import {helper}
LIMIT = 3.0
def direct(x):
    return {helper}.scale(x) + LIMIT
def inside(x):
    from {helper} import scale
    return scale(x) + math.pi
def whole(x):
    return vars({helper})
def assigning(x):
    global LIMIT
    LIMIT = x
    return x
def absent(x):
    return missing(x) if x < 0 else x
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Two modules of a user, one of which imports the other."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("reads_helper", "reads_step")
    (tmp_path / "reads_helper.py").write_text(HELPER.format(rate=2.0))
    (tmp_path / "reads_step.py").write_text(STEP.format(helper="reads_helper"))
    importlib.invalidate_caches()
    yield types.SimpleNamespace(helper=importlib.import_module(names[0]), step=importlib.import_module(names[1]))
    for name in names:
        sys.modules.pop(name, None)


def recorded(f, *args):
    recording = Recording(describer := Describer())
    describer.token(f, "the function")
    with recording:
        f(*args)
    recording.finish()
    return recording


def test_names_are_those_that_the_bytecode_loads(modules):
    names = names_in(modules.step.direct.__code__)
    assert names.chains == (("reads_helper", "scale"), ("LIMIT",))
    inside = names_in(modules.step.inside.__code__)
    assert (inside.chains, inside.imports) == ((("math", "pi"),), ((0, "reads_helper", ("scale",)),))
    assert names_in(modules.step.assigning.__code__).assigned == ("LIMIT",)


# What a function imports and uses → level, module, attributes.
IMPORTS = {
    "import a\n    return a.b.c, a.d": [(0, "a", ("b", "c")), (0, "a", ("d",))],
    "import a.b\n    return a.b.c": [(0, "a", ("b", "c"))],
    "import a.b.c as d\n    return d.e": [(0, "a", ("b", "c", "e"))],
    "from a.b import c, d\n    return c.e, d": [(0, "a.b", ("c", "e")), (0, "a.b", ("d",))],
    "from . import c\n    y = x\n    return c.e(y)": [(1, "", ("c", "e"))],
    "from .a import c\n    def g(): return c.e\n    return g": [(1, "a", ("c", "e"))],
    "import a\n    return vars(a)": [(0, "a", ())],
    "import a\n    b = a\n    return b.c": [(0, "a", ())],
    "import a": [],
}


@pytest.mark.parametrize("text", IMPORTS)
def test_the_uses_of_what_code_imports_are_found(text):
    """W3: a module that is used without an attribute has none."""
    exec(f"def f(x):\n    {text}\n", scope := {})
    assert sorted(names_in(scope["f"].__code__).imports) == IMPORTS[text]


def test_what_is_read_is_recorded_with_its_description(modules):
    """W3: through an attribute of another module, and what a helper reads itself."""
    recording = recorded(modules.step.direct, 1.0)
    assert recording.reasons == []
    expected = [
        ("reads_helper", "RATE"),
        ("reads_helper", "scale"),
        ("reads_step", "LIMIT"),
        ("reads_step", "reads_helper"),
    ]
    assert sorted(recording.reads) == expected
    for read, token in recording.reads.items():
        assert token == token_of(read, Describer())
    assert recording.reads["reads_helper", "RATE"] == Describer().token(2.0, "here")


def test_what_a_function_imports_itself_is_recorded_too(modules):
    """W3."""
    recording = recorded(modules.step.inside, 1.0)
    assert recording.reasons == []
    assert recording.reads["reads_helper", "scale"] == token_of(("reads_helper", "scale"), Describer())
    assert ("reads_helper", "RATE") in recording.reads


def test_what_a_function_imports_from_its_own_package_is_recorded_too(tmp_path, monkeypatch):
    """W3: from the same module, one above, and one beside it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    inner = tmp_path / "reads_package" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner.parent / "beside.py").write_text(HELPER.format(rate=2.0))
    (inner / "__init__.py").write_text("SHIFT = 1.0\n")
    (inner / "step.py").write_text(
        "def step(x):\n    from . import SHIFT\n    from ..beside import scale\n    return scale(x) + SHIFT\n"
    )
    importlib.invalidate_caches()
    recording = recorded(importlib.import_module("reads_package.inner.step").step, 1.0)
    assert recording.reasons == []
    inner, beside = "reads_package.inner", "reads_package.beside"
    assert {(inner, "SHIFT"), (beside, "scale"), (beside, "RATE")} <= set(recording.reads)
    for name in [name for name in sys.modules if name.startswith("reads_package")]:
        monkeypatch.delitem(sys.modules, name)


def test_what_cannot_be_followed_is_a_reason(modules):
    """W4: a module as a whole, a global that is assigned, one that changes."""
    with pytest.raises(Unrecordable, match="the module 'reads_helper' itself is used"):
        list(resolved("reads_step", ("reads_helper",)))
    assert any("the module 'reads_helper' itself" in reason for reason in recorded(modules.step.whole, 1.0).reasons)
    assert any("assigns the global 'LIMIT'" in reason for reason in recorded(modules.step.assigning, 3.0).reasons)

    recording = Recording(describer := Describer())
    describer.token(modules.step.direct, "the function")
    with recording:
        modules.step.direct(1.0)
    modules.helper.RATE = 5.0
    recording.finish()
    assert "the global 'RATE' of reads_helper changed while the function was traced" in recording.reasons


def test_a_name_without_a_value_has_a_token(modules):
    """W3: a value that it gets later is a change."""
    read = ("reads_step", "missing")
    assert value_of(read) is _ABSENT
    before = recorded(modules.step.absent, 1.0).reads[read]
    modules.step.missing = abs
    assert token_of(read, Describer()) != before
    assert value_of(("reads_step", "len")) is len


def test_names_that_a_library_defines_lazily_are_found(monkeypatch):
    module = types.ModuleType("lazy_library")
    module.__file__ = f"{sysconfig.get_path('purelib')}/lazy_library.py"
    module.__getattr__ = {"late": 7}.__getitem__  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_library", module)
    assert value_of(("lazy_library", "late")) == 7


@pytest.mark.parametrize("name", ["time.time", "random.random", "os.environ", "os.getenv", "numpy.random.rand"])
def test_what_varies_is_refused(name):
    """W4."""
    module, _, attribute = name.rpartition(".")
    with pytest.raises(Unrecordable, match=f"{module}.{attribute} gives a different result in each call"):
        list(resolved(module, (attribute,)))


def test_a_digest_tells_parts_apart():
    assert digest("a", ["b", "c"]) != digest("a", ["bc"])
    assert digest("a", ["b"]) != digest("b", ["a"])
