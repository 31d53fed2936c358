import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ShapeError
from tests.nn.twins import flax_nnx, pure, some_input, users_promotion


def build(lib, rngs):
    return lib.Sequential(
        lib.Linear(3, 4, rngs=rngs), lib.relu, lib.BatchNorm(4, rngs=rngs), lib.Dropout(0.5, rngs=rngs)
    )


@pytest.mark.slow
@pytest.mark.oracle
def test_a_stack_has_flax_s_paths_and_values():
    nnx = flax_nnx()
    ours, theirs = build(plait, plait.Rngs(0)), build(nnx, nnx.Rngs(0))
    mine, other = pure(plait.state(ours)), pure(nnx.state(theirs), nnx)
    assert list(mine) == list(other)
    x = some_input(5, 3)
    with users_promotion():
        expected = theirs(x)
    np.testing.assert_allclose(ours(x), expected, rtol=1e-5, atol=1e-5)


def test_tuples_and_dicts_become_arguments():
    model = plait.Sequential(lambda x: (x, 2), lambda a, b: {"u": a, "v": b}, lambda u, v: [u, v], lambda xs: sum(xs))
    assert model(1) == 3


def test_arguments_of_the_call_go_to_the_first():
    assert plait.Sequential(lambda x, k: x * k, lambda x: x + 1)(2, k=3) == 7


def test_rngs_go_to_those_that_declare_them():
    x = jnp.ones(16)
    y = plait.Sequential(plait.Dropout(0.5), plait.relu)(x, rngs=plait.Rngs(0))
    np.testing.assert_array_equal(y, plait.Dropout(0.5)(x, rngs=plait.Rngs(0)))


def test_an_empty_stack_is_the_identity():
    assert plait.Sequential()(3) == 3


def test_layers_can_be_replaced_and_indexed():
    model = plait.Sequential(plait.relu, plait.relu)
    model.layers[1] = lambda x: x + 1
    assert model(jnp.ones(1)).tolist() == [2.0]


def test_errors_name_the_layer_in_the_stack():
    model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Linear(4, 5, rngs=plait.Rngs(0)))
    with pytest.raises(ShapeError, match=r"at +layers\[1\] \(a Linear\)"):
        model(jnp.ones((1, 2)))


EMPTY_CALLS = {
    "nothing": ((), {}),
    "an argument": ((1,), {}),
    "two": ((1, 2), {}),
    "a keyword": ((), {"k": 2}),
    "both": ((1,), {"k": 2}),
    "several of both": ((1, 2), {"k": 2, "l": 3}),
}


@pytest.mark.oracle
@pytest.mark.parametrize("call", EMPTY_CALLS.values(), ids=EMPTY_CALLS)
def test_without_members_it_returns_what_flax_s_does(call):
    args, kwargs = call
    assert plait.Sequential()(*args, **kwargs) == flax_nnx().Sequential()(*args, **kwargs)
