"""Words: the article goes by the sound, and texts use the words of the field."""

import functools
import re
import traceback
from pathlib import Path

import numpy as np
import pytest

import plait
from plait.ground.words import describe_type, first_few, in_bytes, text_of, with_article

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


# What only this library would say → what the field says. A reader of Flax, PyTorch or JAX should meet no other words.
HOUSE_WORDS = {
    r"(is|are|not|how a model is|be) cut (?!off)": "sharded",
    r"averages of parameters": "EMA, exponential moving averages",
    r"[Hh]eld are\b": "say what is stored",
    r"\bsees to\b": "handles",
    r"cannot be followed is an error": "raises an error",
    r"\b(is|are) welcome\b": "works, is accepted",
    r"stays? whole on every device|lies? whole": "is replicated",
    r"\b(plan of )?the house\b": "the architecture",
    r"\bgo(es)? past the hooks\b": "bypasses",
    r"\bcompiles? anew\b": "recompiles",
    r"slip of the pen": "typo",
    r"``None`` takes": "``None`` means",
    r"\bfree (size|batch|length)s?\b": "dynamic sizes",
    r"whole or not at all": "atomically",
    r"half-written": "incomplete",
    r"no whole checkpoint|newest whole": "intact",
    r"[Ff]oreign (name|checkpoint|array|value|weight)s?\b": "names, checkpoints of other libraries",
    r"steps? of decoding": "decoding step",
    r"(first|starting) carr(y|ies)\b": "initial carry",
    r"\b[Gg]o(es|ing)? on from\b": "resume from",
    r"kept up by": "maintained by",
    r"(has|have) not got": "lacks, does not support",
    r"the (module|one) that runs\b": "the running module",
    r"what became of": "the outcome for",
    r"give another (path|one|folder)": "choose another",
    r"operations that \w+ has built in": "built-in operations",
    r"calls? back into Python": "Python callbacks",
    r"\bTake in (values|predictions|a batch)": "add",
    r'"""Refuse (a|an|any|to|what)\b': "raise for, raise if, reject",
    r"\b(fast|general) way\b": "fast path, general path",
    r"[Nn]ot offered by plait": "not supported by plait",
    r"\bholds? many keys": "has an array of keys",
    r"[Ww]hat empties it|[Ww]ho fills it": "what resets it, what updates it",
    r"\bwhat stands (at|in|there|behind)\b": "what is there, the value at",
    r"\b(made|built|created|written) anew\b": "created again, new",
    r"\banother (type|shape|structure|dtype|length|rank|size) than\b": "a different type from",
    r"\bkept apart\b": "held out",
    r"stands? (there twice|behind|in the place)": "is repeated, comes after, replaces",
    r"in the place of": "in place of, instead of",
    r"\b(one|an) axis (of \w+ )?more\b": "one more axis, an extra axis",
    r"\b(shapes?|values?) will do\b": "are enough",
    r"\b[Ii]nside of\b": "inside",
    r"as often as it runs": "once per iteration",
    r"where (a|no|the) mesh is known": "if there is a mesh",
    r"\b[Ww]hole cop(y|ies)\b": "full copy",
    r"(left|stays?|passed) as (it is|they are)": "is unchanged",
    r"(cannot|to|goes?) go on (with|without)": "continue",
    r"a transform of JAX's own": "one of JAX's own transforms",
    r"\bso many (roundings|bytes)\b": "a fixed number of",
    r"(?<![Tt]here )\b(is|are) no (nodes?|modules?|mappings?|pytrees?|filters?|tuples?|graphdefs?)\b": "is not a node",
}
PROSE = sorted(
    file
    for folder, pattern in (("docs", "*.md"), ("src", "*.py"), ("examples", "*.py"), ("benchmarks", "*.*"))
    for file in (Path(__file__).resolve().parents[2] / folder).rglob(pattern)
    if file.suffix in (".md", ".py")
)


@functools.cache
def content_of(file):
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("words", HOUSE_WORDS)
def test_texts_use_the_words_of_the_field(words):
    found = {f"{file.name}: {match[0]}" for file in PROSE for match in re.finditer(words, content_of(file))}
    assert found == set(), f"write: {HOUSE_WORDS[words]}"


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_bytes_in_words(value, text):
    assert in_bytes(value) == text
