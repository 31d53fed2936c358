"""Each setting of a draw, against NumPy written from its definition, one row at a time. (rule GE7)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.errors import ArgumentTypeError
from plait.generation.sampling import draw, log_probabilities, resolve_sampling, seen_in

ROWS, VOCABULARY = 64, 17
LOGITS = np.random.default_rng(0).normal(size=(ROWS, VOCABULARY)).astype(np.float32) * 3
SEEN = np.random.default_rng(1).random((ROWS, VOCABULARY)) < 0.3


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def top_k(logits, k):
    keep = np.argsort(-logits)[:k]
    return [logit if i in keep else -np.inf for i, logit in enumerate(logits)]


def top_p(logits, p):
    total, keep, probabilities = 0.0, [], softmax(logits)
    for i in np.argsort(-logits):
        if total >= p:
            break
        keep.append(i)
        total += probabilities[i]
    return [logit if i in keep else -np.inf for i, logit in enumerate(logits)]


def min_p(logits, p):
    probabilities = softmax(logits)
    return [x if q >= p * probabilities.max() else -np.inf for x, q in zip(logits, probabilities, strict=True)]


def penalised(logits, penalty, seen):
    return [(x * penalty if x < 0 else x / penalty) if s else x for x, s in zip(logits, seen, strict=True)]


ORACLES = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
CASES = [
    {},
    {"temperature": 0.5},
    {"temperature": np.linspace(0.1, 4, ROWS)},
    *({"temperature": 1.0, "top_k": k} for k in (1, 3, VOCABULARY, 10 * VOCABULARY)),
    {"temperature": 1.0, "top_k": np.arange(1, ROWS + 1)},
    *({"temperature": 1.0, "top_p": p} for p in (1e-6, 0.3, 0.9, 1.0)),
    *({"temperature": 1.0, "min_p": p} for p in (0.0, 0.1, 1.0)),
    {"repetition_penalty": 1.7},
    {"temperature": 1.3, "repetition_penalty": 0.5},
    {"temperature": 0.8, "top_k": 9, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
]


@pytest.mark.sampled
@pytest.mark.parametrize("settings", CASES, ids=lambda case: ", ".join(case) or "greedy")
def test_ge7_the_distribution_is_the_definition_s(settings):
    found = log_probabilities(jnp.asarray(LOGITS), resolve_sampling(ROWS, **settings), jnp.asarray(SEEN))
    of_rows = [{name: np.broadcast_to(value, (ROWS,))[row] for name, value in settings.items()} for row in range(ROWS)]
    for logits, seen, given, row in zip(LOGITS.astype(float), SEEN, of_rows, np.exp(np.asarray(found)), strict=True):
        if "repetition_penalty" in given:
            logits = np.array(penalised(logits, given["repetition_penalty"], seen))
        logits = np.array(top_k(logits, 1)) if "temperature" not in given else logits / given["temperature"]
        for name, oracle in ORACLES.items():
            logits = np.array(oracle(logits, given[name])) if name in given else logits
        np.testing.assert_allclose(row, softmax(logits), rtol=1e-4, atol=1e-7)
        assert not row[softmax(logits) == 0].any() or settings.get("top_p") == 1.0


@pytest.mark.slow
def test_ge7_tokens_of_equal_probability_stay_together():
    logits = jnp.array([[1.0, 2.0, 1.0, 0.0]])
    for settings in ({"top_k": 2}, {"top_p": 0.6}):
        kept = log_probabilities(logits, resolve_sampling(1, temperature=1.0, **settings), None) > -jnp.inf
        assert kept.tolist() == [[True, True, True, False]]


def test_what_a_sequence_has_does_not_count_what_stands_behind_its_end():
    tokens = jnp.array([[1, 2, 2, 5], [4, 4, 0, 0]])
    assert [np.flatnonzero(row).tolist() for row in seen_in(tokens, jnp.array([3, 2]), 6)] == [[1, 2], [4]]


@pytest.mark.slow
def test_a_draw_is_that_of_its_own_key():
    distributions = jax.nn.log_softmax(jnp.asarray(LOGITS))
    keys = jax.random.split(jax.random.key(0), ROWS)
    together = draw(keys, distributions)
    assert [int(draw(keys[i : i + 1], distributions[i : i + 1])[0]) for i in range(5)] == together[:5].tolist()
    assert draw(None, distributions).tolist() == np.argmax(LOGITS, axis=-1).tolist()


@pytest.mark.parametrize("name", ["num_beams", "temperatur"])
def test_an_unknown_setting_is_an_error_that_names_it(name):
    """GE2."""
    with pytest.raises(ArgumentTypeError, match=rf"at +{name}\n"):
        resolve_sampling(1, **{name: 3})
