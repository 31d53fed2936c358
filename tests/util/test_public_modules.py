"""Public modules are one module by both of their paths: imported, below it, and as a program."""

import importlib

import pytest

import plait
from plait._public import LAZY_MODULES, MODULES
from tests.environment import environment
from tests.forked import run_python

HOMES = {**MODULES, **LAZY_MODULES}
# A package that has its rooms elsewhere: files, and what is in them.
HOUSE = {
    "__init__.py": """
import sys
from plait.util.public_modules import AliasFinder
sys.meta_path.insert(0, AliasFinder("house", {"tool": "rooms.tool", "pack": "rooms.pack"}))
""",
    "rooms/__init__.py": "",
    "rooms/words.py": "WORD = 'hello'",
    "rooms/tool.py": "from .words import WORD\nprint(WORD, 'from', __name__)",
    "rooms/pack/__init__.py": "",
    "rooms/pack/part.py": "from ..words import WORD",
}


@pytest.mark.parametrize("path", HOMES)
def test_both_paths_are_one_module(path):
    module = importlib.import_module(f"plait.{path}")
    assert module is importlib.import_module(f"plait.{HOMES[path]}") is getattr(plait, path)


@pytest.fixture
def house(tmp_path):
    for name, text in HOUSE.items():
        (tmp_path / "house" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "house" / name).write_text(text)
    return tmp_path


PROGRAMS = {
    "as a program": (["-m", "house.tool"], "hello from __main__\n"),
    "imported": (
        ["-c", "import house.tool, house.rooms.tool as own; assert house.tool is own"],
        "hello from house.rooms.tool\n",
    ),
    "a module below": (
        ["-c", "import house.pack.part, house.rooms.pack.part as own; assert house.pack.part is own"],
        "",
    ),
    "a module that is not there": (
        ["-c", "try: import house.pack.no\nexcept ModuleNotFoundError as e: print(e.name)"],
        "house.pack.no\n",
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_a_module_that_lives_elsewhere(house, case):
    command, printed = PROGRAMS[case]
    assert run_python(*command, cwd=house, env=environment(), check=True).stdout == printed


def test_import_plait_alone_loads_no_place_of_lazy_modules():
    code = "import sys, plait; print([n for n in sys.modules if n.startswith(('plait.bridge', 'plait.training'))])"
    assert run_python("-c", code, check=True).stdout == "[]\n"
