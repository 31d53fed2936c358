"""Which tests reach a line."""

import pytest

pytest.importorskip("coverage")

from tools.mutants.reach import EVERYTHING, reaching

SOURCE = """\
import functools

X = 3

@functools.cache
def outer(x=X):
    y = x
    def inner():
        return y
    return inner

def other(): return (
    1)

class C:
    z = 2
    def method(self):
        return [i for i in self.z]
"""
REACHED = {
    "outer": ["file.py:7", "file.py:8", "file.py:10"],
    "inner": ["file.py:9"],
    "other": ["file.py:13"],
    "method": ["file.py:18"],
    "elsewhere": ["other.py:7"],
    "a process": [EVERYTHING],
}
EVERY = None
# Line → the files of tests that may notice a fault in it.
LINES = dict.fromkeys((3, 5, 6, 12, 13, 15, 16, 17), EVERY)
LINES |= {7: {"outer"}, 8: {"outer", "inner"}, 9: {"inner"}, 10: {"outer"}, 18: {"method"}}


@pytest.mark.parametrize("line", LINES)
def test_who_reaches_a_line(line, tmp_path):
    """Whoever runs the statement there, or a part of it; all tests where it is in no body of a function."""
    file = tmp_path / "file.py"
    file.write_text(SOURCE)
    wanted = LINES[line]
    found = reaching(REACHED, file, file.relative_to(tmp_path), line)
    assert found == (wanted if wanted is None else wanted | {"a process"})
