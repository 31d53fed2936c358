"""Path patterns: which paths a text describes."""

import pickle

import pytest

from plait.errors import ArgumentError
from plait.util.path_patterns import PathPattern

PATH = ("encoder", "layers", 3, "attention", "kernel")

MATCHING = [
    "encoder.layers[3].attention.kernel",
    "encoder.layers.3.attention.kernel",
    "encoder.layers[*].attention.kernel",
    "encoder.layers[2:5].attention.kernel",
    "encoder.layers[:4].*.kernel",
    "encoder.layers[1::2].*.kernel",
    "enc*.layer?[3].attention.k*",
    "**",
    "**.kernel",
    "encoder.**.kernel",
    "encoder.**.attention.**",
    "encoder['layers'][3].attention.kernel",
    "**.encoder.**.**",
]
OTHER = [
    "",
    "encoder",
    "*",
    "encoder.layers[*]",
    "encoder.layers[4].attention.kernel",
    "encoder.layers[4:].attention.kernel",
    "encoder.layers[:3].attention.kernel",
    "encoder.layers[::2].attention.kernel",
    "**.bias",
    "layers.**",
    "**.attention",
    "encoder['lay*'][3].attention.kernel",
    "encoder.layers[3].attention.kernel.*",
]


@pytest.mark.parametrize("text", MATCHING)
def test_a_pattern_matches(text):
    assert PathPattern(text)(PATH, None)


@pytest.mark.parametrize("text", OTHER)
def test_a_pattern_does_not_match(text):
    assert not PathPattern(text)(PATH, None)


def test_the_empty_pattern_is_the_root():
    assert PathPattern("")((), None)
    assert PathPattern("**")((), None)
    assert not PathPattern("*")((), None)


def test_a_range_is_of_indices_alone():
    assert not PathPattern("[0:9]")(("a",), None)


def test_quotes_take_wildcards_as_they_are():
    assert PathPattern("['a*']")(("a*",), None)
    assert not PathPattern("['a*']")(("ab",), None)


@pytest.mark.parametrize("text", [".a", "a..b", "a[", "a]", "a[]", "a."])
def test_a_text_that_is_no_pattern_is_refused(text):
    with pytest.raises(ArgumentError, match="not a path pattern"):
        PathPattern(text)


def test_patterns_compare_by_text_and_can_be_pickled():
    pattern = PathPattern("a[*]")
    assert pickle.loads(pickle.dumps(pattern)) == pattern
    assert hash(PathPattern("a[*]")) == hash(pattern)
    assert PathPattern("a") != pattern
