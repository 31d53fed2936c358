"""Numbers in words, and equal rows folded into one."""

import re

import pytest
from hypothesis import given, strategies as st

from plait.inspect.tables import Row, folded, in_words


def block(path, kinds, number=1.0):
    return [Row(f"{path}{below}", kind, (), (number,)) for below, kind in kinds.items()]


BLOCK = {"": "Block", ".norm": "Norm", ".up": "Linear"}


def shown(rows):
    return [(row.path, row.kind, *row.numbers) for row in folded(rows)]


def test_equal_elements_of_a_list_become_one_with_the_sums():
    rows = [Row("", "Net", (), (9.0,)), *(row for i in range(3) for row in block(f"blocks[{i}]", BLOCK, i))]
    assert shown(rows) == [
        ("", "Net", 9.0),
        ("blocks[0…2]", "3 × Block", 3.0),
        ("blocks[0…2].norm", "Norm", 3.0),
        ("blocks[0…2].up", "Linear", 3.0),
    ]


def test_elements_that_differ_below_are_kept_apart():
    rows = block("b[0]", BLOCK) + block("b[1]", BLOCK | {".up": "Conv"}) + block("b[2]", BLOCK) + block("b[3]", BLOCK)
    assert [row[:2] for row in shown(rows)[::3]] == [("b[0]", "Block"), ("b[1]", "Block"), ("b[2…3]", "2 × Block")]


def test_lists_in_lists_are_folded_inside_and_outside():
    kinds = {"": "Stage", **{f".b[{i}]{below}": kind for i in range(2) for below, kind in BLOCK.items()}}
    rows = block("s[0]", kinds) + block("s[1]", kinds)
    assert shown(rows)[:3] == [("s[0…1]", "2 × Stage", 2.0), ("s[0…1].b[0…1]", "2 × Block", 4.0), (
        "s[0…1].b[0…1].norm", "Norm", 4.0,
    )]  # fmt: skip


LISTS = st.lists(st.tuples(st.sampled_from("AB"), st.lists(st.sampled_from("CD"), max_size=3)), max_size=6)


def expanded(rows):
    """The paths and kinds that rows stand for, with each number shared out."""
    found = {}
    for row in rows:
        paths = [row.path]
        while any("…" in path for path in paths):
            paths = [
                path.replace(match[0], f"[{i}]", 1)
                for path in paths
                if (match := re.search(r"\[(\d+)…(\d+)\]", path))
                for i in range(int(match[1]), int(match[2]) + 1)
            ]
        for path in paths:
            found[path] = (row.kind.split("× ")[-1], row.numbers[0] / len(paths))
    return found


@given(LISTS)
def test_folding_loses_nothing(layers):
    """Each row is there under its own path, and the numbers add up to the same."""
    rows = []
    for i, (kind, below) in enumerate(layers):
        rows.append(Row(f"x[{i}]", kind, (), (2.0,)))
        rows += [Row(f"x[{i}].y[{j}]", each, (), (2.0,)) for j, each in enumerate(below)]
    assert expanded(folded(rows)) == {row.path: (row.kind, 2.0) for row in rows}
    assert len(folded(rows)) <= len(rows)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (7, "7"), (999, "999"), (999.6, "1 K"), (1234, "1.23 K"), (5e9, "5 G"), (2e22, "2e+04 E")],
)
def test_numbers_in_words(value, text):
    assert in_words(value) == text
