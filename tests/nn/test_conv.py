import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ShapeError
from tests.nn.twins import HALF_TOLERANCE, Encoder, assert_twins_agree, flax_nnx, some_input
from tests.sampling import slow_but

PADDINGS = ["SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", "SAME_LOWER", 1, ((1, 2),), (2,)]


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=8)
@given(
    st.sampled_from(PADDINGS),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 2),
    st.sampled_from([(), (2,), (2, 1)]),
)
def test_conv_is_flax_s_in_one_dimension(padding, size, stride, dilation, batch):
    options = {"padding": padding, "kernel_dilation": dilation}
    assert_twins_agree("Conv", (2, 3, (size,), stride), options, some_input(*batch, 7, 2), gradients=False)


CONV = [
    ((4, 6, (3, 2)), {"feature_group_count": 2}, (2, 5, 5, 4)),
    ((2, 3, (3, 2), (2, 1)), {"padding": "CIRCULAR", "kernel_dilation": (1, 2)}, (2, 5, 5, 2)),
    ((2, 3, (3, 3)), {"padding": "REFLECT", "use_bias": False}, (2, 5, 5, 2)),
    ((2, 3, (3, 3)), {"padding": (1, (0, 2)), "input_dilation": (2, 1)}, (1, 5, 5, 2)),
    ((2, 3, (2, 2, 2)), {"strides": None, "input_dilation": None, "kernel_dilation": None}, (1, 3, 4, 5, 2)),
    ((2, 3, 3), {}, (4, 2)),
    ((2, 3, [3]), {"mask": np.tri(6, 3, dtype=np.float32).reshape(3, 2, 3)}, (1, 4, 2)),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("args", "options", "shape"), slow_but(CONV[::3], CONV))
def test_conv_is_flax_s(args, options, shape):
    gradients = len(shape) < 5  # those of three dimensions take long to compile
    options = {name: jnp.asarray(value) if name == "mask" else value for name, value in options.items()}
    assert_twins_agree("Conv", args, options, some_input(*shape), gradients=gradients)


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_conv_computes_in_flax_s_dtype(dtype):
    assert_twins_agree("Conv", (2, 3, 3), {"dtype": dtype}, some_input(1, 4, 2, dtype=jnp.bfloat16), HALF_TOLERANCE)


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=6)
@given(
    st.sampled_from(["SAME", "VALID", "CIRCULAR", 1, ((1, 2),)]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_conv_transpose_is_flax_s_in_one_dimension(padding, size, stride, dilation, transpose_kernel):
    options = {"padding": padding, "kernel_dilation": dilation, "transpose_kernel": transpose_kernel}
    assert_twins_agree("ConvTranspose", (2, 3, (size,), stride), options, some_input(2, 4, 2), gradients=False)


@pytest.mark.oracle
@pytest.mark.parametrize("padding", ["SAME", "CIRCULAR", ((1, 0), (2, 1))])
def test_conv_transpose_is_flax_s_in_two_dimensions(padding):
    options = {"padding": padding, "strides": (2, 3)}
    assert_twins_agree("ConvTranspose", (2, 3, (3, 2)), options, some_input(3, 4, 2))


def test_causal_outputs_do_not_see_what_comes_later():
    layer = plait.Conv(1, 1, 3, padding="CAUSAL", kernel_dilation=2, rngs=plait.Rngs(0))
    x = some_input(8, 1)
    np.testing.assert_array_equal(layer(x)[:5], layer(x.at[5:].set(0.0))[:5])


def test_circular_outputs_move_with_the_input():
    layer = plait.Conv(2, 3, (3,), padding="CIRCULAR", rngs=plait.Rngs(0))
    x = some_input(8, 2)
    np.testing.assert_allclose(layer(jnp.roll(x, 3, 0)), jnp.roll(layer(x), 3, 0), rtol=1e-5, atol=1e-5)


def test_a_mask_hides_part_of_the_kernel():
    mask = jnp.zeros((3, 1, 1)).at[1].set(1.0)
    layer = plait.Conv(1, 1, 3, mask=mask, rngs=plait.Rngs(0))
    np.testing.assert_allclose(layer(jnp.ones((5, 1))), jnp.broadcast_to(layer.kernel[1], (5, 1)), rtol=1e-6)


def test_missing_spatial_axes_are_named():
    model = Encoder(plait.Conv(3, 4, (2, 2), rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"at +encoder\.layers\[3\].*\s+found .*\(5, 3\)\s+expected +at least 3 axes"):
        model(jnp.ones((5, 3)))


def test_a_mask_of_another_shape_names_both():
    model = Encoder(plait.Conv(3, 4, (2,), mask=jnp.ones((2, 3)), rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"encoder\.layers\[3\].*\s+found .*\(2, 3\)\s+expected +shape \(2, 3, 4\)"):
        model(jnp.ones((1, 5, 3)))


@pytest.mark.parametrize(("sizes", "name"), [((3, 4), "in_features"), ((4, 3), "out_features")])
def test_groups_must_divide_the_channels(sizes, name):
    with pytest.raises(ArgumentError, match=rf"feature_group_count=2 and {name}=3"):
        plait.Conv(*sizes, (2,), feature_group_count=2, rngs=plait.Rngs(0))


ALL_NAMES = "'SAME', 'SAME_LOWER', 'VALID', 'CIRCULAR', 'REFLECT'"
TRANSPOSED = "'SAME', 'VALID', 'CIRCULAR'"
BAD_PADDINGS = [
    *((plait.Conv, (2,), 1, padding, f"{ALL_NAMES}, 'CAUSAL', a") for padding in ("equal", (1, 2), ((1, 2), 3), None)),
    (plait.Conv, (2, 2), 1, "causal", f"{ALL_NAMES}, a"),
    *((plait.ConvTranspose, (2,), 1, name, f"{TRANSPOSED}, 'SAME_LOWER', a") for name in ("reflect", "CAUSAL")),
    (plait.ConvTranspose, (2,), 2, "SAME_LOWER", f"{TRANSPOSED}, a"),
]


@pytest.mark.parametrize(("kind", "size", "strides", "padding", "known"), BAD_PADDINGS)
def test_a_padding_of_no_known_form_is_refused(kind, size, strides, padding, known):
    """L13, L14: the names that this layer takes are listed, and no others."""
    model = Encoder(kind(3, 4, size, strides, padding=padding, rngs=plait.Rngs(0)))
    expected = rf"at +encoder\.layers\[3\].*\s+found +padding=.*\s+expected +{known}"
    with pytest.raises(ArgumentError, match=expected):
        model(jnp.ones((1, *(5 for _ in size), 3)))


NAMED = [(plait.Conv, name) for name in PADDINGS if isinstance(name, str)]
NAMED += [(plait.ConvTranspose, name) for name in ("SAME", "VALID", "CIRCULAR", "SAME_LOWER")]


@pytest.mark.parametrize(("kind", "padding"), NAMED)
def test_paddings_are_named_in_upper_or_lower_case(kind, padding):
    """L13, L14."""
    x = some_input(1, 5, 3)
    make = lambda name: kind(3, 4, (2,), padding=name, rngs=plait.Rngs(0))
    for name in (padding.lower(), padding.title()):
        np.testing.assert_array_equal(make(name)(x), make(padding)(x))


def channels_first(x, kernel, strides, padding, *, dimension_numbers, **options):
    return jax.lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=("NCH", "HIO", "NCH"), **options)


@pytest.mark.parametrize("batch", [(), (2,), (2, 2)])
def test_a_replaced_convolution_may_take_other_axes(batch):
    """L13."""
    ours = plait.Conv(3, 4, 2, rngs=plait.Rngs(0), use_bias=False)
    theirs = plait.Conv(3, 4, 2, rngs=plait.Rngs(0), use_bias=False, conv_general_dilated=channels_first)
    x = some_input(*batch, 5, 3)
    np.testing.assert_allclose(jnp.swapaxes(theirs(jnp.swapaxes(x, -1, -2)), -1, -2), ours(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [plait.Conv, plait.ConvTranspose])
@pytest.mark.parametrize("options", [{"strides": (1, 1)}, {"padding": (1, 1)}], ids=str)
def test_options_for_images_need_a_kernel_for_images(layer, options):
    (option,) = options
    layer = layer(3, 4, 2, **options, rngs=plait.Rngs(0))
    with pytest.raises(ArgumentError, match=rf"(?s){option}=\(1, 1\).*for images, kernel_size=\(2, 2\)"):
        layer(jnp.ones((1, 5, 5, 3)))


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize("mask", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_kernel_and_mask_are_multiplied_in_their_common_dtype_as_in_flax(kind, mask):
    outputs = []
    for nnx in (plait, flax_nnx()):
        options = {"mask": jnp.full((3, 4, 8), 1, mask) * jnp.asarray(1, mask), "param_dtype": jnp.bfloat16}
        layer = getattr(nnx, kind)(4, 8, (3,), **options, rngs=nnx.Rngs(0))
        with jax.numpy_dtype_promotion("standard"):
            outputs.append(layer(some_input(1, 6, 4).astype(jnp.bfloat16)))
    assert outputs[0].dtype == outputs[1].dtype
    np.testing.assert_array_equal(*(y.astype(jnp.float32) for y in outputs))
