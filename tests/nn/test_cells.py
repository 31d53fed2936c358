import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentTypeError, ShapeError, StreamAttributeError, StreamError
from tests.nn.twins import (
    TOLERANCE,
    Encoder,
    compare,
    flax_nnx,
    pure,
    some_input,
    twins,
    users_promotion,
)
from tests.sampling import slow_but

CELLS = ["SimpleCell", "LSTMCell", "OptimizedLSTMCell", "GRUCell"]
every_cell = pytest.mark.parametrize("name", CELLS)
IS_PAIR = {"LSTMCell", "OptimizedLSTMCell"}


def make(name, *args, **options):
    return getattr(plait, name)(*args, rngs=plait.Rngs(0), **options)


def carry_of(name, *shape):
    h = some_input(*shape, seed=1)
    return (some_input(*shape, seed=2), h) if name in IS_PAIR else h


def step(lib, cell, carry, x):
    """The step's results, and the gradients of their weighted sum by parameters, carry and input."""
    graphdef, params, rest = lib.split(cell, lib.Param, ...)

    def loss(params, carry, x):
        carry, y = lib.merge(graphdef, params, rest)(carry, x)
        leaves = jax.tree.leaves((carry, y))
        return sum((jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape) * leaf).sum() for leaf in leaves), (carry, y)

    (_, out), grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))(params, carry, x)
    return out, (pure(grads[0], lib), *grads[1:])


@pytest.mark.slow
@pytest.mark.oracle
@every_cell
@settings(max_examples=2)
@given(
    batch=st.sampled_from([(), (2,), (2, 3)]),
    in_features=st.integers(1, 4),
    hidden=st.integers(1, 4),
    more=st.booleans(),
)
def test_a_step_is_flax_s_forward_and_backward(name, batch, in_features, hidden, more):
    """L29 to L32: the same parameters from the same seed, the same step, the same gradients."""
    options = {"activation_fn": jax.nn.relu, "bias_init": jax.nn.initializers.normal()} if more else {}
    if more:
        options |= {"residual": True} if name == "SimpleCell" else {"gate_fn": jax.nn.hard_sigmoid}
    ours, theirs = twins(name, in_features, hidden, **options)
    carry, x = carry_of(name, *batch, hidden), some_input(*batch, in_features)
    mine = step(plait, ours, carry, x)
    with users_promotion():
        other = step(flax_nnx(), theirs, carry, x)
    assert jax.tree.structure(mine) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
        compare(a, b, TOLERANCE, "output or gradient")


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "options"),
    slow_but(
        lambda row: row[0] in ("SimpleCell", "LSTMCell"),
        [*((name, {}) for name in CELLS), ("SimpleCell", {"residual": True})],
    ),
)
@pytest.mark.parametrize("dtype", slow_but(["bfloat16"], ["bfloat16", "float16"]))
def test_a_step_in_half_precision_is_flax_s_bit_for_bit(name, options, dtype):
    """L30 to L32: gates are multiplied in their dtype; the memory keeps its own, and is added to in that."""
    ours, theirs = twins(name, 3, 4, dtype=dtype, **options)
    carry, x = carry_of(name, 2, 4), some_input(2, 3)
    with users_promotion():
        expected = theirs(carry, x)
    for mine, other in zip(jax.tree.leaves(ours(carry, x)), jax.tree.leaves(expected), strict=True):
        assert mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other)


@pytest.mark.oracle
@every_cell
@pytest.mark.filterwarnings("ignore:keep_rngs argument is deprecated", "ignore:carry_init is provided in __init__")
@pytest.mark.parametrize("seeds", [{"default": 3}, {"params": 1, "carry": 2}])
def test_carries_are_drawn_as_flax_draws_them(name, seeds):
    """L33: one key of the stream ``carry`` for each vector; kept streams are forks."""
    nnx = flax_nnx()
    options = {"carry_init": jax.nn.initializers.normal(), "keep_rngs": True}
    ours = getattr(plait, name)(3, 4, rngs=plait.Rngs(**seeds), **options)
    theirs = getattr(nnx, name)(3, 4, rngs=nnx.Rngs(**seeds), **options)
    for rngs in [(), (1,), (1,)]:
        mine = ours.initialize_carry((2, 5, 3), *map(plait.Rngs, rngs))
        other = theirs.initialize_carry((2, 5, 3), *map(nnx.Rngs, rngs))
        for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(other), strict=True):
            np.testing.assert_array_equal(a, b)
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    for path in mine:
        np.testing.assert_array_equal(mine[path], other[path], err_msg=path)


@every_cell
def test_recurrent_kernels_start_orthogonal_in_half_precision_too(name):
    half = pure(plait.state(make(name, 3, 4, param_dtype=jnp.bfloat16)))
    for path, value in pure(plait.state(make(name, 3, 4))).items():
        assert half[path].dtype == jnp.bfloat16
        if path.startswith(("dense_h.kernel", "hi.kernel")):
            np.testing.assert_allclose(value @ value.T, np.eye(4), atol=1e-5)
            np.testing.assert_array_equal(half[path], value.astype(jnp.bfloat16))


@every_cell
def test_a_cell_holds_no_keys_unless_asked(name):
    """Ask 14."""
    assert make(name, 3, 4).rngs is None
    assert not plait.state(make(name, 3, 4), plait.RngState)
    assert isinstance(make(name, 3, 4, keep_rngs=True).rngs, plait.RngStream)


def test_the_call_s_initializer_wins_over_the_cell_s():
    cell = make("GRUCell", 3, 4, carry_init=plait.initializers.normal())
    carry = cell.initialize_carry((2, 3), plait.Rngs(0), plait.initializers.ones)
    np.testing.assert_array_equal(carry, np.ones((2, 4)))


@every_cell
def test_metadata_reaches_each_kind_of_parameter(name):
    """L4."""
    metadata = {"kernel_metadata": {"a": 1}, "recurrent_kernel_metadata": {"b": 2}, "bias_metadata": {"c": 3}}
    cell = make(name, 3, 4, **metadata)
    inner, recurrent = (cell.ii, cell.hf) if name == "LSTMCell" else (cell.dense_i, cell.dense_h)
    assert inner.kernel.get_metadata("a") == 1
    assert recurrent.kernel.get_metadata("b") == 2
    with_bias = inner if recurrent.bias is None else recurrent
    assert with_bias.bias.get_metadata("c") == 3


@every_cell
def test_a_wrong_input_names_the_path_and_both_numbers(name):
    model = Encoder(make(name, 3, 4))
    expected = rf"at +encoder\.layers\[3\] \(an? {name}\)\s+found .*\(2, 5\)\s+expected .*in_features=3"
    with pytest.raises(ShapeError, match=expected):
        model(carry_of(name, 2, 4), inputs=jnp.ones((2, 5)))


@every_cell
@pytest.mark.parametrize("wrong", ["size", "structure"])
def test_a_wrong_carry_names_the_path_and_what_it_should_be(name, wrong):
    carry = carry_of(name, 2, 5 if wrong == "size" else 4)
    if wrong == "structure":
        carry = carry[1] if name in IS_PAIR else (carry, carry)
    what = r"the tuple \(c, h\), each" if name in IS_PAIR else "one array"
    expected = rf"at +encoder\.layers\[3\] \(an? {name}\)\s+found .*\(2, \d\)\s+expected +{what} .*hidden_features=4"
    with pytest.raises(ShapeError, match=expected):
        Encoder(make(name, 3, 4))(carry, inputs=jnp.ones((2, 3)))


@every_cell
def test_a_missing_stream_names_the_places_to_pass_one(name):
    """L33."""
    expected = rf"{name} has no random stream[\s\S]*initialize_carry\(shape, plait\.Rngs[\s\S]*rnn\(x, rngs=rngs\)"
    with pytest.raises(StreamError, match=expected):
        make(name, 3, 4).initialize_carry((2, 3))


def test_an_rngs_without_the_stream_names_it():
    with pytest.raises(StreamAttributeError, match="'carry'"):
        make("GRUCell", 3, 4).initialize_carry((2, 3), plait.Rngs(params=0))


def test_other_sources_of_keys_are_refused():
    with pytest.raises(ArgumentTypeError, match=r"a GRUCell cannot draw keys[\s\S]*found +an int"):
        make("GRUCell", 3, 4).initialize_carry((2, 3), 0)


@pytest.mark.parametrize(
    ("use", "missing"),
    [
        (lambda cell: cell(0, 0), "__call__"),
        (lambda cell: cell.initialize_carry((2,)), "initialize_carry"),
        (lambda cell: cell.num_feature_axes, "num_feature_axes"),
    ],
)
def test_the_base_says_what_a_cell_has_to_define(use, missing):
    """L33."""

    class Empty(plait.RNNCellBase):
        pass

    with pytest.raises(NotImplementedError, match=f"Empty does not define.* {missing}"):
        use(Empty())


@pytest.mark.sampled
@pytest.mark.oracle
@pytest.mark.parametrize("name", ["LSTMCell", "OptimizedLSTMCell", "GRUCell", "SimpleCell"])
@pytest.mark.parametrize("param_dtype", [jnp.float32, jnp.float64])
def test_initial_values_with_x64_are_those_of_flax(name, param_dtype):
    """The recurrent kernels of LSTMCell alone are drawn in float64 there, and rounded."""
    with jax.enable_x64(True):
        states = []
        for library in (flax_nnx(), plait):
            cell = getattr(library, name)(3, 4, param_dtype=param_dtype, rngs=library.Rngs(0))
            states.append(library.to_pure_dict(library.state(cell, library.Param)))
        jax.tree.map(np.testing.assert_array_equal, *states)
