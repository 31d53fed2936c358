"""Numbers in words, and equal rows folded into one."""

import pytest

from plait.inspect.tables import Row, folded, in_words


def block(path, kinds, number=1.0):
    return [Row(f"{path}{below}", kind, (), (number,)) for below, kind in kinds.items()]


BLOCK = {"": "Block", ".norm": "Norm", ".up": "Linear"}


def shown(rows):
    return [(row.path, row.kind, *row.numbers) for row in folded(rows)]


def test_elements_that_differ_below_are_kept_apart():
    rows = block("b[0]", BLOCK) + block("b[1]", BLOCK | {".up": "Conv"}) + block("b[2]", BLOCK) + block("b[3]", BLOCK)
    assert [row[:2] for row in shown(rows)[::3]] == [("b[0]", "Block"), ("b[1]", "Block"), ("b[2…3]", "2 × Block")]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (999.6, "1 K"), (1234, "1.23 K"), (5e9, "5 G"), (2e22, "2e+04 E")],
)
def test_numbers_in_words(value, text):
    assert in_words(value) == text
