"""Beam search, against a slow search over the full forward pass, and against all continuations. (rule GE10)"""

import itertools

import numpy as np
import pytest

import plait
from plait.errors import ArgumentError
from tests.generation.models import LM, PROMPTS, logits_after, model_of

pytestmark = pytest.mark.usefixtures("users_promotion")


def log_softmax(x):
    x = x.astype(float) - x.max()
    return x - np.log(np.exp(x).sum())


def slow_search(model, prompt, count, beams, penalty, stop):
    """The best beams as ``(score, tokens)``."""
    live = [(0.0, [])]
    for _ in range(count):
        found = []
        for total, tokens in live:
            if tokens and tokens[-1] in stop:
                found.append((total, tokens))
                continue
            chances = log_softmax(logits_after(model, prompt + tokens))
            found += [(total + chance, [*tokens, token]) for token, chance in enumerate(chances)]
        live = sorted(found, key=lambda each: -each[0] / len(each[1]) ** penalty)[:beams]
    return [(total / len(tokens) ** penalty, tokens) for total, tokens in live]


@pytest.mark.slow
@pytest.mark.parametrize(("stacked", "penalty"), [(False, 0.0), (True, 0.7)])
def test_ge10_the_beams_are_those_of_a_slow_search(stacked, penalty):
    model, stop = model_of(stacked=stacked), [3, 7]
    options = {"beams": 3, "length_penalty": penalty, "stop": stop}
    found = plait.generation.beam_search(model, PROMPTS, 6, pad=-1, **options)
    for row, prompt in enumerate(PROMPTS):
        expected = slow_search(model, prompt, 6, 3, penalty, stop)
        lengths = np.asarray(found.lengths[row])
        assert [each[:n].tolist() for each, n in zip(np.asarray(found.tokens[row]), lengths, strict=True)] == [
            tokens for _, tokens in expected
        ]
        np.testing.assert_allclose(found.scores[row], [score for score, _ in expected], rtol=1e-4)
        assert all((each[n:] == -1).all() for each, n in zip(np.asarray(found.tokens[row]), lengths, strict=True))


@pytest.mark.slow
def test_ge10_enough_beams_find_the_best_of_all():
    model, prompt = LM(1, vocabulary=4), [1, 2]
    chances = {(): 0.0}
    for tokens in itertools.chain.from_iterable(itertools.product(range(4), repeat=n) for n in (1, 2, 3)):
        before = list(tokens[:-1])
        chances[tokens] = chances[tokens[:-1]] + log_softmax(logits_after(model, prompt + before))[tokens[-1]]
    best = sorted(itertools.product(range(4), repeat=3), key=lambda tokens: -chances[tokens])
    found = plait.generation.beam_search(model, prompt, 3, beams=16)
    assert found.tokens.tolist() == [list(tokens) for tokens in best[:16]]


@pytest.mark.slow
def test_one_beam_is_greedy():
    found = plait.generation.beam_search(model_of(), PROMPTS, 6, beams=1)
    assert found.tokens[:, 0].tolist() == plait.generate(model_of(), PROMPTS, 6).tokens.tolist()


def test_no_beam_is_an_error():
    with pytest.raises(ArgumentError, match="beams=0"):
        plait.generation.beam_search(model_of(), [1], 2, beams=0)
