import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentError, ArgumentTypeError, StreamError, StreamKeyError
from tests.nn.twins import Encoder, flax_nnx, some_input, users_promotion
from tests.sampling import slow_but


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=5)
@given(
    st.sampled_from([0.1, 0.5, 0.9]),
    st.sampled_from([(), (0,), (1,), (-1, 0)]),
    st.sampled_from(["float32", "bfloat16"]),
    st.sampled_from([{"default": 3}, {"dropout": 4}, {"default": 3, "dropout": 4}]),
)
def test_masks_are_flax_s_call_after_call(rate, broadcast_dims, dtype, seeds):
    nnx = flax_nnx()
    x = some_input(4, 6, dtype=dtype)
    ours = plait.Dropout(rate, broadcast_dims=broadcast_dims, rngs=plait.Rngs(**seeds))
    theirs = nnx.Dropout(rate, broadcast_dims=broadcast_dims, rngs=nnx.Rngs(**seeds))
    for _ in range(2):
        with users_promotion():
            expected = theirs(x)
        np.testing.assert_array_equal(ours(x), expected)


def sources(lib):
    return [lib.Rngs(dropout=1), lib.Rngs(1), lib.RngStream(1, tag="any"), jax.random.key(7), jax.random.PRNGKey(7)]


@pytest.mark.oracle
@pytest.mark.parametrize("source", range(5))
def test_the_call_s_own_source_draws_what_flax_draws(source):
    nnx, x = flax_nnx(), some_input(8)
    with users_promotion():
        expected = nnx.Dropout(0.5)(x, rngs=sources(nnx)[source])
    np.testing.assert_array_equal(plait.Dropout(0.5)(x, rngs=sources(plait)[source]), expected)


@pytest.mark.parametrize("where", ["here", "in the call"])
@pytest.mark.parametrize("name", ["dropout", "noise"])
def test_keys_come_from_the_stream_that_is_named(name, where):
    """Also when only that stream is there, and not from another that is there too."""
    x = jnp.ones(64)

    def run(**seeds):
        rngs = plait.Rngs(**seeds)
        if where == "here":
            return plait.Dropout(0.5, rng_collection=name, rngs=rngs)(x)
        return plait.Dropout(0.5, rng_collection=name)(x, rngs=rngs)

    alone = run(**{name: 3})
    np.testing.assert_array_equal(run(**{name: 3, "params": 4, "other": 5}), alone)
    np.testing.assert_array_equal(run(**{"default": 4, name: 3}), alone)
    assert (run(**{name: 4}) != alone).any()
    with pytest.raises(StreamKeyError, match=repr(name)):
        run(params=3)


def test_the_expected_value_is_kept():
    y = plait.Dropout(0.25, rngs=plait.Rngs(0))(jnp.ones(100_000))
    assert abs(float(y.mean()) - 1.0) < 0.01
    np.testing.assert_allclose(np.unique(y), [0.0, 4 / 3], rtol=1e-6)


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"rate": 0.5, "deterministic": True}])
def test_identity_draws_no_key(options):
    dropout, x = plait.Dropout(**options, rngs=plait.Rngs(0)), some_input(4)
    assert dropout(x) is x
    assert int(dropout.rngs.count[...]) == 0


def test_rate_one_gives_zeros_and_needs_no_key():
    np.testing.assert_array_equal(plait.Dropout(1.0)(some_input(4)), np.zeros(4))


def test_the_stream_is_a_fork():
    rngs = plait.Rngs(0)
    first, second = plait.Dropout(0.5, rngs=rngs), plait.Dropout(0.5, rngs=rngs)
    assert int(rngs.default.count[...]) == 2
    assert not np.array_equal(first(jnp.ones(64)), second(jnp.ones(64)))


def test_integers_are_scaled_as_floats():
    y = plait.Dropout(0.5, rngs=plait.Rngs(0))(jnp.full(16, 3))
    assert set(y.tolist()) == {0.0, 6.0}


def test_an_unset_switch_names_the_path_and_three_ways_to_set_it():
    model = Encoder(plait.Dropout(0.5, deterministic=None, rngs=plait.Rngs(0)))
    expected = r"deterministic[\s\S]*encoder\.layers\[3\][\s\S]*Dropout\(\.\.\., .*layer\(x, .*plait\.view\(model"
    with pytest.raises(ArgumentError, match=expected):
        model(jnp.ones(3))


def test_a_missing_source_names_the_path_and_both_places_to_pass_it():
    model = Encoder(plait.Dropout(0.5))
    expected = r"at +encoder\.layers\[3\] \(a Dropout\)[\s\S]*constructor: Dropout\(.*call: layer\(x, rngs="
    with pytest.raises(StreamError, match=expected):
        model(jnp.ones(3))


def test_an_rngs_without_the_stream_names_it():
    with pytest.raises(StreamKeyError, match="'dropout'"):
        plait.Dropout(0.5, rngs=plait.Rngs(params=0))


@pytest.mark.parametrize("rngs", [3, jax.random.key(0), "dropout"])
def test_the_constructor_refuses_other_sources(rngs):
    expected = rf"found +an? {type(rngs).__name__}\s+expected +an Rngs, a RngStream or None"
    with pytest.raises(ArgumentTypeError, match=expected):
        plait.Dropout(0.5, rngs=rngs)


def test_the_call_refuses_other_sources():
    with pytest.raises(ArgumentTypeError, match=r"encoder\.layers\[3\].*\s+found +an int"):
        Encoder(plait.Dropout(0.5))(jnp.ones(3), rngs=3)


@pytest.mark.parametrize("rate", [-0.1, 1.5])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(ValueError, match=f"rate={rate}"):
        plait.Dropout(rate)


def explicit(*spec):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    return mesh, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("jit", "spec"),
    slow_but(
        [(True, ("a", "b"))],
        itertools.product([False, True], [("a", None), (None, "b"), ("a", "b"), (("a", "b"), None), ()]),
    ),
)
def test_an_input_on_explicit_axes_keeps_its_sharding(jit, spec):
    x = some_input(8, 8)
    mesh, sharding = explicit(*spec)
    outputs = []
    with jax.set_mesh(mesh), users_promotion():
        for nnx in (plait, flax_nnx()):
            dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
            call = nnx.jit(lambda dropout, x: dropout(x)) if jit else lambda dropout, x: dropout(x)
            outputs.append(call(dropout, jax.device_put(x, sharding)))
        assert jax.typeof(outputs[0]) == jax.typeof(outputs[1]) == jax.typeof(jax.device_put(x, sharding))
    np.testing.assert_array_equal(*map(np.asarray, outputs))
    np.testing.assert_array_equal(outputs[0], plait.Dropout(0.5, rngs=plait.Rngs(0))(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "broadcast_dims", [pytest.param((0,), marks=pytest.mark.slow), (1,), pytest.param((0, 1), marks=pytest.mark.slow)]
)
def test_a_mask_that_is_shared_along_a_sharded_axis(broadcast_dims):
    x = some_input(8, 8)
    mesh, sharding = explicit("a", "b")
    expected = plait.Dropout(0.5, broadcast_dims=broadcast_dims, rngs=plait.Rngs(0))(x)
    with jax.set_mesh(mesh):
        found = plait.Dropout(0.5, broadcast_dims=broadcast_dims, rngs=plait.Rngs(0))(jax.device_put(x, sharding))
    np.testing.assert_array_equal(found, expected)
