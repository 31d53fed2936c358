"""What holds for every layer alike; a layer is one row of ``cases.py``."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from tests.nn.cases import CASES
from tests.nn.twins import Encoder, pure

every_layer = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def make(case):
    return case.make(plait.Rngs(0))


@every_layer
def test_jit_agrees_with_eager_in_output_and_state(case):
    eager, compiled = make(case), make(case)
    step = plait.jit(lambda model, x: model(x))
    for _ in range(2):  # the second call takes the fast way
        np.testing.assert_allclose(step(compiled, case.x), eager(case.x), rtol=1e-5, atol=1e-5)
    mine, other = pure(plait.state(compiled)), pure(plait.state(eager))
    for path in mine:
        np.testing.assert_allclose(mine[path], other[path], rtol=1e-5, atol=1e-5, err_msg=path)


@every_layer
def test_numpy_inputs_give_what_jax_arrays_give(case):
    np.testing.assert_array_equal(make(case)(np.asarray(case.x)), make(case)(case.x))


@every_layer
def test_equal_constructor_calls_give_one_structure(case):
    assert plait.graphdef(make(case)) is plait.graphdef(make(case))


@every_layer
def test_a_layer_survives_split_and_merge(case):
    layer = make(case)
    again = plait.merge(*plait.split(layer))
    np.testing.assert_array_equal(again(case.x), layer(case.x))


@every_layer
def test_a_layer_survives_pickle(case):
    layer = make(case)
    again = pickle.loads(pickle.dumps(layer))
    np.testing.assert_array_equal(again(case.x), layer(case.x))


@every_layer
def test_a_call_leaks_no_tracer(case):
    layer = make(case)
    with jax.checking_leaks():
        plait.jit(lambda model, x: model(x))(layer, case.x)


@pytest.mark.parametrize("case", [case for case in CASES if case.name != "Embed"], ids=lambda case: case.name)
def test_bfloat16_in_gives_float32_parameters_their_due(case):
    """L3: the common type of a bfloat16 input and float32 parameters is float32, under strict promotion too."""
    y = make(case)(case.x.astype(jnp.bfloat16))
    keeps_dtype = case.name in ("Dropout", "PReLU")
    assert y.dtype == (jnp.bfloat16 if keeps_dtype else jnp.float32)


@every_layer
def test_a_layer_works_below_a_module(case):
    np.testing.assert_array_equal(Encoder(make(case))(case.x), make(case)(case.x))


# Axes of an input that may have any length, beside the batch.
LENGTHS = {
    "Conv": (1, 2),
    "ConvTranspose": (1,),
    "Embed": (1,),
    "GroupNorm": (1,),
    "InstanceNorm": (1,),
    "MultiHeadAttention": (1,),
    "SimpleCell": (1,),
    "LSTMCell": (1,),
    "GRUCell": (1,),
    "Bidirectional": (1,),
}


@pytest.mark.slow
@every_layer
def test_one_program_takes_every_size(case):
    """Ask 17: a symbolic batch, and symbolic lengths where they mean something; three sizes of each."""
    axes = (0, *LENGTHS.get(case.name, ()))
    names = [f"n{axis}" if axis in axes else str(size) for axis, size in enumerate(case.x.shape)]
    shape = jax.export.symbolic_shape(", ".join(names))
    layer = make(case)
    graphdef, state = plait.split(layer)

    def forward(state, x):
        return plait.merge(graphdef, state)(x)

    program = jax.export.export(jax.jit(forward))(state, jax.ShapeDtypeStruct(shape, case.x.dtype))
    for size in (2, 3, 7):
        x = case.x
        for axis in axes:
            x = jnp.take(x, jnp.arange(size + axis) % x.shape[axis], axis=axis)
        expected = jax.jit(forward)(state, x)
        np.testing.assert_allclose(program.call(state, x), expected, rtol=1e-5, atol=1e-5)


def test_a_failure_with_a_symbolic_size_names_the_layer():
    """Ask 17: the layer's path, what it found and what it takes."""
    model = Encoder(plait.Linear(3, 4, rngs=plait.Rngs(0)))
    shape = jax.export.symbolic_shape("batch, features")
    with pytest.raises(plait.errors.ShapeError, match=r"(?s)encoder\.layers\[3\] \(a Linear\).*features.*3"):
        jax.export.export(jax.jit(lambda x: model(x)))(jax.ShapeDtypeStruct(shape, jnp.float32))
