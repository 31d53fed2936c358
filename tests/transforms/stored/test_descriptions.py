"""What a program depends on, as text that can be compared. (rules W2, W3)"""

import pytest

from plait.transforms.stored.descriptions import code_token


def code_of(source):
    scope = {}
    exec(source, scope)
    return scope["f"].__code__


FUNCTION = "def f(x, y=1):\n    g = lambda z: z * 2.0\n    return g(x) + 3.0 if x in {1, 'a'} else (x, (y, 4))\n"
EDITS = {
    "a constant": ("3.0", "3.5"),
    "the type of a constant": ("3.0", "3"),
    "a constant of an inner function": ("2.0", "2.5"),
    "a constant in a set": ("{1, 'a'}", "{1, 'b'}"),
    "a constant in a nested tuple": ("(y, 4)", "(y, 5)"),
    "an operation": ("g(x) + 3", "g(x) - 3"),
    "the name of an argument": ("x", "u"),
    "the name of a variable": ("g", "h"),
    "a keyword argument": ("x, y=1", "x, *, y=1"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_w3_an_edited_function_has_another_token(edit):
    before, after = EDITS[edit]
    assert code_token(code_of(FUNCTION)) != code_token(code_of(FUNCTION.replace(before, after)))


def test_w3_where_a_function_stands_and_its_comments_play_no_part():
    moved = "\n\n\n" + FUNCTION.replace("    return", "    # why\n\n    return")
    assert code_token(code_of(FUNCTION)) == code_token(code_of(moved))
