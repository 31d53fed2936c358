"""Import direction: each room of src/plait stands in the table of rooms.py and imports what is below it.

One test for each property goes through all files and lists everything that is wrong, by file and line.
"""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from tests.architecture.house import (
    SOURCE,
    imports_of,
    is_standard_library,
    module_parts,
    resolve_relative,
    room_of,
    source_files,
)
from tests.architecture.rooms import MAY_IMPORT, OWNERS, QUIRKS

ALL_FILES = source_files()
VERSION_QUESTION = re.compile(
    r"\bjax(lib)?\.(__version__|version\b)|\bsys\.version_info\b|\bpackaging\.version\b|\bjax\._src\b"
)
VERSION_ATTRIBUTES = ("__version__", "__version_info__", "version", "version_info", "_src")
VERSION_WORD = re.compile(rf"\b({'|'.join(VERSION_ATTRIBUTES)})\b")


def name_of(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


def targets_of(file: Path, source: Path = SOURCE) -> list[tuple[int, tuple[str, ...]]]:
    """Line and module, for each module of plait that a file imports."""
    return [
        (found.line, target)
        for found in imports_of(file)
        if found.level
        for target in resolve_relative(found, file, source)
    ]


def problems_of(file: Path, source: Path = SOURCE) -> list[str]:
    """Imports that go up or sideways, one sentence each."""
    parts = module_parts(file, source)
    if not parts:
        return []
    problems = []
    for line, target in targets_of(file, source):
        reason = why_not(room_of(parts), room_of(target) if target else "plait")
        if reason is None and target == parts[:-1]:
            reason = "a file does not import its own folder's __init__; import the file that defines the name"
        if reason:
            problems.append(f"{file.relative_to(source)}:{line} imports {'.'.join(target) or 'plait'}: {reason}")
    return problems


def why_not(here: str, there: str) -> str | None:
    if there == "plait":
        return "nothing inside plait imports plait itself; import the file that defines the name"
    if there in (here, "beside") or there in MAY_IMPORT.get(here, frozenset({"util"})):
        return None
    return f"{here} may import {', '.join(sorted(MAY_IMPORT.get(here, ()))) or 'nothing of plait'}"


def circle(files: list[Path], source: Path = SOURCE) -> list[str]:
    """The files of a circle of imports, if there is one. An __init__ lists what is below it, and is no part of one."""
    below = {
        module_parts(file, source): {target for _, target in targets_of(file, source)}
        for file in files
        if file.name != "__init__.py"
    }
    try:
        graphlib.TopologicalSorter(below).prepare()
    except graphlib.CycleError as error:
        return [".".join(parts) for parts in error.args[1]]
    return []


def absolute(file: Path) -> list[str]:
    return [
        f"{name_of(file)}:{found.line}"
        for found in imports_of(file)
        if found.level == 0 and found.module.partition(".")[0] == "plait"
    ]


def strangers(file: Path) -> list[str]:
    """Imports of libraries that belong to other rooms."""
    room, problems = room_of(module_parts(file)), []
    for found in imports_of(file):
        package = found.module.partition(".")[0]
        if found.level or is_standard_library(package) or package == "plait":
            continue
        if room not in OWNERS.get(package, frozenset()) and room != "beside":
            owners = ", ".join(sorted(OWNERS.get(package, ()))) or "nobody"
            problems.append(f"{name_of(file)}:{found.line} imports {package}, which belongs to {owners}")
    return problems


def quirks(text: str) -> list[tuple[int, str]]:
    """Questions for a version, and private parts of JAX, with their lines."""
    if not VERSION_WORD.search(text):
        return []
    written = [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        or (isinstance(node, ast.Attribute) and node.attr in VERSION_ATTRIBUTES)
    ]
    return [(line, text) for line, text in written if VERSION_QUESTION.search(text)]


def test_every_room_stands_in_the_table():
    assert {room_of(module_parts(file)) for file in ALL_FILES} - {"beside"} == set(MAY_IMPORT)


def test_the_table_has_no_circle():
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()


def test_no_import_leads_back():
    assert circle(ALL_FILES) == []


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"a": "from .b import x", "b": "from .c import x", "c": ""}, []),
        ({"a": "from .b import x", "b": "def f():\n    from .a import x"}, ["a", "b"]),
        ({"a": "from . import b", "b": "from .a import x"}, ["a", "b"]),
    ],
)
def test_a_circle_is_seen(tmp_path, texts, found):
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert sorted(set(circle(sorted(tmp_path.glob("*.py")), tmp_path))) == found


# What only the call does: it enters and leaves, walks what a function left, checks and writes back.
OF_THE_CALL = {
    *("TracedArguments", "Body", "TracedResult", "Walk", "Builder", "own_variables", "copied_variables"),
    *("check_aliasing", "check_no_captured_objects", "check_traces", "write_back"),
}
CELL = re.compile(r"cells?\b\]?|cell_of\(.*\)")
OUTSIDE_OF_THE_CALL = {
    "jit/compiled.py: write_back": "finishes calls of compiled functions",
    "jit/dispatch.py: writes a cell": "the fast path, whose other writes are in generated code",
    "jit/compiled.py: check_traces": "donates buffers before it knows an outcome",
    "jit/shapes.py: TracedArguments": "the output of eval_shape is objects around shapes",
    "loop_rules.py: writes a cell": "what an iteration replaced in the carry is the variable that it was",
    "rule_calls.py: TracedArguments": "rules get the values of JAX's primal records",
    "rule_calls.py: Builder": "trees of cotangents, which are no calls",
    "rule_calls.py: own_variables": "trees of cotangents",
    "tangent_trees.py: Walk": "trees of tangents, which are no calls",
    "tangent_trees.py: own_variables": "trees of tangents",
}


def crossings(text: str) -> set[str]:
    """What a file does that is the call's: calls of its functions, and writes to cells."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            found |= {name} & OF_THE_CALL
            owner = node.args[0] if node.args and name in ("setattr", "__setattr__") else None
        else:
            target = node.value if isinstance(node, ast.Subscript) else node
            is_write = isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del))
            owner = target.value if is_write and isinstance(target, ast.Attribute) else None
            if owner is not None and target.attr == "raw":
                found.add("writes a cell")
        if owner is not None and CELL.search(ast.unparse(owner).rpartition(".")[2]):
            found.add("writes a cell")
    return found


def test_only_the_call_builds_walks_and_writes():
    """Every check of a crossing stands once, in transforms/call; what is outside of it has a reason."""
    files = [(name_of(file).removeprefix("transforms/"), file) for file in ALL_FILES if "transforms" in file.parts]
    found = {
        f"{name}: {what}"
        for name, file in files
        if not name.startswith(("call/", "flax/compat/"))
        for what in crossings(file.read_text("utf-8"))
    }
    assert found == set(OUTSIDE_OF_THE_CALL)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cell.raw = x", {"writes a cell"}),
        ("variable._cell.raw[...] = x", {"writes a cell"}),
        ("for cell.raw in values: pass", {"writes a cell"}),
        ("a, walk.cells[0].raw = x", {"writes a cell"}),
        ("c.raw += 1", {"writes a cell"}),
        ("cell_of(variable).trace = None", {"writes a cell"}),
        ("object.__setattr__(cell, 'raw', x)", {"writes a cell"}),
        ("del variable._cell.metadata", {"writes a cell"}),
        ("call.body.TracedArguments(structure, values)", {"TracedArguments"}),
        ("read(cell.raw); self.trace = cell.trace; made = {cell: cell.raw}", set()),
    ],
)
def test_what_is_the_calls_is_seen(text, found):
    assert crossings(text) == found


# What puts a file in the place of another, or makes one under a name that nobody has.
RENAMES = re.compile(r"\bos\.(rename|renames|replace)\(|\bmkstemp\(|\bshutil\.move\(|\bfsync\(")


def test_files_are_replaced_in_one_place():
    """Whole writes are one mechanism, which syncs; its scratch folders move back what a killed writer was replacing."""
    found = {file.name for file in ALL_FILES if RENAMES.search(file.read_text("utf-8"))}
    assert found == {"whole_writes.py", "scratch.py"}


def test_imports_go_down():
    assert [problem for file in ALL_FILES for problem in problems_of(file)] == []


def test_inside_the_library_imports_are_relative():
    found = [problem for file in ALL_FILES for problem in absolute(file)]
    assert found == [], "write `from .core.variables.variables import Variable`, not `import plait`"


def test_outside_libraries_are_imported_only_by_their_owners():
    assert [problem for file in ALL_FILES for problem in strangers(file)] == [], "see OWNERS in rooms.py"


def test_only_compat_asks_for_versions_or_private_jax():
    files = [file for file in ALL_FILES if module_parts(file) != QUIRKS]
    found = [f"{name_of(file)}:{line} {text}" for file in files for line, text in quirks(file.read_text("utf-8"))]
    assert found == [], f"JAX-version differences live in src/plait/{'/'.join(QUIRKS)}.py"


@pytest.mark.parametrize(
    "text",
    [
        "jax.__version__",
        "if jaxlib.version.a > (1,): pass",
        "sys.version_info >= (3, 12)",
        "import packaging.version",
        "from jax._src import core",
        "import jax._src.core as core",
        "f(jax._src.core.x)",
    ],
)
def test_a_question_for_a_version_is_seen(text):
    assert [line for line, _ in quirks(f"import a\n{text}")][:1] == [2]


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("core/graph/axes.py", "from ...nn.linear import Linear", "core may import util"),
        ("core/variables/clock.py", "from . import tick", "does not import its own folder's __init__"),
        (
            "core/variables/clock.py",
            "def f():\n    from ... import Module",
            "nothing inside plait imports plait itself",
        ),
        ("util/paths.py", "from ..core import axes", "util may import nothing of plait"),
        ("core/variables/named.py", "from .clock import names\nfrom ...util.paths import show", None),
        ("core/__init__.py", "from .variables.clock import tick", None),
        ("core/variables/named.py", "from ...errors import PlaitError", None),
    ],
)
def test_the_check_itself(tmp_path, file, text, reason):
    others = ("__init__.py", "errors.py", "core/__init__.py", "core/graph/axes.py", "core/variables/clock.py")
    for other in (*others, "util/paths.py", "nn/linear.py", file):
        path = tmp_path / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / file).write_text(text)
    problems = problems_of(tmp_path / file, tmp_path)
    assert len(problems) == (reason is not None)
    assert reason is None or reason in problems[0]
