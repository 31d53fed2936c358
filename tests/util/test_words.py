"""Words: the article goes by the sound."""

import traceback

import numpy as np
import pytest

import plait
from plait.util.words import describe_type, first_few, in_bytes, text_of, with_article

NAMES = {
    "an": ["int", "Embed", "Einsum", "RNNCell", "LSTMCell", "MLP", "RMSNorm", "OptState", "ndarray", "ArrayImpl"],
    "a": ["list", "Linear", "GRUCell", "uint8", "Pytree", "Unit", "Rngs", "BatchStat", "RngCount", "DType"],
}


@pytest.mark.parametrize(("article", "name"), [(article, name) for article in NAMES for name in NAMES[article]])
def test_the_article_goes_by_the_sound(article, name):
    assert with_article(name) == f"{article} {name}"


class NoTextError(ValueError):
    def __str__(self):
        raise RuntimeError("an error of the error")


def test_an_error_without_a_text_has_the_text_of_a_traceback():
    assert text_of(ValueError("one")) == "one"
    assert text_of(NoTextError()) in "".join(traceback.format_exception_only(NoTextError()))


@pytest.mark.parametrize("transform", [plait.jit, plait.vmap, plait.grad])
def test_an_error_without_a_text_passes_through_a_transform(transform):
    """What its ``__str__`` raises used to take its place."""

    @transform
    def fails(x):
        raise NoTextError

    with pytest.raises(NoTextError):
        fails(np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "an int"), ("", "a str"), (None, "None"), (int, "the class int"), (np.ones(1), "an ndarray")],
)
def test_a_value_is_described_by_its_type(value, words):
    assert describe_type(value) == words


@pytest.mark.parametrize(
    ("count", "words"), [(0, ""), (1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (6, "a, b, c and 3 more")]
)
@pytest.mark.parametrize("collect", [list, tuple, dict.fromkeys])
def test_a_long_list_ends_with_how_many_more_there_are(count, words, collect):
    assert first_few(collect("abcdef"[:count]), 3) == words


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_bytes_in_words(value, text):
    assert in_bytes(value) == text
