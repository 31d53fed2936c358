"""Rows that are not chosen are marked, and none is lost."""

import pytest

from tests.sampling import slow_but


def test_all_rows_stay_and_those_that_are_not_chosen_are_slow():
    rows = slow_but(["b"], {"a": 1, "b": 2, "c": 3})
    assert rows[1] == "b"
    assert [(row.values, [mark.name for mark in row.marks]) for row in (rows[0], rows[2])] == [
        (("a",), ["slow"]),
        (("c",), ["slow"]),
    ]


def test_a_function_may_choose_and_a_tuple_is_several_arguments():
    first, second = slow_but(lambda row: row[0] == 1, [(1, "x"), (2, "y")])
    assert first == (1, "x")
    assert second.values == (2, "y")


def test_some_row_has_to_be_chosen():
    with pytest.raises(AssertionError, match="no row would be left"):
        slow_but(["d"], ["a", "b"])
