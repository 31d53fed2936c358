"""Attention masks. (rules F5, F6)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ShapeError
from tests.compare import assert_same
from tests.nn.twins import flax_nnx, some_input, users_promotion

lengths = st.sampled_from([1, 4])
batches = st.sampled_from([(), (2,), (1, 3)])
dtypes = st.sampled_from(["float32", "bool", "int32"])
PAIRWISE = {"multiply": jnp.multiply, "greater_equal": jnp.greater_equal, "maximum": jnp.maximum}


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=6)
@given(batches, lengths, lengths, st.sampled_from(sorted(PAIRWISE)), st.integers(0, 2), dtypes)
def test_f5_attention_masks_are_flax_s(batch, n_queries, n_keys, pairwise, extra, dtype):
    nnx = flax_nnx()
    q, k = some_input(*batch, n_queries), some_input(*batch, n_keys, seed=1)
    options = {"pairwise_fn": PAIRWISE[pairwise], "extra_batch_dims": extra, "dtype": jnp.dtype(dtype)}
    with users_promotion():
        theirs = nnx.make_attention_mask(q, k, **options)
    assert_same(plait.make_attention_mask(q, k, **options), theirs)


def test_f5_without_batch_axes_and_with_some_that_broadcast():
    """One row of positions serves a whole batch, without rank promotion by JAX."""
    assert plait.make_attention_mask(jnp.ones(2), jnp.ones(3)).shape == (1, 2, 3)
    assert plait.make_attention_mask(jnp.ones((5, 2)), jnp.ones(3)).shape == (5, 1, 2, 3)
    assert plait.make_attention_mask(jnp.ones((5, 2)), jnp.ones((1, 3))).shape == (5, 1, 2, 3)


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=5)
@given(batches, lengths, st.integers(0, 2), dtypes)
def test_f6_causal_masks_are_flax_s(batch, length, extra, dtype):
    x, options = some_input(*batch, length), {"extra_batch_dims": extra, "dtype": jnp.dtype(dtype)}
    with users_promotion():
        theirs = flax_nnx().make_causal_mask(x, **options)
    assert_same(plait.make_causal_mask(x, **options), theirs)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_f6_a_causal_mask_is_lower_triangular(batch):
    mask = plait.make_causal_mask(np.zeros((*batch, 4)))
    np.testing.assert_array_equal(mask, np.broadcast_to(np.tril(np.ones((4, 4))), (*batch, 1, 4, 4)))


@pytest.mark.oracle
@settings(max_examples=5)
@given(st.lists(st.none() | st.integers(0, 5), max_size=4), dtypes)
def test_f6_combined_masks_are_flax_s(seeds, dtype):
    shapes = [(2, 1, 3, 4), (1, 1, 1, 4), (2, 2, 3, 1)]
    masks = [None if seed is None else (some_input(*shapes[seed % 3], seed=seed) > 0) for seed in seeds]
    mine = plait.combine_masks(*masks, dtype=jnp.dtype(dtype))
    with users_promotion():
        theirs = flax_nnx().combine_masks(*masks, dtype=jnp.dtype(dtype))
    assert (mine is None) == (theirs is None)
    if mine is not None:
        assert_same(mine, theirs)


def test_f6_combining_allows_what_all_masks_allow():
    first, second = jnp.array([[1, 1, 0, 0]]), jnp.array([[1.0, 0.0, 1.0, 0.0]])
    np.testing.assert_array_equal(plait.combine_masks(first, None, second), [[1, 0, 0, 0]])
    assert plait.combine_masks() is None
    assert plait.combine_masks(None, None) is None
    assert plait.combine_masks(None, first).dtype == jnp.float32


@pytest.mark.parametrize(
    ("masks", "shapes"),
    [
        ((jnp.ones((2, 3)), jnp.ones(3)), r"\(2, 3\), \(3,\)"),
        ((jnp.ones((2, 3)), jnp.ones((2, 4))), r"\(2, 3\), \(2, 4\)"),
    ],
)
def test_f6_masks_that_do_not_fit_each_other_are_named(masks, shapes):
    with pytest.raises(ShapeError, match=rf"found +masks of shapes {shapes}\s+expected +masks of equal rank"):
        plait.combine_masks(*masks)


def test_f5_inputs_without_a_length_or_with_other_batches_are_named():
    with pytest.raises(ShapeError, match=r"found +key_input of shape \(\)"):
        plait.make_attention_mask(jnp.ones(3), jnp.ones(()))
    with pytest.raises(ShapeError, match=r"found +x of shape \(\)"):
        plait.make_causal_mask(jnp.ones(()))
    with pytest.raises(ShapeError, match=r"found +query_input of shape \(2, 3\) and key_input of shape \(4, 3\)"):
        plait.make_attention_mask(jnp.ones((2, 3)), jnp.ones((4, 3)))


def test_masks_trace_with_symbolic_sizes():
    """Ask 17: a mask does not need to know the batch or the length."""
    batch, length = jax.export.symbolic_shape("batch, length")
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.float32)

    def masks(x):
        return plait.combine_masks(plait.make_causal_mask(x), plait.make_attention_mask(x > 0, x > 0))

    mask = jax.eval_shape(masks, tokens)
    assert mask.shape == (batch, 1, length, length)
