"""Rotary position embedding. (RoFormer, arXiv:2104.09864)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError
from tests.nn.twins import some_input, users_promotion


def rotate(x, positions, base, interleaved):
    """The paper's equation 15 in float64: a block-diagonal matrix of rotations."""
    length, heads, features = x.shape[-3:]
    y = np.zeros(x.shape)
    for step in range(length):
        matrix = np.zeros((features, features))
        for pair in range(features // 2):
            angle = float(positions[step]) * base ** (-2 * pair / features)
            i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + features // 2)
            matrix[i, i] = matrix[j, j] = np.cos(angle)
            matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
        for head in range(heads):
            y[..., step, head, :] = np.asarray(x, np.float64)[..., step, head, :] @ matrix.T
    return y


@pytest.mark.slow
@settings(max_examples=10)
@given(
    st.sampled_from([(), (1, 2)]),
    st.sampled_from([1, 4]),
    st.sampled_from([1, 3]),
    st.booleans(),
    st.sampled_from([10_000.0, 100.0]),
    st.booleans(),
)
def test_it_is_the_matrix_of_the_paper(batch, length, pairs, interleaved, base, given_positions):
    x = some_input(*batch, length, 2, 2 * pairs)
    positions = np.arange(length)[::-1] * 3 if given_positions else None
    y = plait.apply_rotary_embedding(x, positions, base=base, interleaved=interleaved)
    expected = rotate(x, np.arange(length) if positions is None else positions, base, interleaved)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [True, False])
def test_products_depend_on_the_distance_only(interleaved):
    q, k = some_input(1, 1, 8), some_input(1, 1, 8, seed=1)

    def product(at, other):
        turned = [
            plait.apply_rotary_embedding(x, jnp.array([p]), interleaved=interleaved) for x, p in ((q, at), (k, other))
        ]
        return (turned[0] * turned[1]).sum()

    np.testing.assert_allclose(product(7, 3), product(104, 100), rtol=1e-4, atol=1e-4)
    assert abs(product(7, 3) - product(7, 4)) > 1e-2


@pytest.mark.slow
def test_positions_may_differ_within_a_batch():
    x, positions = some_input(2, 3, 1, 4), jnp.array([[0, 1, 2], [5, 6, 7]])
    y = plait.apply_rotary_embedding(x, positions)
    for row in range(2):
        np.testing.assert_allclose(y[row], plait.apply_rotary_embedding(x[row], positions[row]), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("int32", "float32")]
)
def test_angles_are_computed_in_float32_and_the_dtype_is_kept(dtype, expected):
    x = jnp.ones((1, 1, 4), dtype)
    far = plait.apply_rotary_embedding(x, jnp.array([1001]))
    assert far.dtype == expected
    exact = rotate(np.ones((1, 1, 4)), [1001], 10_000.0, True)
    np.testing.assert_allclose(far.astype(jnp.float32), exact, atol=1e-2)


def test_symbolic_length_traces_through():
    """Ask 17."""
    batch, length = jax.export.symbolic_shape("batch, length")
    x = jax.ShapeDtypeStruct((batch, length, 2, 4), jnp.float32)
    assert jax.eval_shape(plait.apply_rotary_embedding, x).shape == x.shape


@pytest.mark.parametrize("shape", [(3, 2, 5), (4, 4)])
def test_features_that_are_no_pairs_are_named(shape):
    with pytest.raises(ShapeError, match=rf"found +an input of shape \({shape[0]}, [\s\S]*even number of features"):
        plait.apply_rotary_embedding(jnp.ones(shape))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (1, 1, 3)])
def test_positions_that_do_not_fit_are_named(shape):
    with pytest.raises(ShapeError, match=r"positions of shape .* for an input of shape \(1, 3, 2, 4\)"):
        plait.apply_rotary_embedding(jnp.ones((1, 3, 2, 4)), jnp.ones(shape))


# RoPE -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_rope_is_the_half_split_embedding_of_one_head():
    x, positions = some_input(2, 5, 8), np.arange(5) * 3
    for options in ({}, {"embedding_size": 8, "max_seq_len": 6}):
        for given_positions in (None, positions):
            y = plait.RoPE(100.0, **options)(x, given_positions)
            expected = plait.apply_rotary_embedding(x[..., None, :], given_positions, base=100.0, interleaved=False)
            np.testing.assert_allclose(y, expected[..., 0, :], rtol=1e-6, atol=1e-6)


SIZES = [{"embedding_size": 8}, {"max_seq_len": 6}, {"embedding_size": 7, "max_seq_len": 6}]


@pytest.mark.parametrize("sizes", SIZES)
def test_tables_that_cannot_be_made_are_named(sizes):
    with pytest.raises(ArgumentError, match=f"found +embedding_size={sizes.get('embedding_size')}"):
        plait.RoPE(**sizes)


@pytest.mark.parametrize("shape", [(7, 8), (2, 6)])
def test_an_input_that_does_not_fit_the_tables_is_named(shape):
    model = plait.Dict(rope=plait.RoPE(embedding_size=8, max_seq_len=6))
    with pytest.raises(
        ShapeError, match=rf"at +model.rope \(a RoPE\)\n  found +an input of shape \({shape[0]}, {shape[1]}\)"
    ):
        model.rope(jnp.ones(shape))
    assert model.rope(jnp.ones((7, 8)), jnp.arange(7)).shape == (7, 8)


def attention(**options):
    return plait.MultiHeadAttention(2, 8, rngs=plait.Rngs(0), **options)


with_rope = functools.partial(plait.dot_product_attention_with_rope, rope=plait.RoPE())
half_split = functools.partial(plait.apply_rotary_embedding, interleaved=False)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [None, np.arange(5) * 3, np.arange(5)[None] + [[0], [4]]])
def test_rope_in_attention_is_rotary_fn(positions):
    """L27: ``input_positions`` are those of ``rotary_fn``, or a keyword of ``attention_fn``."""
    x = some_input(2, 5, 8)
    given_positions = {} if positions is None else {"input_positions": positions}
    first = attention(attention_fn=with_rope, decode=False)(x, **given_positions)
    other = attention(rotary_fn=half_split, decode=False)(x, **given_positions)
    np.testing.assert_allclose(first, other, rtol=1e-5, atol=1e-6)


def test_rope_in_attention_cannot_decode_and_rotary_fn_can():
    layer = attention(attention_fn=with_rope, decode=True)
    layer.init_cache((1, 5, 8))
    with pytest.raises(ArgumentError, match=r"do +rotary_fn=functools.partial\(plait.apply_rotary_embedding"):
        layer(jnp.ones((1, 1, 8)))


@pytest.fixture
def flax():
    nnx = pytest.importorskip("flax.nnx")
    if not hasattr(nnx, "RoPE"):
        pytest.skip("this Flax has no RoPE")
    with users_promotion():
        yield nnx


ROPES = [{}, {"theta": 100.0}, {"embedding_size": 8, "max_seq_len": 6}]
INPUTS = [((5, 8), None), ((2, 5, 8), None), ((2, 3, 5, 8), None), ((2, 5, 8), (5,)), ((2, 5, 8), (1, 5))]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:'.value' access:DeprecationWarning")  # Flax's own
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("shape", "positions"), INPUTS)
@pytest.mark.parametrize("options", ROPES)
def test_rope_is_that_of_flax(options, shape, positions, dtype, flax):
    x = jnp.asarray(some_input(*shape), dtype)
    given_positions = () if positions is None else (jnp.arange(5).reshape(positions) * 7,)
    ours, theirs = plait.RoPE(**options), flax.RoPE(**options)
    y, expected = ours(x, *given_positions), theirs(x, *given_positions)
    assert y.dtype == expected.dtype
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    state, other = plait.to_pure_dict(plait.state(ours)), flax.to_pure_dict(flax.state(theirs))
    assert jax.tree.structure(state) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), state, other)


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"mask": np.tril(np.ones((5, 5)))}])
def test_attention_with_rope_is_that_of_flax(options, flax):
    x = some_input(2, 5, 8)
    layers = [
        lib.MultiHeadAttention(
            2, 8, decode=False, rngs=lib.Rngs(0),
            attention_fn=functools.partial(lib.dot_product_attention_with_rope, rope=lib.RoPE()),
        )
        for lib in (plait, flax)
    ]  # fmt: skip
    np.testing.assert_allclose(*(layer(x, **options) for layer in layers), rtol=1e-5, atol=1e-5)


def test_frequencies_and_a_scale_may_be_given_and_the_rest_of_the_features_stays():
    x = np.random.default_rng(0).normal(size=(1, 5, 2, 8)).astype(np.float32)
    frequencies = 100.0 ** (-np.arange(0, 4, 2, dtype=np.float32) / 4)
    found = plait.apply_rotary_embedding(x, frequencies=frequencies, scale=1.5, interleaved=False)
    rotated = plait.apply_rotary_embedding(x[..., :4], base=100.0, interleaved=False)
    np.testing.assert_allclose(found[..., :4], 1.5 * rotated, rtol=1e-5)
    np.testing.assert_array_equal(found[..., 4:], x[..., 4:])
