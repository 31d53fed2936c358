"""Decision 30 lists the names that nobody promised to keep; it is compared with the source.

Found in the source: names that ``util/jax_versions.py`` looks up with ``private``; attributes with an underscore,
unless plait itself defines the name; names of classes and modules that are compared as text; functions that decide by
the text of an error.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.house import source_files

DECISION = Path(__file__).parents[2] / "docs" / "decisions" / "0030-private-names.md"
TREES = {file: ast.parse(file.read_text("utf-8")) for file in source_files()}
GUESTS = re.compile(r"(jax|jaxlib|flax(?!\.(?:bridge|compat)\b)|orbax|tensorflow)(\.\w+){2,}|jax\._src.*")
# What is documented, plait's own, or found in a tuple of places that is handed to `private`.
EXEMPT = {
    "jax.nn.initializers",
    "jax.numpy.load",
    "_asdict",
    "_exit",
    "builtins",
    "types",
    "typing",
    ".",
    "plait",
    "_plait_calls",
}
WORDS_OF_A_TEXT = {"startswith", "endswith", "search", "match", "lower"}


def rows():
    """The file, the name and the guard of each row of the tables."""
    for line in DECISION.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `") and len(cells) == 4:
            names, files = (re.findall(r"`([^`]+)`", cell) for cell in cells[:2])
            yield from ((file, name, cells[3]) for file in files for name in names)


def own_names():
    """Everything that plait defines or assigns."""
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
                yield node.attr if isinstance(node, ast.Attribute) else node.id
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
                yield from (each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant))


def foreign_names(tree, own):
    """What a file uses of other projects without their promise."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield from _private(node.attr, own)
        elif isinstance(node, ast.Call):
            yield from _of_call(node, own)
        elif isinstance(node, ast.Compare) and any(_asks_for_a_name(each) for each in ast.walk(node)):
            yield from (each.value for each in ast.walk(node) if _is_text(each) and each.value not in own)
        elif isinstance(node, ast.FunctionDef) and any(map(_decides_by_text, ast.walk(node))):
            yield f"{node.name}()"
        elif _is_text(node) and id(node) not in texts and GUESTS.fullmatch(node.value):
            yield node.value


def _of_call(node, own):
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name == "private":
        yield node.args[0].value
    elif name in ("getattr", "hasattr", "setattr") and _is_text(node.args[1]):
        yield from _private(node.args[1].value, own)
    elif name == "startswith" and _asks_for_a_name(node.func.value):
        yield from (each.value for each in ast.walk(node) if _is_text(each))
    elif name == "get" and node.args and _asks_for_a_name(node.args[0]):
        yield "type().__name__"


def _private(name, own):
    if name.startswith("_") and not name.startswith("__") and name not in own:
        yield name


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _asks_for_a_name(node):
    return isinstance(node, ast.Attribute) and node.attr in ("__name__", "__module__")


def _decides_by_text(node):
    """Whether it compares or searches ``str(error)``."""
    if isinstance(node, ast.Compare):
        return any(map(_is_error_text, ast.walk(node)))
    is_search = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in WORDS_OF_A_TEXT
    return is_search and any(map(_is_error_text, (*node.args, node.func.value, *map(_inside, node.args))))


def _inside(node):
    """``str(error)`` in ``str(error).partition("\\n")[0]``."""
    while isinstance(node, (ast.Subscript, ast.Attribute, ast.Call)) and not _is_error_text(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _is_error_text(node):
    return isinstance(node, ast.Call) and ast.unparse(node) in ("str(error)", "str(e)", "text_of(error)")


def found_in_source():
    own = {*own_names()}
    for file, tree in TREES.items():
        places = {each.value for call in _calls_of_private(tree) for each in ast.walk(call) if _is_text(each)}
        names = {call.args[0].value for call in _calls_of_private(tree)}
        known = EXEMPT | (places - names)
        yield from ((file.name, name) for name in foreign_names(tree, own) if name not in known)


def _calls_of_private(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "private"]


def test_the_decision_lists_what_the_source_uses():
    listed, found = {(file, name) for file, name, _ in rows()}, {*found_in_source()}
    assert {"not listed": sorted(found - listed), "not used": sorted(listed - found)} == {
        "not listed": [],
        "not used": [],
    }


def test_every_name_has_a_guard_that_exists():
    tests = {file.name for file in DECISION.parents[2].joinpath("tests").rglob("test_*.py")}
    for _, name, guard in rows():
        assert guard, name
        assert {*re.findall(r"`(test_\w+\.py)`", guard)} <= tests, name


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("private('_f', 'jax._src.core', feature='g')", {"_f", "jax._src.core"}),
        ("stage._executable.run()", {"_executable"}),
        ("getattr(trace, '_weakref', None)", {"_weakref"}),
        ("self._own", set()),
        ("type(x).__name__ == 'JVPTrace'", {"JVPTrace"}),
        ("kind.__module__.startswith('flax.nnx')", {"flax.nnx"}),
        ("sys.modules.get('flax.linen.module')", {"flax.linen.module"}),
        ("def f(error):\n    return 'gone' in str(error)", {"f()"}),
        ("def f(error):\n    return GONE.search(str(error).partition('.')[0])", {"f()"}),
        ("def f(error):\n    raise ValueError(found=str(error))", set()),
    ],
)
def test_what_is_private_is_seen(text, found):
    assert {*foreign_names(ast.parse(text), {"_own"})} == found
