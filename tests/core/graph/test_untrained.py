"""Parts that nothing trains are named where a model is differentiated or optimized. (rule G69)"""

import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import plait
from plait.errors import LostUpdateWarning, UntrainedPartWarning


class Plain:
    def __init__(self):
        self.tables = {"a": [jnp.ones(3)]}


class Model(plait.Module):
    def __init__(self, part):
        self.own = plait.Param(jnp.ones(2))
        self.part = part


def grad(model):
    plait.grad(lambda model: model.own.sum())(model)


def jitted(model):
    plait.jit(plait.grad(lambda model: model.own.sum()))(model)


def optimizer(model):
    plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)


FOREIGN = {
    "a layer of Flax": (lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)), r"part\n"),
    "one in a list": (lambda: [nnx.Linear(2, 2, rngs=nnx.Rngs(0))], r"part\[0\]\n"),
    "a bound Linen module": (lambda: nn.Dense(2).bind({"params": {"kernel": jnp.ones((2, 2))}}), r"part\n"),
    "a plain object with arrays": (Plain, r"part\n"),
    "a plain object with a layer": (lambda: type("Holder", (Plain,), {})(), r"part\n"),
}


@pytest.mark.parametrize("train", [grad, jitted, optimizer])
@pytest.mark.parametrize("name", FOREIGN)
def test_a_part_that_nothing_trains_is_named_once(name, train):
    make, path = FOREIGN[name]
    model = Model(make())
    model.case = f"{name}, {train.__name__}"  # a structure of its own
    with pytest.warns(UntrainedPartWarning, match=rf"(?s)at +{path}.*ToNNX") as caught:
        train(model)
    assert len(caught) == 1
    if train is not grad:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grad(model)


def test_jit_warns_once_of_an_object_of_flax_whose_changes_it_loses():
    """G69: named by its place among the arguments."""
    norm = nnx.BatchNorm(2, rngs=nnx.Rngs(0))
    step = plait.jit(lambda models, x: models["a"](x))
    with pytest.warns(LostUpdateWarning, match=r"at +models\.a\n +found +a BatchNorm of flax") as caught:
        step({"a": norm}, jnp.ones((2, 2)))
    assert len(caught) == 1
    assert norm.mean[...].tolist() == [0, 0]
    step({"a": norm}, jnp.ones((2, 2)))


def test_jit_says_nothing_of_the_state_of_a_model_of_flax():
    """G69: a State is passed and returned."""
    graphdef, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    assert plait.jit(lambda state, x: nnx.merge(graphdef, state)(x))(state, jnp.ones((1, 2))).shape == (1, 3)


CONSTANT = {
    "marked": lambda: plait.static(Plain()),
    "a marked layer": lambda: plait.data(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
    "an optimizer's transformation": lambda: optax.adam(1e-3),
    "a function that has arrays": lambda: jax.tree_util.Partial(jnp.add, jnp.ones(2)),
    "an unbound Linen module": lambda: nn.Dense(2),
    "an array": lambda: jnp.ones(2),
    "a compiled function": lambda: plait.jit(lambda x: x),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_nothing_is_said_of_what_is_meant_to_be_constant(name):
    optimizer(Model(CONSTANT[name]()))
