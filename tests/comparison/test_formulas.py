"""The formulas compute what plait's own layers do, with each of their settings."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.comparison import formulas
from plait.comparison.formulas import (
    ACTIVATIONS,
    MASKS,
    attention,
    attention_choices,
    convolution,
    convolution_choices,
    embedding,
    linear,
    linear_choices,
    norm,
    norm_choices,
)

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(2, 9, 4)).astype(np.float32)
IMAGES = RANDOM.normal(size=(2, 7, 6, 4)).astype(np.float32)
USUAL = {"strides": 1, "padding": "SAME", "dilation": 1, "kernel": "as it is", "bias": "added"}
CONVOLUTIONS = {
    "the usual": {},
    "a number on all sides": {"padding": 2},
    "a number for each axis": {"padding": (0, 2)},
    "two for each axis": {"padding": ((0, 2), (1, 0))},
    "none": {"padding": "VALID"},
    "around": {"padding": "CIRCULAR"},
    "mirrored": {"padding": "REFLECT"},
    "strides": {"strides": 2},
    "a stride for each axis": {"strides": (2, 1)},
    "dilation": {"dilation": 2},
    "dilation, around": {"dilation": 2, "padding": "CIRCULAR"},
    "groups": {"groups": 2},
    "no bias": {"bias": "missing"},
}


def parameters_of(layer):
    return {name: np.asarray(value) for name, value in plait.to_pure_dict(plait.state(layer)).items()}


def test_each_of_them_is_called_as_in_a_comparison():
    assert list(formulas.each_choice({"a": (1, 2), "b": (3, 4)})) == [
        {"a": 1, "b": 3}, {"a": 1, "b": 4}, {"a": 2, "b": 3}, {"a": 2, "b": 4},
    ]  # fmt: skip


@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_a_convolution(settings):
    layer = plait.Conv(
        4, 6, (3, 2), rngs=plait.Rngs(0), strides=settings.get("strides", 1), padding=settings.get("padding", "SAME"),
        kernel_dilation=settings.get("dilation", 1), feature_group_count=settings.get("groups", 1),
        use_bias="bias" not in settings, bias_init=plait.initializers.normal(1.0),
    )  # fmt: skip
    chosen = {**USUAL, **settings}
    found = convolution({"x": IMAGES}, parameters_of(layer), chosen)
    np.testing.assert_allclose(found, layer(IMAGES), atol=1e-5)


def test_a_causal_convolution():
    layer = plait.Conv(4, 6, (3,), rngs=plait.Rngs(0), padding="CAUSAL", kernel_dilation=2)
    found = convolution({"x": ROWS}, parameters_of(layer), {**USUAL, "padding": "CAUSAL", "dilation": 2})
    np.testing.assert_allclose(found, layer(ROWS), atol=1e-5)


KERNELS = {
    "window reversed": lambda kernel: kernel[::-1, ::-1],
    "window transposed": lambda kernel: kernel.transpose(1, 0, 2, 3),
    "channels exchanged": lambda kernel: kernel.transpose(0, 1, 3, 2),
}


@pytest.mark.parametrize("what", KERNELS)
def test_a_convolution_with_its_kernel_in_another_order(what):
    layer = plait.Conv(4, 4, (3, 3), rngs=plait.Rngs(0))
    found = convolution({"x": IMAGES}, parameters_of(layer), {**USUAL, "kernel": what})
    layer.kernel[...] = KERNELS[what](layer.kernel[...])
    np.testing.assert_allclose(found, layer(IMAGES), atol=1e-5)


def test_a_convolution_that_does_not_fit_is_none():
    kernel = np.ones((3, 3, 3, 4), np.float32)
    assert convolution({"x": IMAGES}, {"kernel": kernel, "bias": np.ones(4)}, USUAL) is None  # 4 channels, not 3
    assert convolution({"x": ROWS}, {"kernel": np.ones((3, 3, 4, 4)), "bias": np.ones(4)}, USUAL) is None
    assert convolution({"x": IMAGES}, {"kernel": np.ones((3, 3, 4, 4))}, {**USUAL, "padding": "NONE"}) is None
    for shape, channels in ((IMAGES.shape, (2, 3)), ((2, 5, 5, 0), (4, 4)), ((2, 5, 5, 2), (4, 4))):
        images, kernel = np.ones(shape, np.float32), np.ones((3, 3, *channels))
        assert convolution({"x": images}, {"kernel": kernel}, {**USUAL, "bias": "missing"}) is None


@pytest.mark.parametrize(
    ("factor", "number"), [("1", 1.0), ("sqrt(features)", math.sqrt(4)), ("1/sqrt(features)", 1 / math.sqrt(4))]
)
@pytest.mark.parametrize("first", [0, 1, -1])
def test_an_embedding(factor, number, first):
    table, tokens = RANDOM.normal(size=(5, 4)), np.array([[0, 3, 4]])
    found = embedding({"x": tokens}, {"embedding": table}, {"factor": factor, "first index": first})
    np.testing.assert_allclose(found, table[(tokens + first) % 5] * number)
    assert embedding({"x": ROWS}, {"embedding": table}, {"factor": factor, "first index": first}) is None


NORMS = {
    "features": (plait.LayerNorm, {"epsilon": 1e-3}),
    "root mean square": (plait.RMSNorm, {"epsilon": 1e-3}),
    "groups": (plait.GroupNorm, {"epsilon": 1e-6, "num_groups": 2}),
    "batch": (plait.BatchNorm, {"epsilon": 1e-5}),
    "running": (plait.BatchNorm, {"epsilon": 1e-5, "use_running_average": True}),
}


@pytest.mark.parametrize("statistics", NORMS)
def test_a_norm(statistics):
    make, options = NORMS[statistics]
    layer = make(4, scale_init=plait.initializers.normal(1.0), rngs=plait.Rngs(0), **options)
    for name, numbers in {"bias": range(4), "mean": range(4), "var": range(1, 5)}.items():
        if getattr(layer, name, None) is not None:
            getattr(layer, name)[...] = jnp.asarray(list(numbers), jnp.float32)
    parameters, expected = parameters_of(layer), layer(IMAGES)
    groups = options.get("num_groups")
    usual = {"scale": "used", "bias": "added", "variance": "biased"}
    chosen = {**usual, "statistics": statistics, "groups": groups, "epsilon": options["epsilon"]}
    np.testing.assert_allclose(norm({"x": IMAGES}, parameters, chosen), expected, atol=1e-4)
    known = norm_choices(parameters, [layer])
    assert all(value in known[name] for name, value in chosen.items() if name != "bias" or "bias" in parameters)
    assert (known["epsilon"][0], known["groups"]) == (options["epsilon"], (groups,))
    assert ("running" in known["statistics"]) == ("mean" in parameters) == ("features" not in known["statistics"])


def test_a_norm_of_groups_needs_no_axes_between_examples_and_channels():
    layer, x = plait.GroupNorm(4, num_groups=2, rngs=plait.Rngs(0)), ROWS[:, 0]
    usual = {"scale": "used", "bias": "added", "variance": "biased", "epsilon": layer.epsilon}
    found = norm({"x": x}, parameters_of(layer), {**usual, "statistics": "groups", "groups": 2})
    np.testing.assert_allclose(found, layer(x), atol=1e-4)
    assert norm({"x": x[0]}, parameters_of(layer), {**usual, "statistics": "groups", "groups": 2}) is None


def test_a_norm_with_other_settings():
    x, scale, bias = ROWS.astype(np.float64), np.arange(1.0, 5.0), np.arange(4.0)
    usual = {"statistics": "features", "epsilon": 0.0, "scale": "used", "bias": "added", "variance": "biased"}
    parameters = {"scale": scale, "bias": bias}
    plain = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)
    unbiased = (x - x.mean(-1, keepdims=True)) / x.std(-1, ddof=1, keepdims=True)
    expected = {
        ("scale", "missing"): plain + bias,
        ("scale", "1 + scale"): plain * (1 + scale) + bias,
        ("bias", "missing"): plain * scale,
        ("variance", "unbiased"): unbiased * scale + bias,
    }
    for (name, value), result in expected.items():
        np.testing.assert_allclose(norm({"x": ROWS}, parameters, {**usual, name: value}), result, rtol=1e-6)
    squares = np.sqrt((x**2).sum(-1, keepdims=True) / 3)
    rms = {**usual, "statistics": "root mean square", "variance": "unbiased"}
    np.testing.assert_allclose(norm({"x": ROWS}, parameters, rms), x / squares * scale + bias, rtol=1e-6)
    for chosen in ({"statistics": "running"}, {"statistics": "groups", "groups": 3}, {"statistics": "groups"}):
        assert norm({"x": ROWS}, parameters, {**usual, **chosen}) is None
    statistics = {"mean": np.zeros(4), "var": np.ones(4), **parameters}
    assert norm({"x": ROWS}, statistics, {**usual, "statistics": "running", "variance": "unbiased"}) is None


FUNCTIONS = {
    "none": lambda x: x, "relu": jax.nn.relu, "exact gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu by tanh": jax.nn.gelu, "gelu by sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x), "silu": jax.nn.silu,
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus, "elu": jax.nn.elu, "selu": jax.nn.selu,
    "leaky relu (0.01)": jax.nn.leaky_relu, "leaky relu (0.2)": lambda x: jax.nn.leaky_relu(x, 0.2),
    "relu6": jax.nn.relu6, "squared relu": lambda x: jax.nn.relu(x) ** 2, "hard swish": jax.nn.hard_swish,
    "mish": jax.nn.mish,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation(name):
    x = np.linspace(-8, 8, 65)
    np.testing.assert_allclose(ACTIVATIONS[name](x), FUNCTIONS[name](jnp.asarray(x, jnp.float32)), atol=1e-5)


SHAPE = (2, 5, 3, 4)  # examples, length, heads, features
SCALES = {"1/sqrt(head_dim)": 0.5, "1": 1.0, "1/sqrt(features)": 12**-0.5, "1/head_dim": 0.25, "sqrt(head_dim)": 2.0}
ALONE = {
    "heads": 3, "rotary halves": "none", "rotary base": 1e4, "mask": "none", "scale": "1/sqrt(head_dim)",
    "query and key": "as they are",
}  # fmt: skip


def attended(query, key, value, mask=None, scale=0.5):
    found = jax.nn.dot_product_attention(query, key, value, mask=mask, scale=scale)
    return np.asarray(found).reshape(2, 5, -1)


@pytest.fixture(scope="module")
def parts():
    return {name: RANDOM.normal(size=SHAPE).astype(np.float32) for name in ("query", "key", "value")}


def flat(parts):
    return {name: array.reshape(*array.shape[:2], -1) for name, array in parts.items()}


@pytest.mark.parametrize("scale", SCALES)
def test_attention_is_scaled(parts, scale):
    found = attention(flat(parts), {}, {**ALONE, "scale": scale})
    np.testing.assert_allclose(found, attended(**parts, scale=SCALES[scale]), atol=1e-5)


@pytest.mark.parametrize(
    ("mask", "diagonal"),
    [("causal", 0), ("causal, one step too far", 1), ("none", 5), ("reversed (only later steps)", None)],
)
def test_attention_is_masked(parts, mask, diagonal):
    seen = np.triu(np.ones((5, 5), bool)) if diagonal is None else np.tril(np.ones((5, 5), bool), diagonal)
    found = attention(flat(parts), {}, {**ALONE, "mask": mask})
    np.testing.assert_allclose(found, attended(**parts, mask=jnp.asarray(seen)[None, None]), atol=1e-5)
    np.testing.assert_array_equal(MASKS[mask](5, 5), seen)
    given = attention({**flat(parts), "mask": seen[None, None]}, {}, {**ALONE, "mask": "given"})
    np.testing.assert_allclose(given, found)
    assert attention(flat(parts), {}, {**ALONE, "mask": "given"}) is None


def test_a_mask_of_the_keys_of_each_example(parts):
    seen = np.array([[True, True, False, False, True], [True, False, True, True, True]])
    found = attention({**flat(parts), "mask": seen}, {}, {**ALONE, "mask": "given"})
    np.testing.assert_allclose(found, attended(**parts, mask=jnp.asarray(seen)[:, None, None]), atol=1e-5)


def test_a_mask_that_may_be_of_queries_and_keys_is(parts):
    """With as many examples as queries, the shape does not tell."""
    five = {name: np.concatenate([array, array, array[:1]]) for name, array in parts.items()}
    seen = np.tril(np.ones((5, 5), bool))
    found = attention({**flat(five), "mask": seen}, {}, {**ALONE, "mask": "given"})
    np.testing.assert_allclose(found, attention(flat(five), {}, {**ALONE, "mask": "causal"}))


def test_attention_with_query_and_key_exchanged_or_with_fewer_heads_of_keys(parts):
    found = attention(flat(parts), {}, {**ALONE, "query and key": "exchanged"})
    np.testing.assert_allclose(found, attended(parts["key"], parts["query"], parts["value"]), atol=1e-5)
    few = {**parts, "key": parts["key"][:, :, :1], "value": parts["value"][:, :, :1]}
    np.testing.assert_allclose(attention(flat(few), {}, ALONE), attended(**few), atol=1e-5)
    assert attention(flat(few), {}, {**ALONE, "query and key": "exchanged"}) is None
    assert attention(flat(parts), {}, {**ALONE, "heads": 5}) is None


@pytest.mark.parametrize("pairs", ["half", "interleaved"])
@pytest.mark.parametrize("base", [1e4, 10.0])
def test_rotary_embedding(parts, pairs, base):
    def turned(x):
        first, second = (x[..., :2], x[..., 2:]) if pairs == "half" else (x[..., ::2], x[..., 1::2])
        angles = np.arange(5)[:, None, None] * np.array([1.0, base**-0.5])
        both = (first + 1j * second) * np.exp(1j * angles)
        order = [both.real, both.imag]
        return np.concatenate(order, -1) if pairs == "half" else np.stack(order, -1).reshape(x.shape)

    found = attention(flat(parts), {}, {**ALONE, "rotary halves": pairs, "rotary base": base})
    query, key = (jnp.asarray(turned(parts[name]), jnp.float32) for name in ("query", "key"))
    np.testing.assert_allclose(found, attended(query, key, jnp.asarray(parts["value"])), atol=1e-5)


def test_a_linear_layer_has_any_number_of_feature_axes():
    layer = plait.LinearGeneral(
        (3, 4), (5, 2), axis=(-2, -1), rngs=plait.Rngs(0), bias_init=plait.initializers.normal()
    )
    x = RANDOM.normal(size=(2, 7, 3, 4)).astype(np.float32)
    y, usual = np.asarray(layer(x)), {"kernel": "as it is", "bias": "added"}
    found = linear({"x": x, "like": y}, parameters_of(layer), usual)
    np.testing.assert_allclose(found, y, atol=1e-5)
    without = linear({"x": x, "like": y}, parameters_of(layer), {**usual, "bias": "missing"})
    np.testing.assert_allclose(without, y - np.asarray(layer.bias[...]), atol=1e-5)


def test_a_linear_layer_may_have_its_kernel_transposed_if_it_is_square():
    kernel, bias = RANDOM.normal(size=(4, 4)), RANDOM.normal(size=4)
    parameters, chosen = {"kernel": kernel, "bias": bias}, {"kernel": "transposed", "bias": "added"}
    np.testing.assert_allclose(linear({"x": ROWS, "like": ROWS}, parameters, chosen), ROWS @ kernel.T + bias)
    wide = np.zeros((2, 9, 8))
    assert linear({"x": ROWS, "like": wide}, {"kernel": np.ones((4, 8))}, chosen) is None


@pytest.mark.parametrize(
    ("x", "y", "kernel"),
    [((0, 4), (0, 4), (4, 4)), ((2, 4), (2, 4), (0, 4)), ((2, 4), (2, 3), (4, 4)), ((2, 4), (3, 4), (4, 4)),
     ((3, 4), (3, 4), (6, 3)), ((1, 2), (1, 2), (8, 8))],
)  # fmt: skip
def test_what_is_no_linear_layer_is_none(x, y, kernel):
    arrays = {"x": np.ones(x), "like": np.ones(y)}
    assert linear(arrays, {"kernel": np.ones(kernel)}, {"kernel": "as it is", "bias": "missing"}) is None


def test_the_settings_that_are_tried_begin_with_the_usual_one():
    assert linear_choices({"bias": np.ones(1)}) == {"kernel": ("as it is", "transposed"), "bias": ("added", "missing")}
    for absent in ({}, {"bias": None}):
        assert linear_choices(absent)["bias"] == ("missing",)
    conv = SimpleNamespace(strides=2, padding="circular", kernel_dilation=(1, 2))
    other = SimpleNamespace(stride=(3, 1), padding=[(0, 1), [2, 2]], dilation=1)
    strange = SimpleNamespace(strides=None, padding=object())
    parameters = {"kernel": np.ones((3, 5, 1, 1))}
    kernels = ("as it is", "window reversed", "window transposed", "channels exchanged")
    assert convolution_choices(parameters, [conv, other, strange]) == {
        "strides": (2, (3, 1)),
        "padding": ("CIRCULAR", ((0, 1), (2, 2)), "SAME", "VALID", (1, 2)),
        "dilation": ((1, 2), 1),
        "kernel": kernels,
        "bias": ("missing",),
    }
    assert convolution_choices({**parameters, "bias": np.ones(1)}, [strange]) == {
        "strides": (1,), "padding": ("SAME", "VALID", (1, 2)), "dilation": (1,), "kernel": kernels,
        "bias": ("added", "missing"),
    }  # fmt: skip


def test_the_settings_of_a_norm_are_the_modules_own_and_then_the_usual_ones():
    modules = [
        SimpleNamespace(eps=2),
        SimpleNamespace(variance_epsilon=0.25, num_groups=4),
        SimpleNamespace(epsilon=1e-5),
    ]
    found = norm_choices({"scale": np.ones(4)}, modules)
    assert found == {
        "statistics": ["features", "root mean square", "groups"],
        "scale": ("used", "missing", "1 + scale"),
        "bias": ("missing",),
        "variance": ("biased", "unbiased"),
        "epsilon": (2.0, 0.25, 1e-5, 1e-6, 1e-3, 1e-8, 1e-12, 0.0, 1e-7, 1e-4, 1e-2),
        "groups": (4,),
    }
    plain = norm_choices({"bias": np.ones(4)}, [SimpleNamespace(epsilon="small")])
    assert plain["statistics"] == ["features", "root mean square"]
    assert (plain["scale"], plain["bias"], plain["groups"]) == (("missing",), ("added", "missing"), (None,))
    assert plain["epsilon"][:2] == (1e-5, 1e-6)
    assert norm_choices({"mean": np.ones(4)}, modules)["statistics"] == ["running", "batch"]


def test_the_settings_of_attention_are_the_modules_own_and_then_the_usual_ones():
    query = np.ones((2, 5, 12))
    known = attention_choices(
        [SimpleNamespace(nhead=3, theta=10), SimpleNamespace(num_heads=6, n_head=0, heads="all")], query, has_mask=True
    )
    assert known == {
        "heads": (3, 6),
        "rotary halves": ("none", "half", "interleaved"),
        "rotary base": (10.0, 1e4),
        "mask": ("given", *MASKS),
        "scale": ("1/sqrt(head_dim)", "1", "1/sqrt(features)", "1/head_dim", "sqrt(head_dim)"),
        "query and key": ("as they are", "exchanged"),
    }
    guessed = attention_choices([SimpleNamespace(rope_theta="auto")], query, has_mask=False)
    assert (guessed["heads"], guessed["mask"], guessed["rotary base"]) == ((1, 2, 3, 4, 6, 12), (*MASKS,), (1e4,))
    names = ("num_heads", "n_heads", "heads", "n_head", "num_attention_heads", "nhead")
    for name, base in zip(names, ("base", "theta", "rope_theta", "rope_base", "base", "base"), strict=True):
        found = attention_choices([SimpleNamespace(**{name: 5, base: 7})], query, has_mask=False)
        assert (found["heads"], found["rotary base"]) == ((5,), (7.0, 1e4))


def test_a_norm_of_too_few_values_or_without_a_finite_result_is_none():
    usual = {"epsilon": 0.0, "scale": "missing", "bias": "missing", "variance": "unbiased", "groups": 1}
    single = np.ones((1, 1))
    for statistics in ("features", "root mean square", "batch", "groups"):
        assert norm({"x": single}, {}, {**usual, "statistics": statistics}) is None
    constant = {**usual, "variance": "biased", "statistics": "features"}
    assert norm({"x": np.ones((2, 4))}, {}, constant) is None
    np.testing.assert_array_equal(norm({"x": np.ones((2, 4))}, {}, {**constant, "epsilon": 1.0}), np.zeros((2, 4)))
    two = np.array([[1.0, 3.0]])
    root = norm({"x": two}, {}, {**usual, "statistics": "root mean square"})
    np.testing.assert_allclose(root, two / math.sqrt(10))


def test_attention_that_does_not_fit_is_none(parts):
    arrays = flat(parts)
    odd = {name: RANDOM.normal(size=(2, 5, 9)) for name in arrays}
    for halves in ("half", "interleaved"):  # three features of each head
        assert attention(odd, {}, {**ALONE, "rotary halves": halves}) is None
    assert attention({**arrays, "value": arrays["value"][..., :7]}, {}, ALONE) is None
    assert attention({**arrays, "mask": np.ones((3, 3), bool)}, {}, {**ALONE, "mask": "given"}) is None
    two = {**arrays, "key": arrays["key"][..., :8], "value": arrays["value"][..., :8]}
    assert attention(two, {}, ALONE) is None  # three heads cannot share two


def test_a_mask_may_be_of_more_examples_than_are_compared(parts):
    seen = np.random.default_rng(3).random((4, 1, 5, 5)) < 0.7
    seen |= np.eye(5, dtype=bool)
    found = attention({**flat(parts), "mask": seen}, {}, {**ALONE, "mask": "given"})
    np.testing.assert_allclose(found, attended(**parts, mask=jnp.asarray(seen[:2])), atol=1e-5)
