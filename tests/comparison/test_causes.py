"""The cause of a departure, where it is one of the usual ones of convolutions."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.comparison.causes import Cause

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 3)), jnp.float32)
IMAGES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 8, 8, 3)), jnp.float32)


class Net(plait.Module):
    def __init__(self, window, **options):
        rngs = plait.Rngs(0)
        self.conv = plait.Conv(3, 4, window, rngs=rngs, **options)
        self.head = plait.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        y = self.conv(x)
        return self.head(y.mean(range(1, y.ndim - 1)))


def reversed_window(model):
    kernel = model.conv.kernel
    kernel[...] = kernel[...][::-1, ::-1]
    return model


CASES = {
    "dilation": (ROWS, Net((2,), padding="CAUSAL", kernel_dilation=2), Net((2,), padding="CAUSAL"), "2", "1"),
    "padding": (ROWS, Net((3,), padding="CAUSAL"), Net((3,)), "CAUSAL", "SAME"),
    "strides": (IMAGES, Net((3, 3), strides=2), Net((3, 3)), "2", "1"),
    "kernel": (IMAGES, Net((3, 3)), reversed_window(Net((3, 3))), "as it is", "with the window reversed"),
}


@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_convolution_that_differs_by_a_setting(what, swapped):
    x, first, second, mine, other = CASES[what]
    if swapped and what != "kernel":
        first, second, mine, other = second, first, other, mine
    found = plait.compare(first, second, x).departure
    assert found.path == "conv"
    assert (found.cause.what, found.cause.a, found.cause.b) == (what, mine, other)
    assert found.cause.after is not None
    assert found.cause.after < 1e-4 * found.cause.before
    assert ("has its shape" in str(found)) == (what == "strides")


class Rounded(plait.LayerNorm):
    """Its values are off by a few roundings, as on another processor."""

    def __call__(self, x, *args):
        return super().__call__(x, *args) * (1 + 2e-6)


def test_rounding_is_not_put_down_to_a_setting_that_changes_nothing():
    """The bias is zero: with or without it, the formula rounds better than the layer did."""
    rounded, exact = Rounded(3, rngs=plait.Rngs(0)), plait.LayerNorm(3, rngs=plait.Rngs(0))
    for first, second in ((rounded, exact), (exact, rounded)):
        found = plait.compare(first, second, ROWS, tolerance=1e-6).departure
        assert found.cause is None or found.cause.what not in ("bias", "scale"), found


class Between(plait.Module):
    """What is done between two layers."""

    def __init__(self, order):
        self.first = plait.Linear(3, len(order), rngs=plait.Rngs(0))
        self.last = plait.Linear(len(order), 2, rngs=plait.Rngs(1))
        self.order = order

    def __call__(self, x):
        return self.last(self.first(x)[..., jnp.array(self.order)])


ORDERS = {
    (2, 3, 0, 1): "halves exchanged",
    (0, 2, 1, 3): "even entries before odd ones",
    (0, 2, 4, 1, 3, 5): "even entries before odd ones",
    (0, 3, 1, 4, 2, 5): "halves interleaved",
    (3, 2, 1, 0): "reversed along axis 2",
}


@pytest.mark.parametrize("order", ORDERS)
def test_entries_in_another_order(order):
    found = plait.compare(Between(sorted(order)), Between(order), ROWS).departure
    assert (found.cause.what, found.cause.b) == ("order", ORDERS[order])
    assert found.cause.after is not None
    assert found.cause.after < 1e-4 * found.cause.before


class Mixed(plait.Module):
    """Parameters of its own; the first cannot explain anything."""

    def __init__(self, scale):
        self.first = plait.Linear(3, 4, rngs=plait.Rngs(0))
        self.count = plait.Param(jnp.arange(4))
        self.scale = plait.Param(jnp.asarray(scale, jnp.float32))

    def __call__(self, x):
        return jnp.sin(self.first(x) * self.scale[None, None]) + self.count[None, None].astype(x.dtype)


def test_a_parameter_that_differs_is_found_behind_one_that_cannot():
    found = plait.compare(Mixed([1.0, 2.0, 3.0, 4.0]), Mixed([4.0, 3.0, 2.0, 1.0]), ROWS).departure
    assert (found.cause.what, found.cause.b) == ("scale", "reversed along axis 0"), found


class Gated(plait.Module):
    """Gates one half of a layer's output by a function of the other."""

    def __init__(self, function, *, gate_first=True):
        self.both = plait.Linear(3, 8, rngs=plait.Rngs(0))
        self.last = plait.Linear(4, 2, rngs=plait.Rngs(1))
        self.function, self.gate_first = function, gate_first

    def __call__(self, x):
        halves = jnp.split(self.both(x), 2, axis=-1)
        gate, up = halves if self.gate_first else halves[::-1]
        return self.last(self.function(gate) * up)


def test_a_gate_of_another_half_or_function():
    found = plait.compare(Gated(jnp.tanh), Gated(jnp.tanh, gate_first=False), ROWS).departure
    assert found.cause.what == "made of"
    assert found.cause.a == "f(first half of both) * second half"
    assert found.cause.b == "f(second half of both) * first half"
    found = plait.compare(Gated(jnp.tanh), Gated(jnp.sin), ROWS).departure
    assert found.cause is None or found.cause.what not in ("made of", "activation"), found
    found = plait.compare(Gated(jnp.tanh, gate_first=False), Gated(jax.nn.silu, gate_first=False), ROWS).departure
    assert (found.cause.what, found.cause.a, found.cause.b) == ("activation", "tanh", "silu"), found


class Attends(plait.Module):
    """Attention whose queries, keys and values come from one layer."""

    def __init__(self, scale):
        self.qkv = plait.Linear(3, 24, rngs=plait.Rngs(0))
        self.out = plait.Linear(8, 3, rngs=plait.Rngs(1))
        self.num_heads, self.scale = 2, scale

    def __call__(self, x):
        query, key, value = (part.reshape(-1, 8, 2, 4) for part in jnp.split(self.qkv(x), 3, axis=-1))
        return self.out(jax.nn.dot_product_attention(query, key, value, scale=self.scale).reshape(-1, 8, 8))


@pytest.mark.parametrize("examples", [1, 2])
def test_attention_whose_parts_come_from_one_layer(examples):
    found = plait.compare(Attends(0.5), Attends(0.25), ROWS[:examples]).departure
    assert (found.cause.what, found.cause.a, found.cause.b) == ("scale", "1/sqrt(head_dim)", "1/head_dim"), found


class Apart(plait.Module):
    """What is made of two layers and a vector, before a third layer."""

    def __init__(self, f):
        self.first, self.second = plait.Linear(3, 4, rngs=plait.Rngs(0)), plait.Linear(3, 4, rngs=plait.Rngs(2))
        self.last = plait.Linear(4, 2, rngs=plait.Rngs(1))
        self.vector = plait.Param(jnp.arange(1.0, 5.0))
        self.f = f

    def _between(self, x):
        return self.f(self.first(x), self.second(x), self.vector[...][None, None])

    def __call__(self, x):
        return self.last(self._between(x))


wild = lambda a, b, v: jnp.sin(a * b)
ROW = jnp.asarray([[[1.0, 5.0, 2.0, 7.0]]])
BETWEEN = {  # what is made of the layers, what another model makes of it or of them, and the cause
    "a factor": (wild, lambda y: 3 * y, "scale: 1 in a, 3 in b"),
    "a factor with digits": (wild, lambda y: 1.2345678 * y, "scale: 1 in a, 1.23457 in b"),
    "a sign": (wild, lambda y: -y, "scale: 1 in a, -1 in b"),
    "a root": (wild, lambda y: 2 * y, "scale: 1 in a, sqrt(features) in b"),
    "one over a root": (wild, lambda y: y / 2, "scale: 1 in a, 1/sqrt(features) in b"),
    "rows reversed": (wild, lambda y: y[::-1], "order: as it is in a, reversed along axis 0 in b"),
    "steps reversed": (wild, lambda y: y[:, ::-1], "order: as it is in a, reversed along axis 1 in b"),
    "interleaved": (wild, lambda y: y[..., jnp.array([0, 2, 1, 3])], "order: as it is in a, even entries before odd"),
    "a step later": (
        wild, lambda y: jnp.pad(y[:, :-1], ((0, 0), (1, 0), (0, 0))),
        "position: as it is in a, moved by 1 along axis 1 in b",
    ),
    "a step sooner": (
        wild, lambda y: jnp.pad(y[:, 1:], ((0, 0), (0, 1), (0, 0))),
        "position: as it is in a, moved by -1 along axis 1 in b",
    ),
    "another weight": (lambda a, b, v: a + 2 * b, lambda a, b, v: a + 3 * b, "second: times 2 in a, times 3 in b"),
    "a weight or none": (lambda a, b, v: a + 2 * b, lambda a, b, v: a, "second: times 2 in a, missing in b"),
    "none or a weight": (lambda a, b, v: 3 * b, lambda a, b, v: a + 3 * b, "first: missing in a, times 1 in b"),
    "two other weights": (lambda a, b, v: a + 2 * b, lambda a, b, v: 2 * a + 3 * b, None),
    "a term less": (lambda a, b, v: wild(a, b, v) + b, wild, "second: added in a, missing in b"),
    "a term more": (wild, lambda a, b, v: wild(a, b, v) + b, "second: missing in a, added in b"),
    "half a term less": (lambda a, b, v: wild(a, b, v) + b / 2, wild, "second: 0.5 times added in a, missing in b"),
    "two terms more": (wild, lambda a, b, v: wild(a, b, v) + 2 * b, "second: missing in a, 2 times added in b"),
    "an odd part of a term": (wild, lambda a, b, v: wild(a, b, v) + 0.7 * b, None),
    "a parameter": (lambda a, b, v: wild(a, b, v) + v, wild, "vector: added in a, missing in b"),
    "a vector": (lambda a, b, v: wild(a, b, v) + ROW, wild, "bias: with a vector added in a, without it in b"),
    "another source": (lambda a, b, v: jnp.tanh(a), lambda a, b, v: jnp.tanh(b), "made of: first in a, second in b"),
    "two sources": (lambda a, b, v: jnp.tanh(a), lambda a, b, v: jnp.tanh(a + b), "made of: first in a, first + sec"),
    "a function": (lambda a, b, v: jnp.tanh(a), lambda a, b, v: jax.nn.silu(a), "activation: tanh in a, silu in b"),
    "both": (
        lambda a, b, v: jnp.tanh(a), lambda a, b, v: jax.nn.silu(b),
        "terms, activation: first, tanh in a, second, silu in b",
    ),
    "the gate": (
        lambda a, b, v: jnp.tanh(a) * b, lambda a, b, v: jnp.tanh(b) * a,
        "made of: f(first) * second in a, f(second) * first in b",
    ),
    "what cannot be known": (wild, lambda a, b, v: jnp.cos(a * b), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_done_between_layers_is_the_cause(name):
    """CM7: with how far the outputs are apart, and how far the first is from the second with the second's setting."""
    f, change, text = BETWEEN[name]
    g = change if change.__code__.co_argcount == 3 else lambda a, b, v: change(f(a, b, v))
    a, b = Apart(f), Apart(g)
    a.unlike, b.other = plait.Param(jnp.asarray([0.3, 2.0, -1.0, 4.0])), plait.Param(jnp.asarray([9.0]))
    found = plait.compare(a, b, ROWS).departure
    assert (found.path, found.inside) == ("", "in its own code, after second: what it passes to last departs already")
    if text is None:
        assert found.cause is None
        return
    assert str(found.cause).startswith(text)
    assert found.cause.before == pytest.approx(float(jnp.abs(a._between(ROWS) - b._between(ROWS)).max()), rel=1e-6)
    assert found.cause.after is not None
    assert 0 <= found.cause.after < 1e-6
    assert found.cause.explains


class Own(plait.Module):
    """A parameter that no formula knows."""

    def __init__(self, value):
        self.same = plait.Param(jnp.ones(3))
        self.other = plait.Param(value)

    def __call__(self, x):
        weights = self.other[...].reshape(-1)
        return x * jnp.sin(jnp.arange(1.0, weights.size + 1) @ jnp.cos(weights)) + jnp.sinh(x * weights[0])


def numbers(*shape):
    return jax.random.normal(jax.random.key(0), shape)


PARAMETERS = {
    "transposed": (numbers(2, 3), lambda v: v.T, "transposed"),
    "of another size": (numbers(2, 3), lambda v: v[:, :2], "of shape (2, 2), not (2, 3)"),
    "reversed": (numbers(2, 3), lambda v: v[::-1], "reversed along axis 0"),
    "reversed otherwise": (numbers(2, 3), lambda v: v[:, ::-1], "reversed along axis 1"),
    "with its window reversed": (numbers(3, 2, 4, 5), lambda v: v[::-1, ::-1], "with the window reversed"),
    "with one axis of the window reversed": (numbers(3, 2, 4, 5), lambda v: v[:, ::-1], "reversed along axis 1"),
    "with both features reversed": (numbers(3, 2, 4, 5), lambda v: v[..., ::-1, ::-1], "with other values"),
    "with other values": (numbers(2, 3), lambda v: v + 1, "with other values"),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_that_differs_is_described(name):
    """Without a formula that uses it, it was only compared."""
    value, change, text = PARAMETERS[name]
    found = plait.compare(Own(value), Own(change(value)), ROWS).departure
    assert (found.cause.what, found.cause.a, found.cause.b, found.cause.after) == ("other", "as it is", text, None)
    assert found.cause.before == pytest.approx(found.output.largest)
    assert str(found.cause) == f"other: as it is in a, {text} in b"


def test_a_parameter_of_another_shape_with_the_same_numbers_is_no_cause():
    value = numbers(2, 3)
    assert plait.compare(Own(value), Own(value.reshape(6)), ROWS).agrees


def test_of_two_dtypes_the_narrower_is_told_on_its_side():
    for dtype, name in ((jnp.bfloat16, "bfloat16"), (jnp.float16, "float16")):
        narrow = lambda a, b, v, dtype=dtype: wild(a, b, v).astype(dtype).astype(jnp.float32)
        for first, second, names in ((narrow, wild, (name, "float32")), (wild, narrow, ("float32", name))):
            cause = plait.compare(Apart(first), Apart(second), ROWS).departure.cause
            assert (cause.what, cause.a, cause.b, cause.after) == ("precision", *names, None)
            assert 0 < cause.before < 1e-2


class Doubled(plait.Module):
    """Gives back numbers of a dtype."""

    def __init__(self, dtype):
        self.dtype = dtype

    def __call__(self, x):
        return (2 * x).astype(self.dtype)


def test_integers_are_no_other_precision():
    """The numbers of the other model are exact in bfloat16, and as near as its roundings."""
    a, b, x = Doubled(jnp.float32), Doubled(jnp.int32), jnp.asarray([[1.5, 50.25, -20.0]])
    for first, second in ((a, b), (b, a)):
        found = plait.compare(first, second, x).departure
        assert (found.path, found.cause) == ("", None)


class Taking(plait.Module):
    """A layer that takes the input, or one that takes nothing."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        return self.layer(x) if isinstance(self.layer, plait.Linear) else self.layer()


class Giving(plait.Module):
    def __init__(self, kernel):
        self.kernel = plait.Param(kernel)

    def __call__(self):
        return jnp.sin(ROWS @ self.kernel[...])


@pytest.mark.parametrize(("change", "cause"), [(0.0, None), (1.0, "kernel: as it is in a, with other values in b")])
def test_a_layer_whose_counterpart_takes_nothing_has_no_formula(change, cause):
    """Its parameters are compared all the same."""
    linear = plait.Linear(3, 4, rngs=plait.Rngs(0))
    a, b = Taking(linear), Taking(Giving(linear.kernel[...] + change))
    for first, second in ((a, b), (b, a)):
        found = plait.compare(first, second, ROWS).departure
        assert (found.path, found.inputs) == ("layer", None)
        assert (found.cause and str(found.cause)) == cause


class Masked(plait.Module):
    def __init__(self, diagonal):
        self.inner = Masking()
        self.diagonal = diagonal

    def __call__(self, x):
        n = x.shape[1]
        return self.inner(x, jnp.tri(n, k=self.diagonal, dtype=bool)[None])


class Masking(plait.Module):
    def __call__(self, x, mask):
        return jnp.where(mask[..., None], x[:, None], 0.0).sum(2)


def test_masks_are_told_by_name():
    names = {0: "causal", 1: "causal, one step too far", -1: "causal, without the step itself", 8: "none"}
    for diagonal, name in names.items():
        if diagonal:
            found = plait.compare(Masked(0), Masked(diagonal), ROWS).departure
            cause = found.cause
            assert (found.path, cause.what, cause.a, cause.b, cause.before, cause.after) == (
                "", "mask", "causal", name, 1.0, 0.0,
            )  # fmt: skip
    found = plait.compare(Masked(0), Masked(3), ROWS).departure
    assert (found.path, found.cause) == ("", None)


def test_a_cause_says_how_much_remains():
    known = Cause("epsilon", "1e-06", "0.01", 0.12345, 1.5e-7)
    assert str(known) == "epsilon: 1e-06 in a, 0.01 in b (with the setting of b, a differs by 1.5e-07 instead of 0.123)"
    assert str(Cause("strides", "2", "1", math.inf, 1.5e-7)) == (
        "strides: 2 in a, 1 in b (with the setting of b, a has its shape, and differs by 1.5e-07)"
    )
    assert str(Cause("kernel", "as it is", "transposed", 1.0, None)) == "kernel: as it is in a, transposed in b"
    assert [Cause("x", "1", "2", 1.0, after).explains for after in (None, 0.0, 0.24, 0.25, 1.0)] == [True] * 3 + [
        False
    ] * 2


class Sines(plait.Module):
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return jnp.sin(self.factor * x)


def test_a_layer_of_one_feature_is_no_norm():
    """Its variance without bias is undefined."""

    class Net(plait.Module):
        def __init__(self, factor):
            self.sines = Sines(factor)

        def __call__(self, x):
            return self.sines(x)

    found = plait.compare(Net(1.0), Net(2.0), ROWS[..., :1]).departure
    assert (found.path, found.cause) == ("sines", None)
