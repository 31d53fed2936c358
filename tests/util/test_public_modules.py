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


def test_threads_may_import_a_public_module_while_plait_loads():
    """The others start when plait begins to load, and wait for it."""
    code = """
import importlib, sys, threading
errors, threads = [], []

def load(name):
    try:
        importlib.import_module(name)
    except ImportError as error:
        errors.append(error)

class Watch:
    def find_spec(self, name, *_):
        if name == "plait.core":
            names = "metrics", "graph", "bridge"
            threads.extend(threading.Thread(target=load, args=[f"plait.{each}"]) for each in names)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(0.05)

sys.meta_path.insert(0, Watch())
import plait
for thread in threads:
    thread.join()
print(len(threads), errors)
"""
    assert run_python("-c", code, check=True).stdout == "3 []\n"
