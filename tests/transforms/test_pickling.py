"""Transformed functions, and graphdefs with functions in them, through pickle, copy and cloudpickle."""

import copy
import pickle
import sys

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.util.sentinels import Sentinel
from tests.sampling import slow_but
from tests.strategies import Node


def step(model, x):
    model.calls[...] += 1
    return jax.nn.relu(model.w[...] * x)


def make_model():
    return Node(w=plait.Param(jnp.float32(2)), calls=plait.Variable(jnp.float32(0)))


X = jnp.float32(3)
BATCH = jnp.ones(3)


def custom_vjp(f):
    ruled = plait.custom_vjp(f)
    ruled.defvjp(lambda model, x: (f(model, x), None), lambda residuals, g: (None, None))
    return ruled


def custom_jvp(f):
    ruled = plait.custom_jvp(f)
    ruled.defjvp(lambda primals, tangents: (f(*primals), jnp.zeros(())))
    return ruled


# Every transform that returns a function: how it wraps ``step``, and the argument for it.
WRAPPED = {
    "jit": (plait.jit, X),
    "jit with options": (lambda f: plait.jit(f, donate_argnums=0, keep_unused=True), X),
    "grad": (plait.grad, X),
    "value_and_grad": (plait.value_and_grad, X),
    "vjp": (lambda f: plait.vjp(f), X),
    "linearize": (lambda f: plait.linearize(f), X),
    "jacrev": (plait.jacrev, X),
    "jacfwd": (plait.jacfwd, X),
    "hessian": (plait.hessian, X),
    "custom_vjp": (custom_vjp, X),
    "custom_jvp": (custom_jvp, X),
    "vmap": (lambda f: plait.vmap(f, in_axes=(None, 0)), BATCH),
    "scan": (lambda f: plait.scan(lambda model, x: (model, f(model, x))), BATCH),
    "remat": (plait.remat, X),
    "checkify": (plait.checkify, X),
    "make_jaxpr": (plait.make_jaxpr, X),
    "jit of grad": (lambda f: plait.jit(plait.grad(f)), X),
    "jit of scan": (lambda f: plait.jit(plait.scan(lambda model, x: (model, f(model, x)))), BATCH),
    "jit_partial": (lambda f: plait.jit_partial(f, make_model()), X),
    "cached_partial": (lambda f: plait.cached_partial(plait.jit(f), make_model()), X),
    "split_rngs": (lambda f: plait.split_rngs(f, splits=2), X),
}
WAYS = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "cloudpickle": lambda value: cloudpickle.loads(cloudpickle.dumps(value)),
}


def arrays(out):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(out) if isinstance(leaf, jax.Array)]


@pytest.mark.sampled
@pytest.mark.parametrize("way", slow_but(["cloudpickle"], WAYS))
@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.filterwarnings("ignore::plait.errors.CapturedModelWarning")
def test_a_wrapped_function_does_the_same_after_the_way(name, way):
    wrap, x = WRAPPED[name]
    first, second = make_model(), make_model()

    def fresh(model, x):  # of this test, so that it goes by value
        return step(model, x)

    wrapped = wrap(fresh)
    given = () if "partial" in name else (first,)
    expected = [arrays(wrapped(*given, x)) for _ in range(2)]
    other = WAYS[way](wrapped)
    given = () if "partial" in name else (second,)
    if "partial" in name and way == "copy":  # the same bound model
        return
    found = [arrays(other(*given, x)) for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert first.calls[...] == second.calls[...]


def module_level(model, x):
    return step(model, x)


jitted = module_level = plait.jit(module_level)


def test_a_function_of_a_module_is_pickled_by_name():
    module_level(make_model(), X)
    assert pickle.loads(pickle.dumps(module_level)) is jitted


def test_what_was_compiled_stays_behind():
    traces = []
    wrapped = plait.jit(lambda model, x: (traces.append(1), step(model, x))[1])
    model = make_model()
    for _ in range(3):
        wrapped(model, X)
    other = WAYS["cloudpickle"](wrapped)
    assert (len(wrapped.jitted_fn.compiled), len(other.jitted_fn.compiled)) == (1, 0)
    fresh = make_model()
    results = [float(other(fresh, X)) for _ in range(4)]
    assert results == [6.0] * 4
    assert other.__code__ is not wrapped.__code__
    assert other.jitted_fn.entrance.function() is other  # which takes the fast path from now on
    assert (float(model.calls[...]), float(fresh.calls[...])) == (3.0, 4.0)


class Net(plait.Module):
    def __init__(self):
        self.act, self.more = jax.nn.relu, [jnp.sin, {"act": jax.nn.gelu}]
        self.w = plait.Param(jnp.ones(2), activation=jax.nn.silu)


ROUND = WAYS | {"pickle": lambda value: pickle.loads(pickle.dumps(value))}


@pytest.mark.parametrize("way", ROUND)
def test_a_graphdef_with_functions_of_jax_comes_back_equal(way):
    graphdef, state = plait.split(Net())
    again = ROUND[way](graphdef)
    assert again == graphdef
    assert hash(again) == hash(graphdef)
    assert plait.merge(again, state).act is jax.nn.relu
    assert ROUND[way]({"defs": [graphdef]})["defs"][0] == graphdef


@pytest.mark.parametrize("way", ROUND)
def test_a_model_with_functions_of_jax_comes_back_with_the_same_structure(way):
    model = Net()
    again = ROUND[way](model)
    assert plait.graphdef(again) == plait.graphdef(model)


def test_a_function_that_uses_plait_goes_by_value():
    """plait's modules go by name, also those that have names of Flax."""
    function = WAYS["cloudpickle"](lambda x: plait.nn.linear.Linear(2, 2, rngs=plait.Rngs(0))(x))
    assert function(jnp.ones((1, 2))).shape == (1, 2)


def test_what_stands_for_itself_comes_back_as_itself():
    """Each sentinel: a pickle has its name, which is the one that its module gives it."""
    modules = [module for name, module in [*sys.modules.items()] if name.startswith("plait.")]
    known = {id(value): value for module in modules for value in vars(module).values() if isinstance(value, Sentinel)}
    assert len(known) > 5
    for sentinel in known.values():
        for way in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
            assert way(sentinel) is sentinel, sentinel
