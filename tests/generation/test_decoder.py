"""Decoders are used again, and nobody can tell. (GE5)"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.generation import decoder as decoders
from tests.generation.models import LM, PROMPTS, greedy, model_of

pytestmark = pytest.mark.usefixtures("users_promotion")


@pytest.fixture
def made(monkeypatch):
    """The sizes of the decoders that are made."""
    sizes, make = [], decoders.decoder_of
    monkeypatch.setattr(decoders, "decoder_of", lambda model, *size: [sizes.append(size), make(model, *size)][1])
    return sizes


@pytest.mark.parametrize("stacked", [False, True], ids=["list", "stack"])
def test_a_second_call_makes_no_decoder(made, stacked):
    model = LM(stacked=stacked)
    first = plait.generate(model, PROMPTS, 5).to_list()
    plait.generate(model, PROMPTS[0], 40)
    for _ in range(2):
        assert plait.generate(model, PROMPTS, 5).to_list() == first
        assert list(plait.generation.stream(model, PROMPTS, 5, steps=5)) == [first]
    plait.generation.beam_search(model, PROMPTS[0], 4, beams=3)
    assert made == [(3, 32), (1, 48)]


def test_new_values_are_those_of_the_model(made):
    model, other = LM(), LM(seed=9)
    plait.generate(model, PROMPTS[0], 4)
    plait.update(model, plait.state(other))
    assert plait.generate(model, PROMPTS[0], 4).to_list() == greedy(other, PROMPTS[0], 4)
    assert len(made) == 1


CHANGES = {
    "a layer": lambda model: setattr(model, "head", plait.Linear(*model.head.kernel.shape, rngs=plait.Rngs(5))),
    "a variable": lambda model: setattr(model.head, "bias", plait.Param(jnp.arange(13.0))),
    "a dtype": lambda model: plait.update(
        model, jax.tree.map(lambda a: a.astype(jnp.bfloat16), plait.state(model, plait.Param))
    ),
    "a mode": lambda model: model.eval(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_gets_a_new_decoder(made, name):
    model = LM(1)
    model.head = plait.Linear(13, 13, rngs=plait.Rngs(1))
    model.__class__ = WithHead
    plait.generate(model, PROMPTS[0], 4)
    CHANGES[name](model)
    changed = plait.generate(model, PROMPTS[0], 4).to_list()
    assert len(made) == 2
    assert changed == plait.generate(plait.clone(model), PROMPTS[0], 4).to_list()


class WithHead(LM):
    def __call__(self, tokens):
        return self.head(super().__call__(tokens))


def test_two_streams_of_one_model_do_not_meet():
    model = model_of()
    expected = [greedy(model, prompt, 6) for prompt in PROMPTS[:2]]
    for _ in range(2):
        one, two = (plait.generation.stream(model, prompt, 6) for prompt in PROMPTS[:2])
        assert [[token for (token,) in found] for found in zip(*zip(one, two, strict=True), strict=True)] == expected


def test_a_stream_that_is_left_and_a_call_that_fails_leave_nothing_behind(made):
    model = model_of()
    expected = plait.generate(model, PROMPTS[0], 6).to_list()
    next(plait.generation.stream(model, PROMPTS[0], 6))
    with pytest.raises(ValueError):
        plait.generate(model, PROMPTS[0], 6, pad="x")
    assert plait.generate(model, PROMPTS[0], 6).to_list() == expected


def test_no_cache_is_kept():
    model = model_of()
    plait.generate(model, PROMPTS, 5)
    sizes = [array.nbytes for array in jax.live_arrays()]
    plait.generate(model, PROMPTS, 5)
    plait.generate(model, PROMPTS, 100)
    assert sum(array.nbytes for array in jax.live_arrays()) < sum(sizes) + 2_000


class Counting(LM):
    """Its caches begin with what is not zero."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.start = plait.static(0)

    def set_view(self, decode=None, batch_size=None, max_length=None, per_sequence=False):
        self.seen = plait.Cache(jnp.full((batch_size,), 3))

    def __call__(self, tokens):
        if hasattr(self, "seen"):
            self.seen.value = self.seen.value + 1
            return super().__call__(tokens) + jnp.where(self.seen.value % 2, 100.0, 0.0)[:, None, None] * jnp.eye(13)[0]
        return super().__call__(tokens)


def test_a_decoder_whose_caches_do_not_begin_at_zero_is_made_anew(made):
    model = Counting(1)
    first = plait.generate(model, [1, 2], 5).to_list()
    assert plait.generate(model, [1, 2], 5).to_list() == first
    assert len(made) == 2


class Scaled(LM):
    """What its view computes depends on a value."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.inverse, self.scale = plait.Variable(jnp.ones(())), None

    def set_view(self, decode=None):
        self.scale = 1 / float(self.inverse[...])

    def __call__(self, tokens):
        return super().__call__(tokens) * (1 / self.inverse[...] if self.scale is None else self.scale)


def test_a_model_with_a_view_of_its_own_gets_a_new_decoder_in_each_call():
    model = Scaled(1)
    first = plait.generate(model, [3, 1, 4], 5).to_list()
    model.inverse[...] = -1.0
    second = plait.generate(model, [3, 1, 4], 5).to_list()
    assert first != second == plait.generate(plait.clone(model), [3, 1, 4], 5).to_list()


@pytest.mark.parametrize("value", [lambda n: np.zeros(n, np.int32), lambda n: {"k": jnp.zeros(n)}, lambda n: None])
def test_a_view_may_make_caches_of_any_kind(value):
    class Own(plait.Module):
        def __init__(self, rngs):
            self.table = plait.Param(jax.random.normal(rngs(), (8, 8)))

        def set_view(self, decode=None, batch_size=None, max_length=None, per_sequence=None):
            self.cache_index = plait.Cache(jnp.zeros(batch_size, jnp.int32))
            self.other = plait.Cache(value(batch_size))

        def __call__(self, tokens):
            return self.table[...][tokens]

    model = Own(plait.Rngs(0))
    assert plait.generate(model, [1, 2], 3).to_list() == plait.generate(model, [1, 2], 3).to_list()


def test_ge6_variables_that_the_model_writes_keep_their_values():
    class Writing(LM):
        def __call__(self, tokens):
            self.count.value = self.count.value + 1
            return super().__call__(tokens) * self.count.value

    model = Writing(1)
    model.count = plait.Variable(jnp.float32(1))
    first = plait.generate(model, PROMPTS[0], 4).to_list()
    assert model.count[...] == 1
    assert plait.generate(model, PROMPTS[0], 4).to_list() == first


def test_it_goes_with_its_model():
    model = LM(1)
    plait.generate(model, PROMPTS[0], 4)
    count = len(decoders._idle)
    del model
    gc.collect()
    assert len(decoders._idle) < count
