"""Which tests reach a function."""

import pytest

from mutants.reach import EVERYTHING, reaching

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
    "outer": ["file.py:5"],
    "inner": ["file.py:8"],
    "other": ["file.py:12"],
    "method": ["file.py:17", "file.py:18"],
    "elsewhere": ["other.py:5"],
    "a process": [EVERYTHING],
}
EVERY = None
# Line → the files of tests that may notice a fault in it.
LINES = {
    3: EVERY,
    5: EVERY,
    6: EVERY,
    7: {"outer", "inner"},
    8: {"outer", "inner"},
    9: {"inner"},
    10: {"outer", "inner"},
}
LINES |= {12: EVERY, 13: {"other"}, 15: EVERY, 16: EVERY, 17: EVERY, 18: {"method"}}


@pytest.mark.parametrize("line", LINES)
def test_who_reaches_a_line(line, tmp_path):
    """Whoever runs the function around it, or one within that; all tests where it is in no body of a function."""
    file = tmp_path / "file.py"
    file.write_text(SOURCE)
    wanted = LINES[line]
    found = reaching(REACHED, file, file.relative_to(tmp_path), line)
    assert found == (wanted if wanted is EVERY else wanted | {"a process"})
