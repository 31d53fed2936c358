"""Decoding step by step with ``MultiHeadAttention``. (rule L28, ask 20)"""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ShapeError
from tests.nn.test_attention import Attending
from tests.nn.twins import TOLERANCE, compare, flax_nnx, pure, some_input, twins, users_promotion
from tests.sampling import slow_but

LENGTH = 4
whole = plait.jit(lambda layer, x, **call: layer(x, decode=False, **call), static_argnames="is_causal")
step = plait.jit(lambda layer, x, **call: layer(x, decode=True, **call), static_argnames="is_causal")


def decoded(layer, x, **call):
    """All steps of an input, one after the other, and the cache as it was before."""
    layer.init_cache(x.shape)
    return jnp.concatenate([step(layer, x[..., t : t + 1, :], **call) for t in range(x.shape[-2])], axis=-2)


@pytest.mark.sampled
@pytest.mark.parametrize("is_causal", slow_but([True], [False, True]))
@pytest.mark.parametrize(
    ("batch", "options"),
    [
        ((2,), {}),
        ((), {"num_kv_heads": 1}),
        ((2, 1), {"normalize_qk": True, "qkv_features": 8}),
        ((2,), {"rotary_fn": plait.apply_rotary_embedding}),
    ],
)
def test_l28_steps_are_full_causal_attention(batch, options, is_causal):
    """Whether or not a step is told that it is causal: Flax 0.12 then looks at the first position only."""
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0), **options)
    x = some_input(*batch, LENGTH, 4)
    full = whole(layer, x, is_causal=True)
    compare(decoded(layer, x, is_causal=is_causal), full, TOLERANCE, "steps")
    assert int(layer.cache_index[...]) == LENGTH


@pytest.mark.oracle
@pytest.mark.parametrize("kv_heads", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_l28_steps_and_cache_are_flax_s(kv_heads):
    nnx, x = flax_nnx(), some_input(2, LENGTH, 4)
    ours, theirs = twins("MultiHeadAttention", 2, 4, num_kv_heads=kv_heads, decode=True)
    ours.init_cache(x.shape)
    theirs.init_cache(x.shape)
    for t in range(2):
        with users_promotion():
            expected = theirs(x[:, t : t + 1])
        compare(ours(x[:, t : t + 1]), expected, TOLERANCE, f"step {t}")
    mine, other = pure(plait.state(ours, plait.Cache)), pure(nnx.state(theirs, nnx.Cache), nnx)
    assert sorted(mine) == sorted(other) == ["cache_index", "cached_key", "cached_value"]
    for path in mine:
        assert mine[path].dtype == other[path].dtype
        compare(mine[path], other[path], TOLERANCE, path)


@pytest.mark.parametrize("mask_shape", [pytest.param((LENGTH,), marks=pytest.mark.slow), (2, 1, 1, LENGTH)])
def test_l28_a_mask_of_the_call_holds_too(mask_shape):
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    mask = jnp.broadcast_to(jnp.array([1, 0, 1, 1]), mask_shape)
    full = whole(layer, x, mask=plait.combine_masks(plait.make_causal_mask(x[..., 0]), mask.reshape(-1, 1, 1, 4)))
    compare(decoded(layer, x, mask=mask), full, TOLERANCE, "masked steps")


@pytest.mark.slow
def test_l28_a_cache_of_another_dtype():
    layer, x = plait.MultiHeadAttention(2, 4, decode=True, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    layer.init_cache(x.shape, jnp.bfloat16)
    y = layer(x[:, :1])
    assert layer.cached_key[...].dtype == layer.cached_value[...].dtype == jnp.bfloat16
    np.testing.assert_allclose(y, layer(x[:, :1], decode=False), rtol=2e-2, atol=2e-2)


def test_l28_a_new_cache_starts_over():
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    first = decoded(layer, x)
    np.testing.assert_array_equal(decoded(layer, x), first)


@pytest.mark.slow
def test_l28_the_cache_is_state():
    """A scan over the positions carries it, and a copy of the state takes it back to where it was."""
    layer, x = plait.MultiHeadAttention(2, 4, decode=True, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    full = layer(x, decode=False, is_causal=True)
    layer.init_cache(x.shape)
    empty = plait.state(layer, plait.Cache)

    @plait.jit
    @plait.scan(in_axes=(plait.Carry, 1), out_axes=(plait.Carry, 1))
    def steps(layer, x):
        return layer, layer(x[:, None])[:, 0]

    compare(steps(layer, x)[1], full, TOLERANCE, "scan")
    plait.update(layer, empty)
    assert int(layer.cache_index[...]) == 0
    compare(layer(x[:, :1]), full[:, :1], TOLERANCE, "again")


@pytest.mark.slow
def test_l6_a_view_decodes_with_a_cache_of_its_own():
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, 3, LENGTH, 4)
    model = Attending(layer)
    decoder = plait.view(model, decode=True, batch_size=(2, 3), max_length=LENGTH)
    copied = decoder.encoder["layers"][3]
    assert copied.query.kernel is layer.query.kernel
    assert (copied.cached_key.shape, layer.cached_key, layer.decode) == ((2, 3, LENGTH, 2, 2), None, None)
    compare(decoder(x[..., :1, :]), layer(x[..., :1, :], decode=False), TOLERANCE, "first step")
    again = plait.view(decoder, decode=False)
    assert again(x).shape == x.shape
    assert plait.view(decoder, max_length=9, batch_size=1).encoder["layers"][3].cached_key.shape == (1, 9, 2, 2)


def test_l6_a_view_makes_the_cache_in_the_layer_s_dtype():
    layer = plait.MultiHeadAttention(2, 4, dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    assert plait.view(layer, batch_size=1, max_length=2).cached_key[...].dtype == jnp.bfloat16


# Errors. Each names the path of the layer.


def refuses(error, expected, layer, x):
    with pytest.raises(error, match=expected) as caught:
        Attending(layer)(x, decode=True)
    assert re.search(r"at +encoder\.layers\[3\] \(a MultiHeadAttention\)", str(caught.value)), str(caught.value)


def test_decoding_without_a_cache_names_init_cache():
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0))
    refuses(ArgumentError, r"before init_cache[\s\S]*layer\.init_cache\(\(\*batch, length", layer, some_input(2, 1, 4))


@pytest.mark.parametrize("shape", [(2, 5, 4), (3, 1, 4), (1, 4)])
def test_a_step_of_another_shape_names_both_shapes(shape):
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0))
    layer.init_cache((2, LENGTH, 4))
    keys = re.escape(str((*shape[:-1], 2, 2)))
    expected = (
        rf"found +keys of shape {keys} for a cache of shape \(2, 4, 2, 2\)\s+expected +keys of shape \(2, 1, 2, 2\)"
    )
    refuses(ShapeError, expected, layer, jnp.ones(shape))


def test_a_step_past_the_end_is_refused_and_changes_nothing():
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    decoded(layer, x)
    before = pure(plait.state(layer, plait.Cache))
    expected = r"past the end of its cache[\s\S]*position 5 with a cache of 4 positions\s+expected +at most 4 positions"
    refuses(ArgumentError, expected, layer, x[:, :1])
    for path, value in pure(plait.state(layer, plait.Cache)).items():
        np.testing.assert_array_equal(value, before[path])


def test_a_step_past_the_end_overwrites_the_last_position_inside_jit():
    """As the layer documents: the index is not known there."""
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    decoded(layer, x)
    before = layer.cached_key[...]
    step(layer, x[:, :1] + 1)
    changed = np.abs(layer.cached_key[...] - before).max((0, 2, 3)) > 1e-3
    np.testing.assert_array_equal(changed, [False, False, False, True])


def test_a_step_that_fails_leaves_the_cache_as_it_was():
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0))
    layer.init_cache((2, LENGTH, 4))
    with pytest.raises(ShapeError, match=r"these masks cannot be combined\s+at +encoder\.layers\[3\]"):
        Attending(layer)(some_input(2, 1, 4), decode=True, mask=jnp.ones((2, 1, 1, 3)))
    assert int(layer.cache_index[...]) == 0
    np.testing.assert_array_equal(layer.cached_key[...], np.zeros((2, 4, 2, 2)))


def test_a_cache_needs_a_length_and_a_view_both_sizes():
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0))
    with pytest.raises(ShapeError, match=r"found +input_shape=\(4,\)\s+expected +\(\.\.\., length, in_features\)"):
        layer.init_cache((4,))
    with pytest.raises(ArgumentError, match="batch_size=2 and max_length=None"):
        plait.view(layer, batch_size=2)


PARTS = [(3, 1), *(pytest.param(parts, marks=pytest.mark.slow) for parts in [(1, 2, 1), (4,), (2, 2)])]


@pytest.mark.slow
@pytest.mark.parametrize("lengths", PARTS, ids=str)
@pytest.mark.parametrize("per_sequence", slow_but([True], [False, True]))
@pytest.mark.parametrize(
    ("batch", "options"),
    [((2,), {}), ((2, 3), {"num_kv_heads": 1}), ((2,), {"rotary_fn": plait.apply_rotary_embedding})],
)
def test_l28_a_prompt_of_any_length_is_taken_at_once(lengths, per_sequence, batch, options):
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0), **options)
    x = some_input(*batch, LENGTH, 4)
    full = layer(x, decode=False, is_causal=True)
    layer.init_cache(x.shape, per_sequence=per_sequence)
    assert layer.cache_index.shape == (batch if per_sequence else ())
    parts, start = [], 0
    for length in lengths:
        parts.append(step(layer, x[..., start : start + length, :]))
        start += length
    compare(jnp.concatenate(parts, axis=-2), full, TOLERANCE, "parts")
    assert set(np.ravel(layer.cache_index[...]).tolist()) == {LENGTH}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"rotary_fn": plait.apply_rotary_embedding}])
def test_l28_sequences_of_a_batch_go_on_from_positions_of_their_own(options):
    """Prompts of other lengths, padded at the end: each goes on as if it were alone."""
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0), **options)
    x, lengths = some_input(3, 6, 4), jnp.array([1, 4, 3])
    layer.init_cache(x.shape, per_sequence=True)
    prompt = layer(x[:, :4], decode=True)
    layer.cache_index[...] = lengths
    steps = []
    for _ in range(2):
        at = layer.cache_index[...]
        steps.append(step(layer, jnp.take_along_axis(x, at[:, None, None], axis=1)))
    assert layer.cache_index.tolist() == [3, 6, 5]
    for row, length in enumerate(lengths.tolist()):
        alone = layer(x[row : row + 1, : length + 2], decode=False, is_causal=True)[0]
        compare(prompt[row, :length], alone[:length], TOLERANCE, f"prompt {row}")
        compare(jnp.concatenate([part[row] for part in steps]), alone[length:], TOLERANCE, f"steps {row}")


@pytest.mark.slow
def test_l28_a_mask_over_a_prompt():
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, LENGTH, 4)
    mask = jnp.array([1, 0, 1, 1])
    layer.init_cache(x.shape)
    both = plait.combine_masks(plait.make_causal_mask(x[..., 0]), jnp.broadcast_to(mask, (2, 1, 1, 4)))
    compare(layer(x[:, :3], mask=mask, decode=True), layer(x, mask=both, decode=False)[:, :3], TOLERANCE, "masked")


@pytest.mark.slow
def test_l28_a_prompt_that_is_too_long():
    layer, x = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0)), some_input(2, 5, 4)
    layer.init_cache((2, LENGTH, 4), per_sequence=True)
    with pytest.raises(ShapeError, match=r"up to 4 positions"):
        layer(x, decode=True)
    layer(x[:, :3], decode=True)
    with pytest.raises(ArgumentError, match=r"position 5 with a cache of 4"):
        layer(x[:, :2], decode=True)
    assert layer.cache_index.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("batch_size", "max_length"), [("batch", 3), (1, "x"), (1.5, 3), (-1, 3), ((2, "a"), 3), (2, (3,))]
)
def test_sizes_of_a_cache_that_are_none(batch_size, max_length):
    """L28: the error names the layer and both values, and nothing has changed."""
    layer = plait.MultiHeadAttention(1, 2, decode=False, rngs=plait.Rngs(0))
    with pytest.raises(ArgumentTypeError, match=r"found +batch_size=.* and max_length=.*\n +expected"):
        layer.set_view(decode=True, batch_size=batch_size, max_length=max_length)
    assert layer.decode is False
    assert not hasattr(layer, "cached_key") or layer.cached_key is None
