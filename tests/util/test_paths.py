"""Paths: the order of keys and how a path is printed."""

import functools

import pytest
from hypothesis import given, strategies as st

from plait.errors import GraphError
from plait.util.paths import describe_path, format_path, parse_path, sort_key, sorted_keys

keys = st.integers() | st.text(max_size=3)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("encoder", "layers", 3, "kernel"), "encoder.layers[3].kernel"),
        ((0, "a"), "[0].a"),
        (("a b", "1x"), "['a b']['1x']"),
        (("a", -1), "a[-1]"),
        (("a", (1, 2)), "a[(1, 2)]"),
    ],
)
def test_a_path_prints_as_the_access(path, text):
    """G2."""
    assert format_path(path) == text
    assert describe_path(path) == (text or "the root")


entries = st.recursive(
    st.integers() | st.text(max_size=4) | st.sampled_from(["layers", "lambda", "a]b", "['", "ü", ".x", "0"]),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)


@given(st.lists(entries, max_size=5).map(tuple))
def test_what_was_printed_can_be_read(path):
    assert parse_path(format_path(path)) == path


@given(st.text(alphabet="ab.[]'0\\\"(,", max_size=8))
def test_any_text_is_a_path_or_refused(text):
    try:
        path = parse_path(text)
    except GraphError:
        return
    assert parse_path(format_path(path)) == path


@given(st.lists(keys, unique_by=lambda key: (type(key), key)))
def test_integers_come_before_strings_each_in_their_order(mixed):
    """G2."""
    numbers = sorted(key for key in mixed if isinstance(key, int))
    assert sorted_keys(mixed) == [*numbers, *sorted(key for key in mixed if isinstance(key, str))]
    assert sorted_keys(reversed(mixed)) == sorted_keys(mixed)


def test_numbers_sort_as_numbers_and_kinds_of_keys_apart():
    """G2."""
    assert sorted_keys([10, 9, "10", "9", (1, 2), 1.5]) == [9, 10, "10", "9", 1.5, (1, 2)]

    class Name(str): ...

    assert sort_key(Name("a")) == sort_key("a")
    assert sorted_keys([True, 0, 2]) == [0, 2, True]


@functools.total_ordering
class Word:
    def __init__(self, text):
        self.text = text

    def __lt__(self, other):
        return self.text < other.text


def test_keys_of_another_kind_sort_by_themselves():
    """G2."""
    a, b = Word("a"), Word("b")
    assert sorted_keys([b, 3, a, "x"]) == [3, "x", a, b]


def test_keys_that_do_not_sort_are_an_error():
    """G2; error table: invalid generic key."""
    with pytest.raises(ValueError, match=r"(?s)a box has a key that cannot be ordered.*key <object.*of type object"):
        sorted_keys([1, object(), object()], "box")
