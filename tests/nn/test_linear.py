import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError
from tests.nn.twins import HALF_TOLERANCE, Encoder, assert_twins_agree, some_input, twins

sizes = st.integers(1, 3)
batches = st.lists(sizes, max_size=2)


@pytest.mark.oracle
@settings(max_examples=4)
@given(batches, sizes, sizes, st.booleans())
def test_linear_is_flax_s(batch, n_in, n_out, use_bias):
    assert_twins_agree("Linear", (n_in, n_out), {"use_bias": use_bias}, some_input(*batch, n_in))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("x_dtype", [jnp.bfloat16, jnp.int32])
@pytest.mark.parametrize("preferred", [None, jnp.float32])
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
@pytest.mark.parametrize(("args", "options", "shape"), GENERAL)
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


def test_arguments_are_kept_under_their_names():
    layer = plait.Linear(2, 3, use_bias=False, precision="highest", dtype=jnp.bfloat16, rngs=plait.Rngs(0))
    kept = (layer.in_features, layer.out_features, layer.use_bias, layer.precision, layer.dtype)
    assert kept == (2, 3, False, "highest", jnp.bfloat16)
    assert layer.bias is None


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


def test_a_wrong_last_axis_names_the_path_and_both_lengths():
    model = Encoder(plait.Linear(3, 4, rngs=plait.Rngs(0)))
    expected = r"at +encoder\.layers\[3\] \(a Linear\)\s+found +.*\(2, 5\)\s+expected +.*in_features=3"
    with pytest.raises(ShapeError, match=expected):
        model(jnp.ones((2, 5)))


def test_the_path_is_named_under_jit_too():
    model = Encoder(plait.Linear(3, 4, rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"at +encoder\.layers\[3\] \(a Linear\)"):
        plait.jit(lambda model, x: model(x))(model, jnp.ones((2, 5)))


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
