"""Import direction: each file of src/plait stands in the table of layers.py and imports what is below it."""

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.house import (
    SOURCE,
    Place,
    imports_of,
    is_standard_library,
    module_parts,
    place_of,
    resolve_relative,
    source_files,
)
from tests.architecture.layers import FILES, MAY_IMPORT, OWNERS, QUIRKS

ALL_FILES = source_files()
VERSION_QUESTION = re.compile(r"\bjax(lib)?\.(__version__|version\b)|\bsys\.version_info\b|\bpackaging\.version\b")


def name_of(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


each_file = pytest.mark.parametrize("file", ALL_FILES, ids=name_of)


def problems_of(file: Path, source: Path = SOURCE) -> list[str]:
    """Imports that go up or sideways, one sentence each."""
    here = place_of(module_parts(file, source), source)
    if here.area == "plait":
        return []
    problems = []
    for found in imports_of(file):
        for target in resolve_relative(found, file, source) if found.level else []:
            reason = why_not(here, place_of(target, source))
            if reason:
                where = f"{file.relative_to(source)}:{found.line}"
                problems.append(f"{where} imports {'.'.join(target) or 'plait'}: {reason}")
    return problems


def why_not(here: Place, there: Place) -> str | None:
    if there.area == "plait":
        return "nothing inside plait imports plait itself; import the file that defines the name"
    if there.area != here.area:
        if there.area in MAY_IMPORT.get(here.area, frozenset()):
            return None
        below = ", ".join(sorted(MAY_IMPORT.get(here.area, ())))
        return f"{here.area} may import {below or 'nothing of plait'}"
    if here.name in ("", there.name):  # a folder's __init__ lists its own files; a subfolder is one entry
        return None
    if there.name == "":
        return "a file does not import its own folder's __init__; import the file that defines the name"
    order = FILES[here.area]
    if there.name in order and here.name in order and order.index(there.name) < order.index(here.name):
        return None
    return f"{there.name} does not stand before {here.name} in FILES[{here.area!r}] of layers.py"


@each_file
def test_every_file_stands_in_the_table(file):
    parts = module_parts(file)
    place = place_of(parts)
    known = place.area == "plait" or place.name in ("", *FILES.get(place.area, ()))
    known = known and place.area in ("plait", *FILES)
    what = f"add {place.name!r} to FILES[{place.area!r}]"
    if parts and place.area not in FILES:
        what = f"add {parts[-1]!r} to the area that it belongs to, or the area to FILES and MAY_IMPORT,"
    assert known, (
        f"src/plait/{name_of(file)} has no place yet: {what} in tests/architecture/layers.py, after what it imports"
    )


@each_file
def test_imports_go_down(file):
    assert problems_of(file) == []


@each_file
def test_inside_the_library_imports_are_relative(file):
    absolute = [
        f"{name_of(file)}:{found.line}"
        for found in imports_of(file)
        if found.level == 0 and found.module.partition(".")[0] == "plait"
    ]
    assert absolute == [], "write `from ..core.objects.variables import Variable`, not `import plait`"


@each_file
def test_outside_libraries_are_imported_only_by_their_owners(file):
    area = place_of(module_parts(file)).area
    strangers = []
    for found in imports_of(file):
        package = found.module.partition(".")[0]
        if found.level or is_standard_library(package) or package == "plait":
            continue
        if area not in OWNERS.get(package, frozenset()):
            owners = ", ".join(sorted(OWNERS.get(package, ()))) or "nobody"
            strangers.append(f"{name_of(file)}:{found.line} imports {package}, which belongs to {owners}")
    assert strangers == [], "see OWNERS in tests/architecture/layers.py"


@each_file
def test_only_compat_asks_for_versions_or_private_jax(file):
    if module_parts(file) == (QUIRKS,):
        return
    tree = ast.parse(file.read_text(encoding="utf-8"))
    asked = [
        f"{name_of(file)}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, (ast.Attribute, ast.Import, ast.ImportFrom))
        and (VERSION_QUESTION.search(ast.unparse(node)) or "jax._src" in ast.unparse(node))
    ]
    assert asked == [], f"JAX-version differences live in src/plait/{QUIRKS}.py"


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("core/graph/axes.py", "from ...nn.linear import Linear", "core/graph may import core/objects, row 0"),
        ("core/objects/clock.py", "from .named import tick", "named does not stand before clock"),
        ("core/objects/clock.py", "from . import named", "named does not stand before clock"),
        ("core/objects/clock.py", "from . import tick", "does not import its own folder's __init__"),
        ("core/objects/clock.py", "def f():\n    from ... import Module", "nothing inside plait imports plait itself"),
        ("paths.py", "from .core import axes", "row 0 may import nothing of plait"),
        ("transforms/jit/function.py", "from ...partitioning.specs import specs", "transforms/jit may import"),
        ("core/objects/named.py", "from .clock import names\nfrom ...paths import show", None),
        ("core/__init__.py", "from .clock import tick", None),
        ("inspect/explorer/page.py", "from .server import serve\nfrom ..tabulate import table", None),
    ],
)
def test_the_check_itself(tmp_path, file, text, reason):
    core = ("__init__.py", "core/__init__.py", "core/graph/axes.py", "core/objects/clock.py", "core/objects/named.py")
    middle = ("paths.py", "nn/linear.py", "partitioning/specs.py")
    upper = ("inspect/explorer/server.py", "inspect/tabulate.py")
    for other in (*core, *middle, *upper, file):
        path = tmp_path / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / file).write_text(text)
    problems = problems_of(tmp_path / file, tmp_path)
    assert len(problems) == (reason is not None)
    assert reason is None or reason in problems[0]
