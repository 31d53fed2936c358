"""Words: the article goes by the sound."""

import numpy as np
import pytest

from plait.words import describe_type, with_article

NAMES = {
    "an": ["int", "Embed", "Einsum", "RNNCell", "LSTMCell", "MLP", "RMSNorm", "OptState", "ndarray", "ArrayImpl"],
    "a": ["list", "Linear", "GRUCell", "uint8", "Pytree", "Unit", "Rngs", "BatchStat", "RngCount", "DType"],
}


@pytest.mark.parametrize(("article", "name"), [(article, name) for article in NAMES for name in NAMES[article]])
def test_the_article_goes_by_the_sound(article, name):
    assert with_article(name) == f"{article} {name}"


@pytest.mark.parametrize(
    ("value", "words"),
    [(1, "an int"), ("", "a str"), (None, "None"), (int, "the class int"), (np.ones(1), "an ndarray")],
)
def test_a_value_is_described_by_its_type(value, words):
    assert describe_type(value) == words
