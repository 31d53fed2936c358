"""Speculative decoding gives the tokens of the model: exactly without a temperature, in distribution with one.

(rules GE8, GE9)
"""

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ShapeError
from plait.generation import speculation
from tests.generation.models import LM, PROMPTS, logits_after, model_of

pytestmark = pytest.mark.usefixtures("users_promotion")


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 4])
def test_ge8_greedy_tokens_are_those_without_a_draft(number):
    model, draft = model_of(), model_of(seed=1, blocks=1)
    expected = plait.generate(model, PROMPTS, 12, stop=7)
    out = plait.generate(model, PROMPTS, 12, draft=draft, draft_tokens=number, stop=7)
    assert out.to_list() == expected.to_list()
    own = plait.generate(model, PROMPTS, 12, draft=model, draft_tokens=number)
    assert own.steps == -(-12 // (number + 1)), "all that the model itself proposes is accepted"


@pytest.mark.slow
def test_ge8_with_a_repetition_penalty_each_token_knows_the_proposals_before_it():
    options = {"repetition_penalty": 3.0}
    expected = plait.generate(model_of(), PROMPTS, 12, **options).to_list()
    assert expected != plait.generate(model_of(), PROMPTS, 12).to_list()
    assert plait.generate(model_of(), PROMPTS, 12, draft=model_of(seed=1, blocks=1), **options).to_list() == expected


SETTINGS = {"temperature": 1.4, "top_k": 4}
VOCABULARY, NUMBER = 5, 4000


def of_two_tokens(model, prompt):
    """The probability of each pair of tokens that may follow a prompt, ``(vocabulary, vocabulary)``."""

    def next_token(tokens):
        logits = logits_after(model, tokens).astype(float) / SETTINGS["temperature"]
        logits[np.argsort(-logits)[SETTINGS["top_k"] :]] = -np.inf
        e = np.exp(logits - logits.max())
        return e / e.sum()

    return np.stack([p * next_token([*prompt, token]) for token, p in enumerate(next_token(prompt))])


def statistic(model, draft, seed):
    """Chi-squared of the pairs that follow a prompt, and its degrees of freedom."""
    prompt = [1, 3]
    options = {"draft": draft, "draft_tokens": 2, "rngs": plait.Rngs(seed), **SETTINGS}
    out = np.asarray(plait.generate(model, [prompt] * NUMBER, 2, **options).tokens)
    found, expected = np.zeros((VOCABULARY, VOCABULARY)), NUMBER * of_two_tokens(model, prompt)
    np.add.at(found, (out[:, 0], out[:, 1]), 1)
    possible = expected > 0
    if found[~possible].any():
        return np.inf, 0
    return ((found - expected)[possible] ** 2 / expected[possible]).sum(), possible.sum() - 1


@pytest.mark.slow
def test_ge9_accepted_tokens_have_the_distribution_of_the_model(monkeypatch):
    """Chi-squared at 0.999, by Wilson and Hilferty; a draft that is always believed is found out by the same test."""
    model, draft = LM(2, vocabulary=VOCABULARY), LM(1, vocabulary=VOCABULARY, seed=1)
    for other in (draft, model):
        chi, freedom = statistic(model, other, seed=0)
        assert chi < freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    monkeypatch.setattr(speculation, "_accepted", lambda p, q, keys: jnp.full(p.shape[0], p.shape[1], jnp.int32))
    credulous = type("Credulous", (LM,), {})(2, vocabulary=VOCABULARY)  # another class: nothing compiled serves it
    chi, freedom = statistic(credulous, draft, seed=0)
    assert chi > 10 * freedom


@pytest.mark.slow
def test_a_draft_of_another_vocabulary_is_an_error():
    with pytest.raises(ShapeError, match=r"found +5 logits of the draft, 13 of the model"):
        plait.generate(model_of(), [1, 2], 3, draft=LM(1, vocabulary=5))
    with pytest.raises(ArgumentError, match="draft_tokens=0"):
        plait.generate(model_of(), [1, 2], 3, draft=model_of(), draft_tokens=0)
