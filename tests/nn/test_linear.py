import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError
from tests.nn.twins import HALF_TOLERANCE, Encoder, assert_twins_agree, flax_nnx, some_input, twins, users_promotion
from tests.sampling import slow_but

sizes = st.integers(1, 3)
batches = st.lists(sizes, max_size=2)


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=4)
@given(batches, sizes, sizes, st.booleans())
def test_linear_is_flax_s(batch, n_in, n_out, use_bias):
    assert_twins_agree("Linear", (n_in, n_out), {"use_bias": use_bias}, some_input(*batch, n_in))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("x_dtype", [jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("preferred", slow_but([None], [None, jnp.float32]))
def test_linear_computes_in_flax_s_dtype(dtype, x_dtype, preferred):
    options = {"dtype": dtype, "preferred_element_type": preferred}
    assert_twins_agree("Linear", (3, 4), options, some_input(2, 3, dtype=x_dtype), HALF_TOLERANCE)


GENERAL = [
    ((3, 4), {}, (2, 3)),
    (((2, 3), (4, 5)), {"axis": (-2, -1)}, (7, 2, 3)),
    (((2, 3), 4), {"axis": (-1, 1)}, (7, 2, 3)),
    ((3, 4), {"axis": 1, "use_bias": False}, (2, 3, 5)),
    ((3, (4, 2)), {"batch_axis": {0: 2}}, (2, 5, 3)),
    (((2, 3), 4), {"axis": (3, 2), "batch_axis": {0: 2, 1: 5}}, (2, 5, 2, 3)),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("args", "options", "shape"), slow_but(GENERAL[::2], GENERAL))
def test_linear_general_is_flax_s(args, options, shape):
    assert_twins_agree("LinearGeneral", args, options, some_input(*shape))


EINSUM = [
    ("ab,bc->ac", (3, 4), (4,), (2, 3)),
    ("nta, hab -> nthb", (8, 3, 2), (8, 2), (5, 4, 3)),
    ("abc,cde->aebd", (3, 2, 5), (5, 2), (2, 4, 3)),
    ("...a,ab->...b", (3, 4), (4,), (2, 5, 3)),
    ("ab,bc->ac", (3, 4), None, (2, 3)),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("equation", "kernel", "bias", "shape"), EINSUM)
def test_einsum_is_flax_s(equation, kernel, bias, shape):
    assert_twins_agree("Einsum", (equation, kernel, bias), {}, some_input(*shape))


def test_the_call_may_bring_its_own_equation():
    layer = plait.Einsum("ab,bc->ac", (3, 4), (4,), rngs=plait.Rngs(0))
    x = some_input(2, 5, 3)
    np.testing.assert_allclose(layer(x, "dab,bc->dac")[1], layer(x[1]), rtol=1e-5, atol=1e-5)


@pytest.mark.oracle
def test_the_metadata_of_an_initializer_survives_the_reshape():
    init = plait.with_metadata(plait.initializers.lecun_normal(), note="demo")
    layer = plait.LinearGeneral((2, 3), 4, axis=(-2, -1), kernel_init=init, rngs=plait.Rngs(0))
    expected, _ = twins("LinearGeneral", (2, 3), 4, axis=(-2, -1))
    assert layer.kernel.note == "demo"
    np.testing.assert_array_equal(layer.kernel.value, expected.kernel.value)


def test_metadata_of_the_constructor_reaches_the_parameters():
    layer = plait.Linear(2, 3, rngs=plait.Rngs(0), kernel_metadata={"a": 1}, bias_metadata={"b": 2})
    assert (layer.kernel.a, layer.bias.b) == (1, 2)


@pytest.mark.parametrize("use_bias", [True, False])
def test_each_parameter_draws_one_key(use_bias):
    rngs = plait.Rngs(params=0)
    plait.Linear(2, 3, use_bias=use_bias, rngs=rngs)
    assert int(rngs.params.count[...]) == 1 + use_bias


def test_a_replaced_product_gets_only_what_is_set():
    seen = []

    def dot_general(*args, **kwargs):
        seen.append(set(kwargs))
        return jax.lax.dot_general(*args, **kwargs)

    plait.Linear(2, 3, dot_general=dot_general, rngs=plait.Rngs(0))(jnp.ones(2))
    plait.LinearGeneral(2, 3, dot_general_cls=lambda: dot_general, rngs=plait.Rngs(0))(jnp.ones(2))
    assert seen == [{"precision"}, {"precision"}]


def over_the_first(x, kernel, dimensions, **options):
    return jax.lax.dot_general(x, kernel, (((0,), (0,)), ((), ())), **options)


OTHER_AXES = {
    "Linear": lambda rngs: plait.Linear(3, 4, dot_general=over_the_first, rngs=rngs),
    "LinearGeneral": lambda rngs: plait.LinearGeneral(3, 4, dot_general=over_the_first, rngs=rngs),
    "its dot_general_cls": lambda rngs: plait.LinearGeneral(3, 4, dot_general_cls=lambda: over_the_first, rngs=rngs),
    "Einsum": lambda rngs: plait.Einsum(
        "...a,ab->...b", (3, 4), (4,), einsum_op=lambda _, x, w, **__: jnp.einsum("a...,ab->...b", x, w), rngs=rngs
    ),
}


@pytest.mark.parametrize("make", OTHER_AXES.values(), ids=OTHER_AXES)
def test_a_replaced_product_may_contract_other_axes(make):
    """L10-L12: the last axis is that of plait's own product."""
    x = some_input(3, 5)
    np.testing.assert_allclose(make(plait.Rngs(0))(x), plait.Linear(3, 4, rngs=plait.Rngs(0))(x.T), rtol=1e-5)


def test_the_advice_of_the_shape_error_works():
    with pytest.raises(ShapeError, match=r"plait\.Linear\(5, 4, rngs=rngs\)"):
        plait.Linear(3, 4, rngs=plait.Rngs(0))(jnp.ones((2, 5)))
    assert plait.Linear(5, 4, rngs=plait.Rngs(0))(jnp.ones((2, 5))).shape == (2, 4)


def test_linear_general_names_the_axis_that_does_not_fit():
    model = Encoder(plait.LinearGeneral((4, 3), 2, axis=(-2, -1), rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"axis 0 .*\s+at +encoder\.layers\[3\].*\s+found .*\(5, 3\)\s+expected +4"):
        model(jnp.ones((5, 3)))


def test_axes_and_lengths_must_be_as_many():
    with pytest.raises(ArgumentError, match=r"in_features=\(4, 3\) and axis=\(-1,\)"):
        plait.LinearGeneral((4, 3), 2, rngs=plait.Rngs(0))


def test_batch_axes_must_lead():
    with pytest.raises(ArgumentError, match=r"batch_axis=\{1: 2\}"):
        plait.LinearGeneral(4, 3, batch_axis={1: 2}, rngs=plait.Rngs(0))


@pytest.mark.parametrize("equation", ["ab,bc", "abc->abc", "ab,bc,cd->ad"])
def test_an_equation_needs_two_operands_and_an_output(equation):
    with pytest.raises(ArgumentError, match=f"found +'{equation}'"):
        plait.Einsum(equation, (3, 4), rngs=plait.Rngs(0))


def test_a_bias_that_does_not_fit_names_both_shapes():
    layer = plait.Einsum("ab,bc->ac", (3, 4), (5,), rngs=plait.Rngs(0))
    with pytest.raises(ShapeError, match=r"bias_shape=\(5,\).*\s+expected +bias_shape=\(4,\)"):
        layer(jnp.ones((2, 3)))


# equation, kernel_shape, bias_shape, the shape of the input
BIASES = {
    "a number": ("ab,bc->ac", (3, 4), 4, (2, 3)),
    "axes under the kernel's ellipsis": ("i...a,ab...->i...b", (4, 5, 6), (6, 5), (2, 6, 4)),
    "moved": ("...a,ab...->b...", (4, 5, 6), (5, 6), (6, 4)),
    "moved, with more axes of the input": ("...a,ab...->b...", (4, 5, 6), (5, 6), (2, 6, 4)),
    "an input with fewer axes": ("...a,...ab->...b", (6, 4, 5), (6, 5), (4,)),
    "an input with an axis of length 1": ("...a,...ab->...b", (6, 4, 5), (6, 5), (1, 4)),
    "a kernel with an axis of length 1": ("...a,...ab->...b", (1, 4, 5), (1, 5), (6, 4)),
    "a bias that leaves such an axis out": ("...a,...ab->...b", (1, 4, 5), (5,), (6, 4)),
    "two axes, of which the input has one": ("...a,...ab->...b", (7, 6, 4, 5), (7, 6, 5), (6, 4)),
    "no letter in the output": ("...a,...a->...", (6, 4), (6,), (2, 6, 4)),
    "an ellipsis of the input alone": ("...a,ab->...b", (4, 5), (5,), (2, 6, 4)),
}  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(list(BIASES)[::3], BIASES))
def test_the_bias_of_an_einsum_lies_where_flax_s_does(name):
    case = BIASES[name]
    equation, kernel_shape, bias_shape, shape = case
    outputs = []
    for nnx in (plait, flax_nnx()):
        init = nnx.initializers.normal(1.0)
        layer = nnx.Einsum(equation, kernel_shape, bias_shape, bias_init=init, rngs=nnx.Rngs(0))
        with users_promotion():
            outputs.append(layer(some_input(*shape)))
    np.testing.assert_array_equal(*outputs)


def test_a_bias_under_an_ellipsis_that_does_not_fit():
    layer = plait.Einsum("...a,...ab->...b", (6, 4, 5), (5,), rngs=plait.Rngs(0))
    with pytest.raises(ShapeError, match=r"expected +bias_shape=\(6, 5\)"):
        layer(jnp.ones((6, 4)))


# name, arguments, other options, the shape of the input; ``a`` makes an array or a number of NumPy
NUMPY_SIZES = {
    "axis": ("LinearGeneral", lambda a: ((3, 5), (4,)), lambda a: {"axis": a([0, 1])}, (3, 5)),
    "features": ("LinearGeneral", lambda a: (a([3, 5]), a([4, 2])), lambda a: {"axis": (0, 1)}, (3, 5)),
    "a number": ("LinearGeneral", lambda a: (a(3), a(4)), lambda a: {"axis": a(-1)}, (2, 3)),
    "Einsum": ("Einsum", lambda a: ("ab,bc->ac", a([3, 4]), a([4])), lambda a: {}, (2, 3)),
    "Conv": (
        "Conv", lambda a: (a(3), 4, a([3, 3])), lambda a: {"strides": a([1, 2]), "padding": a([[1, 1], [0, 2]])},
        (1, 5, 5, 3),
    ),
    "ConvTranspose": ("ConvTranspose", lambda a: (a(3), 4, a([3])), lambda a: {"strides": a([2])}, (1, 5, 3)),
    "LayerNorm": (
        "LayerNorm", lambda a: (3,), lambda a: {"reduction_axes": a([1, 2]), "feature_axes": a([-1])}, (5, 5, 3),
    ),
    "a number in LayerNorm": (
        "LayerNorm", lambda a: (3,), lambda a: {"reduction_axes": a(-1), "feature_axes": a(-1)}, (5, 3),
    ),
    "RMSNorm": ("RMSNorm", lambda a: (3,), lambda a: {"reduction_axes": a([1, 2])}, (5, 5, 3)),
    "BatchNorm": ("BatchNorm", lambda a: (3,), lambda a: {"axis": a(-1)}, (5, 3)),
    "GroupNorm": ("GroupNorm", lambda a: (4, 2), lambda a: {"reduction_axes": a([1, 2])}, (2, 3, 4)),
    "InstanceNorm": ("InstanceNorm", lambda a: (4,), lambda a: {"feature_axes": a([-1])}, (2, 3, 4)),
    "Dropout": ("Dropout", lambda a: (0.5,), lambda a: {"broadcast_dims": a([0])}, (2, 3)),
}  # fmt: skip


def plain_sizes(x):
    return tuple(map(plain_sizes, x)) if isinstance(x, list) else x


def numpy_sizes(x):
    return np.array(x) if isinstance(x, list) else np.int64(x)


@pytest.mark.oracle
@pytest.mark.parametrize("name", slow_but(["BatchNorm", "Einsum", "axis"], NUMPY_SIZES))
def test_sizes_and_axes_may_be_numpy_s(name):
    kind, args, options, shape = NUMPY_SIZES[name]
    x = some_input(*shape)

    def made(nnx, a):
        return getattr(nnx, kind)(*args(a), **options(a), rngs=nnx.Rngs(0))

    layer, plain = made(plait, numpy_sizes), made(plait, plain_sizes)
    with users_promotion():
        np.testing.assert_array_equal(layer(x), made(flax_nnx(), plain_sizes)(x))
    plain(x)  # draws the first key of a Dropout, as above
    run = plait.jit(lambda layer, x: layer(x))
    np.testing.assert_array_equal(run(layer, x), run(plain, x))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda rngs: plait.Linear(4, 3, rngs=rngs), (2, 4)),
        (lambda rngs: plait.LinearGeneral(4, (2, 2), rngs=rngs), (2, 4)),
        (lambda rngs: plait.Einsum("ab,bc->ac", (4, 3), (3,), rngs=rngs), (2, 4)),
        (lambda rngs: plait.Conv(4, 3, (1,), rngs=rngs), (2, 5, 4)),
        (lambda rngs: plait.ConvTranspose(4, 3, (1,), rngs=rngs), (2, 5, 4)),
        (lambda rngs: plait.LayerNorm(4, rngs=rngs), (2, 4)),
        (lambda rngs: plait.BatchNorm(4, rngs=rngs), (2, 4)),
        (lambda rngs: plait.GroupNorm(4, num_groups=2, rngs=rngs), (2, 4)),
        (lambda rngs: plait.LoRALinear(4, 4, lora_rank=2, rngs=rngs), (2, 4)),
        (lambda rngs: plait.RNN(plait.LSTMCell(4, 3, rngs=rngs), rngs=rngs), (1, 2, 4)),
    ],
)
def test_a_parameter_may_be_an_array(make, x):
    """G38: `update` with raw values sets arrays where `pop` took the variables away."""
    layer, expected = make(plait.Rngs(0)), make(plait.Rngs(0))
    state = plait.pop(layer, plait.Param)
    plait.update(layer, plait.pure(state))
    assert state
    assert not plait.state(layer, plait.Param)
    np.testing.assert_array_equal(layer(jnp.ones(x)), expected(jnp.ones(x)))
