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
