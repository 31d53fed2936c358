"""Generated tokens are those of the full forward pass, whatever the batch, the padding and the way they come.

(rules GE1 to GE6)
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ShapeError
from plait.generation import continuation
from tests.generation.models import LM, PROMPTS, greedy, logits_after, model_of

pytestmark = pytest.mark.usefixtures("users_promotion")
COUNT = 10
SAMPLED = {"temperature": 0.9, "top_k": 8, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2}
each_model = pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])


@each_model
def test_ge1_greedy_tokens_are_those_of_the_full_forward_pass(stacked):
    model = model_of(stacked=stacked)
    out = plait.generate(model, PROMPTS, COUNT)
    assert out.to_list() == [greedy(model, prompt, COUNT) for prompt in PROMPTS]
    assert (out.tokens.shape, out.tokens.dtype, out.lengths.tolist(), out.steps) == (
        (3, COUNT),
        "int32",
        [COUNT] * 3,
        COUNT,
    )


@pytest.mark.slow
@each_model
def test_ge2_a_prompt_in_a_batch_gets_the_tokens_that_it_gets_alone(stacked):
    model, keys = model_of(stacked=stacked), jax.random.split(jax.random.key(3), len(PROMPTS))
    together = plait.generate(model, PROMPTS, COUNT, rngs=keys, **SAMPLED).to_list()
    alone = [plait.generate(model, p, COUNT, rngs=keys[i : i + 1], **SAMPLED).to_list() for i, p in enumerate(PROMPTS)]
    assert together == alone
    assert together != plait.generate(model, PROMPTS, COUNT).to_list()


def test_ge2_padding_on_either_side_is_none():
    longest = max(map(len, PROMPTS))
    for side in ("left", "right", "both"):
        before = {"left": lambda n: longest - n, "right": lambda _: 0, "both": lambda n: (longest - n) // 2}[side]
        tokens, mask = np.full((3, longest), 12), np.zeros((3, longest), bool)
        for row, prompt in enumerate(PROMPTS):
            there = slice(before(len(prompt)), before(len(prompt)) + len(prompt))
            tokens[row, there], mask[row, there] = prompt, True
        out = plait.generate(model_of(), jnp.asarray(tokens), COUNT, mask=jnp.asarray(mask))
        assert out.to_list() == plait.generate(model_of(), PROMPTS, COUNT).to_list(), side


@pytest.mark.slow
def test_ge3_a_stop_token_ends_its_sequence_alone():
    free = plait.generate(model_of(), PROMPTS, COUNT).to_list()
    stop = [free[0][3], free[2][5]]
    out = plait.generate(model_of(), PROMPTS, COUNT, stop=stop, pad=-1)
    expected = []
    for row in free:
        ends = [i + 1 for i, token in enumerate(row) if token in stop]
        expected.append(row[: min(ends, default=COUNT)])
    assert out.to_list() == expected
    assert all((row[n:] == -1).all() for row, n in zip(np.asarray(out.tokens), out.lengths, strict=True))
    alone = plait.generate(model_of(), PROMPTS[0], COUNT, stop=stop[0])
    assert (alone.to_list(), int(alone.lengths), alone.steps) == (expected[0], len(expected[0]), len(expected[0]))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_ge4_a_stream_gives_the_same_tokens_as_they_come(steps):
    options = {"rngs": jax.random.key(0), "temperature": 1.0, "stop": 5}
    whole = plait.generate(model_of(), PROMPTS, COUNT, **options).to_list()
    parts = list(plait.generation.stream(model_of(), PROMPTS, COUNT, steps=steps, **options))
    assert [[token for part in parts for token in part[row]] for row in range(3)] == whole
    assert max(len(new) for part in parts for new in part) == steps
    assert [new for (new,) in plait.generation.stream(model_of(), PROMPTS[0], 4)] == greedy(model_of(), PROMPTS[0], 4)


@pytest.mark.slow
def test_ge5_one_program_for_each_bucket_of_lengths():
    traces = []

    class Counting(LM):
        def __call__(self, tokens):
            traces.append(tokens.shape)
            return super().__call__(tokens)

    model = Counting(1)
    plait.generate(model, [1], 3, temperature=0.5, rngs=plait.Rngs(0))
    compiled = len(traces)
    assert set(traces) == {(1, 32), (1, 1)}, traces
    for prompt, count in (([1, 2, 3], 4), ([4] * 9, 20)):
        plait.generate(model, prompt, count, temperature=0.5 + count / 10, rngs=plait.Rngs(0))
        list(plait.generation.stream(model, prompt, 2, temperature=0.7, rngs=plait.Rngs(0)))
    assert len(traces) == compiled, traces
    plait.generate(model, [1] * 30, 10, temperature=0.5, rngs=plait.Rngs(0))
    assert traces[compiled:] == [(1, 32), (1, 1)], traces


@pytest.mark.slow
def test_ge6_the_model_stays_as_it_is():
    model = LM(1, seed=4)
    model.train()
    before, arrays = plait.graphdef(model), jax.tree.leaves(plait.state(model))
    out = plait.generate(model, PROMPTS, 3)
    assert out.to_list() == plait.generate(model, PROMPTS, 3).to_list(), "dropout is off"
    assert not plait.diff(before, plait.graphdef(model))
    assert all(a is b for a, b in zip(arrays, jax.tree.leaves(plait.state(model)), strict=True))


@pytest.mark.slow
def test_tokens_are_drawn_from_the_distribution_of_the_model():
    """Of a thousand equal prompts with keys of their own, the first tokens: chi-squared at 0.999."""
    model, number = model_of(), 2000
    out = plait.generate(model, [PROMPTS[0]] * number, 1, temperature=0.7, rngs=plait.Rngs(0))
    logits = logits_after(model, PROMPTS[0]).astype(float) / 0.7
    expected = number * np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    found = np.bincount(np.asarray(out.tokens)[:, 0], minlength=len(expected))
    assert ((found - expected) ** 2 / expected).sum() < 32.9  # 12 degrees of freedom


@pytest.mark.slow
def test_settings_may_differ_between_prompts():
    key = jax.random.key(1)
    mixed = plait.generate(model_of(), [PROMPTS[0]] * 2, COUNT, temperature=[0.0, 5.0], rngs=key).to_list()
    assert mixed[0] == greedy(model_of(), PROMPTS[0], COUNT) != mixed[1]


@pytest.mark.parametrize("rngs", [plait.Rngs(0), plait.Rngs(sample=0), plait.Rngs(0).sample, jax.random.PRNGKey(2)])
def test_a_source_of_randomness_of_any_kind(rngs):
    first, second = (plait.generate(model_of(), PROMPTS, 5, temperature=2.0, rngs=rngs).to_list() for _ in range(2))
    assert (first == second) is isinstance(rngs, jax.Array), "streams move on, keys do not"


class _Positions(plait.Module):
    """Learned positions, of which there are eight, with an index of its own."""

    def __init__(self) -> None:
        rngs = plait.Rngs(0)
        self.lm, self.positions = LM(1), plait.Embed(8, 13, rngs=rngs)
        self.cache_index = None

    def set_view(self, decode=None, batch_size=None, max_length=None, per_sequence=False) -> None:
        if decode:
            self.cache_index = plait.Cache(jnp.zeros((batch_size,), jnp.int32))

    def __call__(self, tokens):
        start = 0 if self.cache_index is None else self.cache_index.value[:, None]
        places = start + jnp.arange(tokens.shape[1])[None]
        return self.lm(tokens) + self.positions(places)


@pytest.mark.slow
def test_a_model_with_an_index_of_its_own_and_few_positions():
    model = _Positions()
    expected = list(PROMPTS[0])
    for _ in range(5):
        logits = plait.view(model, deterministic=True)(jnp.asarray([expected]))
        expected.append(int(jnp.argmax(logits[0, -1])))
    assert plait.generate(model, [PROMPTS[0], [1]], 5, max_length=8).to_list()[0] == expected[3:]
    with pytest.raises(ArgumentError, match=r"found +9 positions"):
        plait.generate(model, PROMPTS[0], 6, max_length=8)


class _Pairs(plait.Module):
    def __init__(self) -> None:
        self.lm = LM(1)

    def __call__(self, tokens):
        return self.lm(tokens), None


class _Shared(plait.Module):
    def __init__(self) -> None:
        self.cache_index = plait.Cache(jnp.int32(0))

    def __call__(self, tokens):
        return tokens


KEYS = jax.random.split(jax.random.key(0), 2)
REFUSED = [
    ("no decoding view", plait.Linear(2, 2, rngs=plait.Rngs(0)), {}, ArgumentError, "no decoding view"),
    ("one position for all", _Shared(), {}, ArgumentError, r"at +cache_index"),
    ("no logits", _Pairs(), {}, ShapeError, "returns logits"),
    ("empty", None, {"prompt": [[1], []]}, ArgumentError, "prompt 1"),
    ("empty, alone", None, {"prompt": []}, ArgumentError, "prompt 0"),
    ("floats", None, {"prompt": np.ones(3)}, ArgumentTypeError, "float"),
    ("too many axes", None, {"prompt": np.ones((1, 1, 3), int)}, ShapeError, r"shape \(1, 3\)"),
    ("a mask of another shape", None, {"mask": np.ones(2, bool)}, ShapeError, "mask"),
    ("a hole", None, {"mask": np.array([True, False, True])}, ArgumentError, "padding between"),
    ("nothing but padding", None, {"mask": np.zeros(3, bool)}, ArgumentError, "empty"),
    ("no tokens", None, {"max_new_tokens": 0}, ArgumentError, "max_new_tokens=0"),
    ("no key", None, {"temperature": 1.0}, ArgumentError, "rngs=None"),
    ("an array that is no key", None, {"temperature": 1.0, "rngs": jnp.ones(2)}, ArgumentError, "a raw uint32 key"),
    ("no key, but a number", None, {"temperature": 1.0, "rngs": 3}, ArgumentTypeError, "int"),
    ("too many keys", None, {"temperature": 1.0, "rngs": KEYS}, ShapeError, "1 prompts"),
    ("a temperature below 0", None, {"temperature": -1.0}, ArgumentError, "temperature=-1.0"),
    ("no token at all", None, {"top_k": 0}, ArgumentError, "top_k=0"),
    ("no mass", None, {"top_p": 0.0}, ArgumentError, "top_p=0.0"),
    ("more than the most likely", None, {"min_p": 1.5}, ArgumentError, "min_p=1.5"),
    ("a penalty of 0", None, {"repetition_penalty": 0.0}, ArgumentError, "repetition_penalty=0.0"),
    ("settings of other prompts", None, {"temperature": [1.0, 2.0]}, ShapeError, "temperature"),
]


@pytest.mark.parametrize(
    ("model", "options", "error", "match"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_cannot_be_generated_is_an_error(model, options, error, match):
    given = {"prompt": [1, 2, 3], "max_new_tokens": 2, **options}
    with pytest.raises(error, match=match):
        plait.generate(model_of() if model is None else model, **given)


def test_a_traced_prompt_is_an_error():
    with pytest.raises(ArgumentTypeError, match="outside of jit"):
        jax.jit(lambda prompt: plait.generate(model_of(), prompt, 2).tokens)(jnp.ones(3, jnp.int32))


def test_parameters_are_no_outputs_of_the_loop():
    """The loop carries them, and gives none of them back: else each call would copy the model."""
    with continuation._running(model_of(), PROMPTS, 4) as run:
        before = jax.tree.leaves(plait.state(run.decoder, plait.Param))
        run.advance(2)
        assert all(a is b for a, b in zip(before, jax.tree.leaves(plait.state(run.decoder, plait.Param)), strict=True))
