"""``MultiHeadAttention`` on whole inputs; its cache is tested in ``test_kv_cache.py``. (rule L27)"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ArgumentTypeError, ShapeError, StreamAttributeError, StreamError
from tests.nn.test_dot_product import reference
from tests.nn.twins import (
    HALF_TOLERANCE,
    TOLERANCE,
    Encoder,
    assert_twins_agree,
    compare,
    flax_nnx,
    pure,
    some_input,
    twins,
    users_promotion,
)
from tests.sampling import slow_but

Attention = functools.partial(plait.MultiHeadAttention, decode=False)


def dense(x, layer, axes):
    """A projection in float64."""
    kernel = np.asarray(layer.kernel[...], np.float64)
    y = np.tensordot(x, kernel, axes=(tuple(range(-axes, 0)), tuple(range(axes))))
    return y if layer.bias is None else y + np.asarray(layer.bias[...], np.float64)


def paper(layer, q, k=None, v=None, **options):
    """Section 3.2.2 of 1706.03762 in float64."""
    q, k, v = (None if x is None else np.asarray(x, np.float64) for x in (q, k, v))
    k = q if k is None else k
    v = k if v is None else v
    y = reference(dense(q, layer.query, 1), dense(k, layer.key, 1), dense(v, layer.value, 1), **options)
    return dense(y, layer.out, 2)


def random_biases(layer):
    """Biases start at zero, where a wrong one would not be seen."""
    for seed, projection in enumerate((layer.query, layer.key, layer.value, layer.out)):
        if projection.bias is not None:
            projection.bias[...] = some_input(*projection.bias.shape, seed=seed)
    return layer


@pytest.mark.parametrize(
    ("options", "shapes"),
    [
        ({}, [(2, 3, 4)]),
        ({"num_kv_heads": 1}, [(2, 3, 4), (2, 5, 4)]),
        ({"qkv_features": 6, "out_features": 5, "in_kv_features": 3}, [(3, 4), (5, 3), (5, 3)]),
        ({"out_features": (2, 3), "use_bias": False}, [(2, 1, 3, 4)]),
    ],
)
def test_l27_it_is_the_paper_s_equation(options, shapes):
    layer = random_biases(Attention(2, 4, rngs=plait.Rngs(0), **options))
    inputs = [some_input(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    y = plait.jit(lambda layer, *inputs: layer(*inputs))(layer, *inputs)
    np.testing.assert_allclose(y, paper(layer, *inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=6)
@given(
    st.fixed_dictionaries(
        {
            "num_kv_heads": st.sampled_from([None, 1, 2]),
            "use_bias": st.booleans(),
            "normalize_qk": st.booleans(),
            "qkv_features": st.sampled_from([None, 8]),
            "out_features": st.sampled_from([None, 3, (2, 3)]),
            "dtype": st.sampled_from([None, jnp.bfloat16]),
        }
    ),
    st.lists(st.integers(1, 2), max_size=2),
    st.integers(1, 4),
    st.booleans(),
    st.booleans(),
)
def test_l27_it_is_flax_s_forward_and_backward(options, batch, length, is_causal, masked):
    call = {"is_causal": is_causal}
    if masked:
        call["mask"] = plait.make_attention_mask(*[some_input(*batch, length, seed=s) > -1 for s in (1, 2)])
    tolerance = TOLERANCE if options["dtype"] is None else HALF_TOLERANCE
    options = {**options, "decode": False, "bias_init": plait.initializers.normal(1.0)}
    assert_twins_agree("MultiHeadAttention", (2, 4), options, some_input(*batch, length, 4), tolerance, **call)


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("broadcast", slow_but([False], [True, False]))
@pytest.mark.parametrize("kv_heads", slow_but([1], [1, 2]))
def test_l27_dropout_is_flax_s_call_after_call(broadcast, kv_heads):
    options = {"dropout_rate": 0.5, "broadcast_dropout": broadcast, "num_kv_heads": kv_heads, "decode": False}
    ours, theirs = twins("MultiHeadAttention", 2, 4, deterministic=False, **options)
    x = some_input(2, 3, 4)
    for _ in range(2):
        with users_promotion():
            expected = theirs(x)
        compare(ours(x), expected, TOLERANCE, "output")
    compare(ours(x, deterministic=True), plait.view(ours, deterministic=True)(x), TOLERANCE, "view")
    assert int(ours.rngs.count[...]) == 2


def sources(lib):
    return {"streams": lib.Rngs(dropout=3), "default": lib.Rngs(3), "stream": lib.RngStream(3, tag="any")}


@pytest.mark.oracle
@pytest.mark.parametrize("source", ["streams", "default", "stream"])
def test_l27_the_call_s_own_source_draws_what_flax_draws(source):
    options = {"dropout_rate": 0.5, "keep_rngs": False, "decode": False, "deterministic": False}
    ours, theirs = twins("MultiHeadAttention", 2, 4, **options)
    assert ours.rngs is None
    with users_promotion():
        expected = theirs(some_input(2, 3, 4), rngs=sources(flax_nnx())[source])
    compare(ours(some_input(2, 3, 4), rngs=sources(plait)[source]), expected, TOLERANCE, "output")


@pytest.mark.slow
def test_l27_a_key_will_do_as_a_source():
    layer = Attention(2, 4, dropout_rate=0.5, keep_rngs=False, deterministic=False, rngs=plait.Rngs(0))
    first, second = (layer(some_input(3, 4), rngs=jax.random.key(seed)) for seed in (0, 1))
    np.testing.assert_array_equal(first, layer(some_input(3, 4), rngs=jax.random.key(0)))
    assert not np.allclose(first, second)


@pytest.mark.oracle
def test_l27_metadata_and_initializers_reach_the_parameters_as_in_flax():
    def options(lib):
        return {
            "normalize_qk": True,
            "out_kernel_init": lib.initializers.ones,
            "out_bias_init": lib.initializers.constant(2.0),
            "kernel_metadata": {"a": 1},
            "out_kernel_metadata": {"b": 2},
            "bias_metadata": {"c": 3},
            "query_ln_scale_metadata": {"d": 4},
            "key_ln_scale_metadata": {"e": 5},
        }

    def tags(layer, lib):
        found = lib.to_flat_state(lib.state(layer))
        return {path: {name: v for name, v in leaf.get_metadata().items() if len(name) == 1} for path, leaf in found}

    nnx = flax_nnx()
    ours, theirs = (lib.MultiHeadAttention(2, 4, rngs=lib.Rngs(0), **options(lib)) for lib in (plait, nnx))
    assert tags(ours, plait) == tags(theirs, nnx)
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    for path in other:
        np.testing.assert_array_equal(mine[path], other[path], err_msg=path)


def test_l27_weights_are_sown_on_demand():
    layer, x = Attention(2, 4, rngs=plait.Rngs(0)), some_input(2, 3, 4)
    y, seen = plait.capture(layer, plait.Intermediate)(x, sow_weights=True)
    (weights,) = seen["attention_weights"].value
    assert weights.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(y, layer(x), rtol=1e-5, atol=1e-5)
    assert not plait.capture(layer, plait.Intermediate)(x)[1]


# What Flax gives to such a function.
OPTIONS = ["mask", "dropout_rng", "dropout_rate", "broadcast_dropout", "deterministic"]
OPTIONS += ["dtype", "precision", "module", "is_causal"]


def test_l27_the_attention_function_may_be_replaced():
    seen = {}

    def first_value(query, key, value, **options):
        seen.update(options)
        return jnp.broadcast_to(value[..., :1, :, :], query.shape)

    layer = Attention(2, 4, attention_fn=first_value, precision="highest", rngs=plait.Rngs(0))
    y = layer(some_input(2, 3, 4), is_causal=True)
    np.testing.assert_allclose(y[:, 0], y[:, 2], rtol=1e-6)
    assert sorted(seen) == sorted(OPTIONS)
    assert (seen["deterministic"], seen["precision"], seen["is_causal"], seen["module"]) == (
        True,
        "highest",
        True,
        None,
    )


def test_l5_products_may_be_replaced():
    calls = []

    def counted(name):
        def dot_general(*args, **kwargs):
            calls.append(name)
            return jax.lax.dot_general(*args, **kwargs)

        return dot_general

    rngs = plait.Rngs(0)
    Attention(2, 4, qkv_dot_general=counted("qkv"), out_dot_general=counted("out"), rngs=rngs)(some_input(3, 4))
    assert calls == ["qkv", "qkv", "qkv", "out"]
    calls.clear()
    classes = {"qkv_dot_general_cls": lambda: counted("qkv"), "out_dot_general_cls": lambda: counted("out")}
    Attention(2, 4, **classes, rngs=rngs)(some_input(3, 4))
    assert calls == ["qkv", "qkv", "qkv", "out"]


def test_l3_promotion_may_be_replaced():
    calls = []

    def counted(name):
        def promote(args, *, dtype):
            calls.append(name)
            return plait.nn.promotion.promote_dtype(args, dtype=dtype)

        return promote

    options = {f"{name}_promote_dtype": counted(name) for name in ("qkv", "out", "ln")}
    Attention(2, 4, normalize_qk=True, **options, rngs=plait.Rngs(0))(some_input(3, 4))
    assert calls == ["qkv", "qkv", "qkv", "ln", "ln", "out"]


@pytest.mark.slow
def test_l5_shardings_are_handed_on():
    """Heads on one axis of devices, features of the result on the same."""
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Explicit,))
    layer, x = Attention(2, 4, rngs=plait.Rngs(0)), some_input(2, 3, 4)
    expected = layer(x)
    seen = []

    def attention_fn(query, key, value, **options):
        seen.extend(jax.typeof(t).sharding.spec for t in (query, key, value))
        return plait.dot_product_attention(query, key, value, **options)

    layer.attention_fn = attention_fn
    with jax.set_mesh(mesh):
        layer, x = jax.tree.map(lambda a: jax.device_put(a, jax.NamedSharding(mesh, jax.P())), (layer, x))
        heads = jax.P(None, None, "model", None)
        y = layer(x, qkv_sharding=heads)
        assert seen == [heads] * 3
        y = layer(x, out_sharding=jax.P(None, None, "model"))
        assert jax.typeof(y).sharding.spec == jax.P(None, None, "model")
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_rotary_fn_turns_queries_and_keys_by_their_positions():
    rotary = functools.partial(plait.apply_rotary_embedding, interleaved=False)
    layer, x = Attention(2, 8, rotary_fn=rotary, rngs=plait.Rngs(0)), some_input(2, 3, 8)
    query, key, value = layer.query(x), layer.key(x), layer.value(x)
    y = layer.out(plait.dot_product_attention(rotary(query), rotary(key), value))
    compare(layer(x), y, TOLERANCE, "rotary")
    plain = Attention(2, 8, rngs=plait.Rngs(0))
    reverse = jnp.array([2, 1, 0])
    compare(plain(x[:, reverse]), plain(x)[:, reverse], TOLERANCE, "without positions, order does not matter")
    assert np.abs(layer(x[:, reverse]) - layer(x)[:, reverse]).max() > 1e-2


# Errors. Each names the path of the layer.

AT = r"at +encoder\.layers\[3\](\.\w+)? \(a \w+\)"


class Attending(Encoder):
    def __call__(self, *inputs, **kwargs):
        return self.encoder["layers"][3](*inputs, **kwargs)


def refuses(error, expected, layer, *inputs, **call):
    with pytest.raises(error, match=expected) as caught:
        Attending(layer)(*inputs, **call)
    assert re.search(AT, str(caught.value)), str(caught.value)


def test_l7_decode_is_always_required():
    layer = plait.MultiHeadAttention(2, 4, rngs=plait.Rngs(0))
    expected = r"decode=None[\s\S]*MultiHeadAttention\(\.\.\., decode=False\).*layer\(x, .*plait\.view\(model, decode="
    refuses(ArgumentError, expected, layer, some_input(3, 4))
    assert layer(some_input(3, 4), decode=False).shape == (3, 4)


def test_l7_deterministic_is_required_with_a_rate_only():
    layer = Attention(2, 4, dropout_rate=0.5, rngs=plait.Rngs(0))
    expected = r"deterministic=None[\s\S]*MultiHeadAttention\(\.\.\., deterministic=False\).*plait\.view\(model"
    refuses(ArgumentError, expected, layer, some_input(3, 4))
    assert Attention(2, 4, rngs=plait.Rngs(0))(some_input(3, 4)).shape == (3, 4)


def test_a_missing_source_names_both_places_to_pass_it():
    layer = Attention(2, 4, dropout_rate=0.5, keep_rngs=False, deterministic=False, rngs=plait.Rngs(0))
    expected = (
        r"no random stream to draw its dropout from[\s\S]*constructor: MultiHeadAttention\(.*call: layer\(x, rngs="
    )
    refuses(StreamError, expected, layer, some_input(3, 4))
    with pytest.raises(StreamAttributeError, match="'dropout'"):
        Attention(2, 4, dropout_rate=0.5, rngs=plait.Rngs(params=0))


def test_a_source_of_another_type_is_named():
    layer = Attention(2, 4, dropout_rate=0.5, deterministic=False, rngs=plait.Rngs(0))
    refuses(ArgumentTypeError, r"found +an? int\s+expected +an Rngs", layer, some_input(3, 4), rngs=3)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"num_heads": 3, "in_features": 4}, "qkv_features=4 and num_heads=3"),
        ({"num_heads": 4, "in_features": 4, "num_kv_heads": 3}, "num_heads=4 and num_kv_heads=3"),
        ({"num_heads": 0, "in_features": 4}, "qkv_features=4 and num_heads=0"),
    ],
)
def test_heads_that_cannot_be_divided_are_named(arguments, found):
    with pytest.raises(ArgumentError, match=rf"found +{found}\s+expected +\w+ that is a multiple of"):
        plait.MultiHeadAttention(**arguments, rngs=plait.Rngs(0))


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(3, 5)], r"found +an input of shape \(3, 5\)\s+expected +shape \(\.\.\., 4\), since in_features=4"),
        ([(3, 4)], r"found +an input of shape \(3, 4\)\s+expected +shape \(\.\.\., 2\), since in_kv_features=2"),
        ([(3, 4), (3, 2), (3, 4)], r"expected +shape \(\.\.\., 2\), since in_kv_features=2"),
        ([(4,)], r"found +an input of shape \(4,\)\s+expected +at least 2 axes: \(\.\.\., length, features\)"),
        ([(2, 3, 4), (3, 2)], r"must have equal rank[\s\S]*query \(2, 3, 2, 2\), key \(3, 2, 2\)"),
        ([(2, 3, 4), (1, 3, 2)], r"must have equal batch axes"),
        ([(2, 3, 4), (2, 3, 2), (2, 5, 2)], r"must have equal lengths of keys and values"),
    ],
)
def test_inputs_that_do_not_fit_are_named(shapes, expected):
    layer = Attention(2, 4, in_kv_features=2, rngs=plait.Rngs(0))
    refuses(ShapeError, expected, layer, *[some_input(*shape) for shape in shapes])


def test_a_mask_that_does_not_fit_is_named():
    layer = Attention(2, 4, rngs=plait.Rngs(0))
    expected = r"found +a mask of shape \(5, 3, 3\)\s+expected +a shape that broadcasts to \(5, 2, 3, 3\)[\s\S]*None"
    refuses(ShapeError, expected, layer, some_input(5, 3, 4), mask=jnp.ones((5, 3, 3)))


def test_values_without_keys_are_refused():
    layer = Attention(2, 4, rngs=plait.Rngs(0))
    refuses(ArgumentError, r"inputs_k=None and an array for inputs_v", layer, some_input(3, 4), None, some_input(3, 4))


@pytest.mark.slow
def test_heads_of_keys_and_values_have_an_axis_name_of_their_own():
    """L27: two of them cannot be sharded over four devices."""
    names = {"kernel": ("embed", "heads", "head_dim"), "kv": ("embed", "kv_heads", "head_dim")}
    mesh = jax.make_mesh((4,), ("model",))
    rules = [*(dict(plait.partitioning.rules_for(mesh)) | {"kv_heads": None}).items()]
    with (
        jax.set_mesh(mesh),
        plait.logical_axis_rules(rules),
    ):
        layer = plait.MultiHeadAttention(
            4,
            8,
            num_kv_heads=2,
            decode=False,
            kernel_metadata={"out_sharding": names["kernel"]},
            kv_kernel_metadata={"out_sharding": names["kv"]},
            bias_metadata={"out_sharding": ("heads", "head_dim")},
            kv_bias_metadata={"out_sharding": ("kv_heads", "head_dim")},
            out_kernel_metadata={"out_sharding": ("heads", "head_dim", "embed")},
            out_bias_metadata={"out_sharding": ("embed",)},
            rngs=plait.Rngs(0),
        )
    assert [part.kernel.out_sharding[1] for part in (layer.query, layer.key, layer.value)] == [
        "heads",
        "kv_heads",
        "kv_heads",
    ]
    assert layer.query.kernel.sharding.spec[1] == "model"
    assert layer.key.kernel.sharding.is_fully_replicated


def test_l27_a_window_lets_each_position_see_the_last_ones_decoding_or_not():
    make = functools.partial(plait.MultiHeadAttention, 2, 8, decode=False)
    plain, near = make(rngs=plait.Rngs(0)), make(window=3, rngs=plait.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (2, 7, 8))
    distance = np.arange(7)[:, None] - np.arange(7)
    expected = plain(x, mask=jnp.asarray((distance >= 0) & (distance < 3))[None, None])
    np.testing.assert_allclose(near(x), expected, atol=1e-6)
    for per_sequence in (False, True):
        decoder = plait.view(near, decode=True, batch_size=2, max_length=9, per_sequence=per_sequence)
        parts = [decoder(x[:, :4]), *(decoder(x[:, i : i + 1]) for i in range(4, 7))]
        np.testing.assert_allclose(jnp.concatenate(parts, axis=1), expected, atol=1e-6)
