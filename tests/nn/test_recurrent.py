import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import ArgumentTypeError, LostUpdateWarning, ShapeError, StreamError
from plait.nn.recurrent import flip_sequences
from tests.nn.test_cells import CELLS, make
from tests.nn.twins import (
    TOLERANCE,
    Encoder,
    assert_pair_agrees,
    compare,
    flax_nnx,
    pure,
    some_input,
    twins,
    users_promotion,
)
from tests.sampling import slow_but

LENGTHS = jnp.array([3, 5, 1])
one_step = plait.jit(lambda cell, carry, x: cell(carry, x))


def rnn_of(name="GRUCell", **options):
    return plait.RNN(make(name, 3, 4), **options)


def slow_run(cell, x, lengths, carry, reverse=False, keep_order=False):
    """The oracle, a Python loop over each sequence alone: the carries after them, and their real outputs."""
    carries, outputs = [], []
    for i, length in enumerate(lengths):
        state, steps = jax.tree.map(lambda c, i=i: c[i], carry), x[i, :length]
        ys = []
        for step in steps[::-1] if reverse else steps:
            state, y = one_step(cell, state, step)
            ys.append(y)
        carries.append(state)
        outputs.append(np.asarray(ys[::-1] if reverse and keep_order else ys))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *carries), outputs


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["SimpleCell", "OptimizedLSTMCell"])
@pytest.mark.parametrize(
    "options",
    slow_but(lambda options: len(options) != 1, [{}, {"reverse": True}, {"reverse": True, "keep_order": True}]),
    ids=str,
)
def test_a_run_is_the_loop_over_each_sequence_alone(name, options):
    """L34: padding changes neither the real outputs nor the carry after the last real step, in either direction."""
    cell, x = make(name, 3, 4), some_input(3, 5, 3)
    carry = cell.initialize_carry((3, 3), plait.Rngs(0), plait.initializers.normal(1.0))
    rnn = plait.RNN(cell, **options)
    last, y = rnn(x, initial_carry=carry, seq_lengths=LENGTHS, return_carry=True)
    expected_last, outputs = slow_run(cell, x, LENGTHS, carry, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), last, expected_last)
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(y[i, :length], outputs[i], rtol=1e-5, atol=1e-5)


OPTIONS = st.fixed_dictionaries(
    {"time_major": st.booleans(), "reverse": st.booleans(), "keep_order": st.booleans(), "return_carry": st.booleans()}
)


@pytest.mark.slow
@pytest.mark.oracle
@settings(max_examples=4)
@given(
    name=st.sampled_from(CELLS),
    options=OPTIONS,
    padded=st.booleans(),
    batch=st.sampled_from([(), (2,), (2, 2)]),
    time=st.integers(1, 4),
    unroll=st.integers(1, 2),
)
def test_an_rnn_is_flax_s_forward_and_backward(name, options, padded, batch, time, unroll):
    """L34."""
    cells = twins(name, 3, 4)
    ours, theirs = plait.RNN(cells[0], unroll=unroll), flax_nnx().RNN(cells[1], unroll=unroll)
    shape = (time, *batch, 3) if options["time_major"] else (*batch, time, 3)
    lengths = np.random.default_rng(time).integers(1, time + 1, batch)
    call = {**options, "seq_lengths": jnp.asarray(lengths)} if padded and batch else options
    assert_pair_agrees(ours, theirs, some_input(*shape), **call)


@pytest.mark.oracle
@pytest.mark.parametrize(
    "options",
    [{}, {"return_carry": True, "seq_lengths": LENGTHS}],
    ids=["plain", "padded"],
)
@pytest.mark.slow
def test_bidirectional_is_flax_s_forward_and_backward(options):
    """L35."""
    forward, backward = twins("GRUCell", 3, 4), twins("LSTMCell", 3, 2, seed=1)
    ours = plait.Bidirectional(plait.RNN(forward[0]), plait.RNN(backward[0]))
    theirs = flax_nnx().Bidirectional(flax_nnx().RNN(forward[1]), flax_nnx().RNN(backward[1]))
    assert_pair_agrees(ours, theirs, some_input(3, 5, 3), **options)


def streams(lib):
    """Ways to give an RNN its keys: arguments of the constructor, and of two calls."""
    return [
        ({}, {}),
        ({"rngs": lib.Rngs(3)}, {}),
        ({"rngs": lib.Rngs(3, carry=4)}, {}),
        ({}, {"rngs": lib.Rngs(5)}),
        ({"rngs": False}, {"rngs": lib.RngStream(5, tag="any")}),
    ]


def keyed(lib, way, bidirectional):
    """Outputs of two calls of a cell with random first carries, and what the calls left in the streams."""
    options, call = streams(lib)[way]
    cells = [lib.GRUCell(3, 4, carry_init=jax.nn.initializers.normal(1.0), rngs=lib.Rngs(0)) for _ in range(2)]
    if bidirectional:
        rnn = lib.Bidirectional(*(lib.RNN(cell) for cell in cells), **options)
    else:
        rnn = lib.RNN(cells[0], **options)
    x = some_input(2, 3, 3)
    return rnn(x, **call), rnn(x, **call), pure(lib.state(rnn, lib.RngState), lib)


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:carry_init is provided in __init__")
@pytest.mark.parametrize("bidirectional", slow_but([False], [False, True]))
@pytest.mark.parametrize("way", slow_but([0, 2], range(5)))
def test_first_carries_are_drawn_as_flax_draws_them(way, bidirectional):
    """L34: its own stream is seeded with 0, or a fork; a call's wins."""
    mine = keyed(plait, way, bidirectional)
    with users_promotion():
        other = keyed(flax_nnx(), way, bidirectional)
    assert list(mine[2]) == list(other[2])
    for path in mine[2]:
        np.testing.assert_array_equal(mine[2][path], other[2][path])
    compare(mine[0], other[0], TOLERANCE, "first call")
    compare(mine[1], other[1], TOLERANCE, "second call")


def dropping(lib):
    class Dropping(lib.RNNCellBase):
        """Dropout, and a count of its steps."""

        def __init__(self, rngs):
            self.dropout = lib.Dropout(0.5, rngs=rngs)
            self.steps = lib.Variable(jnp.zeros((), jnp.int32))

        def __call__(self, carry, x):
            self.steps[...] += 1
            return carry, self.dropout(self.dropout(x))

        def initialize_carry(self, input_shape, rngs=None, carry_init=None):
            return jnp.zeros(input_shape[:-1])

        @property
        def num_feature_axes(self):
            return 1

    return Dropping(lib.Rngs(dropout=1))


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("broadcast", slow_but(["dropout"], [None, "dropout", "other"]))
def test_random_streams_of_the_cell_go_through_the_loop_as_in_flax(broadcast):
    """L34, ask 14: masks differ from step to step, unless they are broadcast; from call to call they always differ."""
    outputs = {}
    for lib in (plait, flax_nnx()):
        with users_promotion():
            cell = dropping(lib)
            rnn = lib.RNN(cell, broadcast_rngs=broadcast)
            outputs[lib] = [np.asarray(rnn(jnp.ones((4, 32)))) for _ in range(2)]
            state = pure(lib.state(cell), lib)
            outputs[lib] += [state["dropout.rngs.count"], state["dropout.rngs.key"], state["steps"]]
    for mine, other in zip(*outputs.values(), strict=True):
        np.testing.assert_array_equal(mine, other)
    first, second = outputs[plait][:2]
    assert (first == first[0]).all() == (broadcast == "dropout")
    assert not np.array_equal(first, second)


@pytest.mark.slow
def test_what_is_shared_by_state_axes_is_only_read():
    """L34, X20."""
    x = some_input(2, 5, 3)
    shared = rnn_of(state_axes={plait.Param: None, ...: plait.Carry})
    np.testing.assert_array_equal(shared(x), rnn_of()(x))
    with pytest.warns(LostUpdateWarning, match=r"at +cell\.\w+[\s\S]*with axis None"):
        plait.RNN(dropping(plait), state_axes={...: None})(x)


def test_the_parameters_are_constants_of_the_loop():
    """What is only read is no carry, so its gradient keeps no copy for every step."""
    graphdef, state = plait.split(rnn_of())
    jaxpr = jax.make_jaxpr(lambda state, x: plait.merge(graphdef, state)(x))(state, jnp.ones((2, 5, 3)))
    loop = next(equation for equation in jaxpr.eqns if equation.primitive.name == "scan")
    if "num_carry" in loop.params:
        carried = loop.params["num_carry"]
    else:  # since JAX 0.11: the trees of constants, carry and inputs, with None for each array
        carried = len(jax.tree.leaves(loop.params["ft_in"][1], is_leaf=lambda part: part is None))
    assert carried == 1


class Spatial(plait.RNNCellBase):
    """A cell with three axes of features."""

    def __init__(self):
        self.conv = plait.Conv(2, 2, (3, 3), rngs=plait.Rngs(0))

    def __call__(self, carry, x):
        carry = jnp.tanh(self.conv(x) + carry)
        return carry, carry

    def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        return jnp.zeros(input_shape)

    @property
    def num_feature_axes(self):
        return 3


@pytest.mark.slow
def test_a_cell_says_how_many_axes_are_features():
    """L33."""
    x, rnn = some_input(2, 3, 4, 4, 2), plait.RNN(Spatial())
    y = rnn(x)
    assert y.shape == (2, 3, 4, 4, 2)
    np.testing.assert_allclose(y[0], rnn(x[0]), rtol=1e-5, atol=1e-5)
    carry, _ = rnn(x, seq_lengths=jnp.array([1, 2]), return_carry=True)
    np.testing.assert_allclose(carry, jnp.stack([y[0, 0], y[1, 1]]), rtol=1e-5, atol=1e-5)


def test_the_carry_of_an_empty_sequence_is_the_first_carry():
    first = some_input(2, 4)
    for x, lengths in [(some_input(2, 5, 3), jnp.array([0, 5])), (jnp.zeros((2, 0, 3)), None)]:
        carry, _ = rnn_of()(x, initial_carry=first, seq_lengths=lengths, return_carry=True)
        np.testing.assert_array_equal(carry[0], first[0])


def test_lengths_beyond_the_end_are_the_end():
    x = some_input(2, 5, 3)
    options = {"return_carry": True, "reverse": True, "keep_order": True}
    for a, b in zip(rnn_of()(x, seq_lengths=np.array([7, 9]), **options), rnn_of()(x, **options), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", slow_but(["SimpleCell"], CELLS))
@pytest.mark.parametrize(
    "options", [{"param_dtype": jnp.bfloat16}, {"dtype": jnp.bfloat16}], ids=["param_dtype", "dtype"]
)
def test_a_carry_of_another_dtype_than_the_step_s_is_widened(name, options):
    """The run equals the loop over steps also where the first carry is narrower than the next."""
    cell, x = make(name, 3, 4, **options), some_input(2, 4, 3)
    carry, expected = cell.initialize_carry((2, 3), plait.Rngs(0)), []
    for t in range(4):
        carry, y = one_step(cell, carry, x[:, t])
        expected.append(y)
    outputs = plait.RNN(cell)(x)
    assert outputs.dtype == expected[-1].dtype
    compare(outputs, jnp.stack(expected, 1), {"rtol": 1e-2, "atol": 1e-2}, "outputs")


def test_a_bidirectional_layer_merges_as_it_is_told():
    """L35."""
    x = some_input(2, 5, 3)
    forward, backward = rnn_of(), plait.RNN(plait.GRUCell(3, 4, rngs=plait.Rngs(1)))
    layer = plait.Bidirectional(forward, backward, merge_fn=jnp.subtract, time_major=True)
    expected = forward(x, time_major=True) - backward(x, time_major=True, reverse=True, keep_order=True)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_one_layer_for_both_directions_warns():
    """L35."""
    rnn = rnn_of()
    with pytest.warns(UserWarning, match="forward_rnn and backward_rnn are the same object") as caught:
        plait.Bidirectional(rnn, rnn)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plait.Bidirectional(rnn, plait.RNN(rnn.cell))


@pytest.mark.oracle
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("lengths", [None, [2, 4, 0]], ids=["whole", "padded"])
def test_flipped_sequences_are_flax_s(time_major, lengths):
    from flax.nnx.nn.recurrent import flip_sequences as flax_s

    x = jnp.arange(3 * 5 * 2).reshape(5, 3, 2) if time_major else jnp.arange(3 * 5 * 2).reshape(3, 5, 2)
    lengths = None if lengths is None else jnp.array(lengths)
    with users_promotion():
        expected = flax_s(x, lengths, 1, time_major)
    np.testing.assert_array_equal(flip_sequences(x, lengths, 1, time_major), expected)


def test_flipping_twice_is_the_identity_on_real_steps():
    x = some_input(3, 5, 2)
    again = flip_sequences(flip_sequences(x, LENGTHS, 1, False), LENGTHS, 1, False)
    np.testing.assert_array_equal(again, x)


def test_it_works_where_graph_updates_are_off():
    """U32: the loop over the cell is in plait's own modes."""
    rnn, x = rnn_of(), some_input(2, 3, 3)
    with plait.set_graph_updates(False):
        y = rnn(x)
    np.testing.assert_array_equal(y, rnn(x))


@pytest.mark.parametrize(
    ("lengths", "found"),
    [(jnp.ones(3), r"float32 of shape \(3,\)"), (jnp.ones(2, jnp.int32), r"int32 of shape \(2,\)")],
)
def test_wrong_lengths_name_the_path_and_the_batch(lengths, found):
    expected = rf"at +encoder\.layers\[3\] \(an? RNN\)\s+found +{found}\s+expected +integers of shape \(3,\)"
    with pytest.raises(ShapeError, match=expected):
        Encoder(rnn_of())(some_input(3, 5, 3), seq_lengths=lengths)


def test_an_input_without_time_names_the_path():
    with pytest.raises(ShapeError, match=r"encoder\.layers\[3\] \(an? RNN\)[\s\S]*\(3,\)[\s\S]*at least 2 axes: time"):
        Encoder(rnn_of())(jnp.ones(3))


def test_a_missing_stream_names_the_cell_and_the_places_to_pass_one():
    """L33."""
    with pytest.raises(
        StreamError, match=r"encoder\.layers\[3\]\.cell \(an? GRUCell\)[\s\S]*plait\.RNN\(cell, rngs=rngs\)"
    ):
        Encoder(rnn_of(rngs=False))(jnp.ones((2, 5, 3)))


@pytest.mark.parametrize("rngs", [None, 3, jax.random.key(0)])
def test_other_sources_of_keys_are_refused(rngs):
    with pytest.raises(ArgumentTypeError, match=r"an RNN cannot draw keys[\s\S]*an Rngs, a RngStream, True or False"):
        rnn_of(rngs=rngs)


@pytest.mark.parametrize(
    "options",
    slow_but([{}], [{}, {"reverse": True, "keep_order": True}, {"state_axes": {...: plait.Carry}}]),
)
@pytest.mark.parametrize("way", [lambda f: f, pytest.param(plait.jit, marks=pytest.mark.slow)], ids=["eager", "jit"])
def test_the_steps_of_a_cell_are_captured_stacked(options, way):
    """D1, D2: the outputs of all steps, and the gradients at them."""
    rnn, x = rnn_of("SimpleCell", **options), some_input(2, 5, 3)
    expected = rnn(x)
    look = plait.capture(lambda rnn, x: rnn(x), plait.Intermediate, method_outputs=plait.Intermediate)
    y, seen = way(look)(rnn, x)
    np.testing.assert_allclose(y, expected, rtol=1e-6)
    ((carries, outputs),) = seen["cell"]["__call__"].get_value()
    np.testing.assert_allclose(jnp.moveaxis(outputs, 0, 1), expected, rtol=1e-6)
    assert carries.shape == outputs.shape == (5, 2, 4)
    assert seen["cell"]["dense_h"]["__call__"][0].shape == (5, 2, 4)
    _, gradients = way(plait.capture_gradients(lambda rnn, x: (2 * rnn(x)).sum(), only="cell"))(rnn, x)
    np.testing.assert_allclose(gradients["cell"]["__call__[1]"], jnp.full((5, 2, 4), 2.0))
    assert [path for path, _ in plait.to_flat_state(plait.state(rnn)) if "_pytree__sown" in path] == []
