"""Dot-product attention as a function. (rule F4)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError, StreamError
from plait.nn.attention import dot_product_attention_weights
from tests.nn.twins import HALF_TOLERANCE, TOLERANCE, Encoder, compare, flax_nnx, some_input, users_promotion
from tests.sampling import slow_but


def reference(query, key, value, bias=None, mask=None, is_causal=False):
    """Equation 1 of 1706.03762 in float64, one head at a time; masked logits are the smallest number."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    group = query.shape[-2] // key.shape[-2]
    shape = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(np.asarray(mask) != 0, shape)
    added = np.zeros(shape) if bias is None else np.broadcast_to(np.asarray(bias, np.float64), shape)
    if is_causal:
        allowed = allowed & np.tri(*shape[-2:], dtype=bool)
    y = np.zeros((*query.shape[:-1], value.shape[-1]))
    for head in range(query.shape[-2]):
        q, k, v = query[..., head, :], key[..., head // group, :], value[..., head // group, :]
        logits = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]) + added[..., head, :, :]
        logits = np.where(allowed[..., head, :, :], logits, np.finfo(np.float32).min)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        y[..., head, :] = weights / weights.sum(-1, keepdims=True) @ v
    return y


def operands(batch=(2,), n_queries=3, n_keys=4, kv_heads=2, group=1, depth=4, value_depth=None, dtype=np.float32):
    make = functools.partial(some_input, dtype=dtype)
    query = make(*batch, n_queries, kv_heads * group, depth)
    key = make(*batch, n_keys, kv_heads, depth, seed=1)
    return query, key, make(*batch, n_keys, kv_heads, value_depth or depth, seed=2)


shapes = st.fixed_dictionaries(
    {
        "batch": st.lists(st.integers(1, 2), max_size=2).map(tuple),
        "n_queries": st.integers(1, 3),
        "n_keys": st.integers(1, 4),
        "kv_heads": st.integers(1, 2),
        "group": st.integers(1, 2),
        "depth": st.integers(1, 4),
    }
)


def added_to(query, key, kind, which):
    """A bias or mask for the weights of these operands, of full shape or with axes to broadcast."""
    full = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    kinds = {
        "full": full,
        "no heads": (*full[:-3], 1, *full[-2:]),
        "keys": (*(1,) * (len(full) - 1), full[-1]),
        "rank 2": full[-2:],
    }
    if kind not in kinds:
        return None
    x = some_input(*kinds[kind], seed=3)
    return x if which == "bias" else x > 0


kinds = st.sampled_from([None, "full", "no heads", "keys", "rank 2"])
OWN = {"precision": "highest"}  # which jax.nn.dot_product_attention does not take


@pytest.mark.slow
@settings(max_examples=8)
@given(shapes, kinds, kinds, st.booleans())
def test_f4_both_ways_are_the_paper_s_equation(sizes, bias, mask, is_causal):
    query, key, value = operands(**sizes)
    bias, mask = added_to(query, key, bias, "bias"), added_to(query, key, mask, "mask")
    expected = reference(query, key, value, bias, mask, is_causal)

    @jax.jit
    def both_ways(*arrays):
        attend = functools.partial(plait.dot_product_attention, *arrays, is_causal=is_causal)
        return attend(), attend(**OWN)

    for y in both_ways(query, key, value, bias, mask):
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def run(function, arrays, options):
    """The result, and the gradient of a weighted sum of it, compiled together."""

    def loss(arrays):
        y = function(*arrays, **options)
        return (jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape) * y.astype(jnp.float32)).sum(), y

    (_, y), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays)
    return y, grads


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=6)
@given(
    shapes,
    kinds,
    kinds,
    st.booleans(),
    st.sampled_from([{}, {"broadcast_dropout": True}, {"broadcast_dropout": False}]),
    st.sampled_from(["float32", "bfloat16"]),
)
def test_f4_it_is_flax_s_forward_and_backward(sizes, bias, mask, is_causal, dropout, dtype):
    nnx, arrays = flax_nnx(), operands(**sizes, dtype=dtype)
    options = {
        "bias": added_to(*arrays[:2], bias, "bias"),
        "mask": None if mask == "rank 2" else added_to(*arrays[:2], mask, "mask"),
        "is_causal": is_causal,
    }
    if dropout:
        options |= {**dropout, "dropout_rate": 0.5, "dropout_rng": jax.random.key(7)}
    y, grads = run(plait.dot_product_attention, arrays, options)
    with users_promotion():
        expected, expected_grads = run(nnx.dot_product_attention, arrays, options)
    tolerance = TOLERANCE if dtype == "float32" else {"rtol": 5e-2, "atol": 5e-2}  # Flax drops bfloat16 weights
    assert y.dtype == expected.dtype
    compare(y, expected, tolerance, "output")
    for name, mine, theirs in zip(("query", "key", "value"), grads, expected_grads, strict=True):
        compare(mine, theirs, tolerance, f"gradient of {name}")


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    slow_but([{}, {"is_causal": True}], [{}, {"is_causal": True}, {"group": 2}, {"broadcast_dropout": False}]),
)
def test_f4_the_weights_are_flax_s(options):
    attention = pytest.importorskip("flax.nnx.nn.attention")
    options = dict(options)
    query, key, _ = operands(group=options.pop("group", 1))
    if "broadcast_dropout" in options:
        options |= {"dropout_rate": 0.25, "dropout_rng": jax.random.key(0)}
    with users_promotion():
        expected = attention.dot_product_attention_weights(query, key, **options)
    compare(dot_product_attention_weights(query, key, **options), expected, TOLERANCE, "weights")


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"precision": "highest"},
        {"sow": True},
        {"sow": True, "precision": "highest"},
        {"dropout_rate": 0.5},
        {"dropout_rate": 0.5, "deterministic": True},
        {"dropout_rate": 0.5, "deterministic": True, "precision": "highest"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*sow.*outside of:DeprecationWarning")
def test_f4_it_is_flax_s_to_the_last_bit(options):
    """In float32: the same operations in the same order, whichever way Flax computes."""
    options, found = dict(options), []
    sow = options.pop("sow", False)
    if "dropout_rate" in options:
        options |= {"dropout_rng": jax.random.key(0)}
    with users_promotion():
        for nnx in (plait, flax_nnx()):

            def attention(*arrays, nnx=nnx):
                module = {"module": nnx.Module()} if sow else {}
                return nnx.dot_product_attention(*arrays, **options, **module)

            value, derivative = jax.vjp(attention, *operands(depth=3))
            found.append((value, *derivative(some_input(*value.shape))))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_f4_a_query_without_keys_takes_the_mean_and_has_finite_gradients():
    arrays = operands()
    mask = jnp.zeros((2, 1, 3, 4), bool)
    for options in ({}, OWN):
        y, grads = run(plait.dot_product_attention, arrays, {"mask": mask, **options})
        mean = np.broadcast_to(np.asarray(arrays[2]).mean(1, keepdims=True), y.shape)
        np.testing.assert_allclose(y, mean, rtol=1e-5, atol=1e-5)
        assert all(np.isfinite(grad).all() for grad in grads)


@pytest.mark.slow
def test_f4_values_may_have_another_depth():
    query, key, value = operands(group=2, value_depth=3)
    y = plait.dot_product_attention(query, key, value)
    assert y.shape == (2, 3, 4, 3)
    np.testing.assert_allclose(y, reference(query, key, value), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{}, OWN])
@pytest.mark.parametrize(
    ("given", "dtype", "expected"),
    [
        ("bfloat16", None, "bfloat16"),
        pytest.param("float16", None, "float16", marks=pytest.mark.slow),
        pytest.param("int32", None, "float32", marks=pytest.mark.slow),
        ("float32", jnp.bfloat16, "bfloat16"),
    ],
)
def test_f4_dtypes_and_float32_inside(given, dtype, expected, options):
    """A thousand equal logits: summed in bfloat16, the weights would not add up to one."""
    query = jnp.ones((1, 1, 2), given)
    key, value = jnp.ones((1000, 1, 2), given), jnp.ones((1000, 1, 2), given)
    y = plait.dot_product_attention(query, key, value, dtype=dtype, **options)
    assert y.dtype == expected
    np.testing.assert_allclose(y.astype(jnp.float32), 1.0, atol=1e-2)


def test_f4_mixed_dtypes_are_promoted_and_the_function_is_the_caller_s():
    query, key, value = operands()
    assert plait.dot_product_attention(query.astype(jnp.bfloat16), key, value).dtype == jnp.float32
    seen = []

    def promote(args, *, dtype):
        seen.append((len(args), dtype))
        return tuple(x.astype(jnp.float16) for x in args)

    assert plait.dot_product_attention(query, key, value, dtype=jnp.float32, promote_dtype=promote).dtype == jnp.float16
    assert seen == [(3, jnp.float32)]


class Sower(plait.Module):
    def __call__(self, *arrays, **options):
        return plait.dot_product_attention(*arrays, module=self, **options)


def test_f4_a_module_sows_the_weights_before_dropout():
    arrays = operands(group=2)
    _, seen = plait.capture(Sower(), plait.Intermediate)(*arrays, dropout_rate=0.5, dropout_rng=jax.random.key(0))
    (weights,) = seen["attention_weights"].value
    np.testing.assert_allclose(weights, dot_product_attention_weights(*arrays[:2]), rtol=1e-6)
    np.testing.assert_allclose(weights.sum(-1), np.ones((2, 4, 3)), rtol=1e-5)


@pytest.mark.slow
def test_f4_dropout_keeps_the_expected_weight():
    query, key = jnp.zeros((500, 1, 1)), jnp.zeros((4, 1, 1))
    options = {"dropout_rate": 0.25, "dropout_rng": jax.random.key(0)}
    weights = dot_product_attention_weights(query, key, **options)
    np.testing.assert_allclose(np.unique(weights), [0.0, 0.25 / 0.75], rtol=1e-6)
    assert abs(float(weights.mean()) - 0.25) < 0.02
    np.testing.assert_array_equal(dot_product_attention_weights(query, key, **options, deterministic=True), 0.25)


@pytest.mark.parametrize("rate", [1.0, 1.5, -0.5])
@pytest.mark.parametrize("deterministic", [True, False])
def test_f4_a_rate_outside_of_its_range_is_refused(rate, deterministic):
    query, key, value = operands()
    options = {"dropout_rate": rate, "dropout_rng": jax.random.key(0), "deterministic": deterministic}
    with pytest.raises(ArgumentError, match=f"dropout_rate={rate}"):
        plait.dot_product_attention(query, key, value, **options)
    with pytest.raises(ArgumentError, match=f"dropout_rate={rate}"):
        dot_product_attention_weights(query, key, **options)


def test_f4_a_layer_with_such_a_rate_is_named():
    layer = plait.MultiHeadAttention(2, 4, dropout_rate=1.0, deterministic=False, decode=False, rngs=plait.Rngs(0))
    with pytest.raises(ArgumentError, match=r"(?s)at +encoder\.layers\[3\].*dropout_rate=1\.0"):
        Encoder(layer)(jnp.ones((1, 3, 4)))


def test_f4_dropout_without_a_key_says_what_to_pass():
    with pytest.raises(StreamError, match=r"dropout_rng=None[\s\S]*dropout_rng=jax\.random\.key\(0\)"):
        plait.dot_product_attention(*operands(), dropout_rate=0.5)


def test_without_dropout_and_sowing_it_is_jax_nn_s():
    """Fused kernels are JAX's affair: the program is the same as that of ``jax.nn.dot_product_attention``."""
    arrays, mask = operands(), added_to(*operands()[:2], "full", "mask")

    def program(function):
        return jax.jit(lambda *xs: function(*xs, mask=mask, is_causal=True)).lower(*arrays).as_text()

    assert program(plait.dot_product_attention) == program(jax.nn.dot_product_attention)


@pytest.mark.slow
def test_l3_half_precision_has_gradients_under_strict_and_standard_promotion():
    """JAX's own function mixes bfloat16 with float32, which strict promotion refuses."""
    arrays = operands(dtype=jnp.bfloat16)
    strict = run(plait.dot_product_attention, arrays, {})
    with users_promotion():
        standard = run(plait.dot_product_attention, arrays, {})
        plait.dot_product_attention(*arrays, implementation="xla")
    with pytest.raises(ArgumentError, match="dtype bfloat16 with strict dtype promotion"):
        plait.dot_product_attention(*arrays, implementation="xla")
    for mine, other in zip(jax.tree.leaves(strict), jax.tree.leaves(standard), strict=True):
        assert mine.dtype == other.dtype == jnp.bfloat16
        compare(mine, other, HALF_TOLERANCE, "strict and standard")


def test_an_implementation_is_handed_to_jax():
    arrays = operands()
    expected = plait.dot_product_attention(*arrays)
    np.testing.assert_array_equal(plait.dot_product_attention(*arrays, implementation="xla"), expected)
    with pytest.raises(ValueError, match="mps"):
        plait.dot_product_attention(*arrays, implementation="mps")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"dropout_rate": 0.5}, "weights are dropped"),
        ({"module": Sower()}, "weights are sown"),
        ({"precision": "highest"}, "precision='highest'"),
        ({"value_depth": 3}, r"keys of shape \(2, 4, 2, 4\), values of shape \(2, 4, 2, 3\)"),
    ],
)
def test_an_implementation_that_cannot_follow_is_refused(options, found):
    options = dict(options)
    arrays = operands(value_depth=options.pop("value_depth", None))
    with pytest.raises(ArgumentError, match=rf"implementation='cudnn'\s+found +{found}"):
        plait.dot_product_attention(*arrays, **options, implementation="cudnn")


WRONG = [
    (((3, 2, 4), (2, 3, 2, 4), (2, 3, 2, 4)), "must have equal rank, of at least 3"),
    (((2, 4), (2, 4), (2, 4)), "must have equal rank, of at least 3"),
    (((2, 3, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4)), "must have equal batch axes"),
    (((2, 3, 2, 4), (2, 3, 2, 5), (2, 3, 2, 5)), "must have equal depth of queries and keys"),
    (((2, 3, 2, 4), (2, 3, 2, 4), (2, 5, 2, 4)), "must have equal lengths of keys and values"),
    (((2, 3, 4, 4), (2, 3, 3, 4), (2, 3, 3, 4)), "which divide the heads of queries"),
    (((2, 3, 4, 4), (2, 3, 2, 4), (2, 3, 4, 4)), "as many heads of keys as of values"),
]


@pytest.mark.parametrize(("shapes", "message"), WRONG)
def test_f4_operands_that_do_not_fit_are_named_with_their_shapes(shapes, message):
    found = ", ".join(f"{name} {shape}" for name, shape in zip(("query", "key", "value"), shapes, strict=True))
    with pytest.raises(ShapeError) as caught:
        plait.dot_product_attention(*map(jnp.ones, shapes))
    assert message in caught.value.message
    assert caught.value.parts["found"] == found
    assert caught.value.parts["expected"] == "query (..., Tq, H, D), key (..., Tk, Hk, D), value (..., Tk, Hk, D)"
    assert caught.value.parts["do"]


def test_f4_the_weights_check_their_two_operands():
    with pytest.raises(ShapeError, match=r"^query and key of an attention must have equal rank"):
        dot_product_attention_weights(jnp.ones((2, 3, 2, 4)), jnp.ones((3, 2, 4)))


@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("shape", [(3, 3, 4), (3, 3), (2, 3, 3, 4), (2, 1, 1, 1, 1)])
def test_f4_masks_and_biases_that_do_not_fit_are_named(name, shape):
    with pytest.raises(ShapeError, match=rf"the {name} of an attention[\s\S]*found +a {name} of shape \({shape[0]}, "):
        plait.dot_product_attention(*operands(), **{name: jnp.ones(shape)})


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1, 2, 1, 4)])
def test_f4_masks_may_lack_leading_axes_or_have_more_of_length_one(shape):
    arrays, mask = operands(), some_input(*shape) > 0
    expected = reference(*arrays, mask=np.asarray(mask).reshape(shape[-4:]))
    np.testing.assert_allclose(plait.dot_product_attention(*arrays, mask=mask), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_f4_products_may_have_another_scale_and_a_bound(kv_heads):
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(size=(2, 5, heads, 4)).astype(np.float32) for heads in (2, kv_heads, kv_heads))
    wide = [np.repeat(x, 2 // kv_heads, axis=2) for x in (key, value)]
    for scale, cap in ((0.3, None), (None, 0.7), (2.0, 0.7)):
        products = np.einsum("bqhd,bkhd->bhqk", query, wide[0]) * (0.5 if scale is None else scale)
        products = products if cap is None else cap * np.tanh(products / cap)
        products = np.where(np.tril(np.ones((5, 5), bool)), products, -np.inf)
        weights = np.exp(products) / np.exp(products).sum(-1, keepdims=True)
        expected = np.einsum("bhqk,bkhd->bqhd", weights, wide[1])
        options = {"is_causal": True, "scale": scale, "soft_cap": cap}
        found = plait.dot_product_attention(query, key, value, **options)
        sowing, _ = plait.capture(Sower(), plait.Intermediate)(query, key, value, **options)  # scales the queries first
        np.testing.assert_allclose(found, expected, atol=1e-6)
        np.testing.assert_allclose(sowing, expected, atol=1e-6)
