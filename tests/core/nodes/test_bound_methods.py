"""Methods of nodes in attributes: their owner is a reference like any other. (rule G1)"""

import copy
import functools
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import CapturedModelWarning, GraphError


class Net(plait.Module):
    def __init__(self, how):
        self.w = plait.Param(jnp.asarray(2.0))
        self.act = HOW[how](self)

    def times(self, x):
        return x * self.w[...]

    def __call__(self, x):
        return self.act(x)


HOW = {
    "method": lambda net: net.times,
    "partial": lambda net: functools.partial(Net.times, net),
    "partial of a method": lambda net: functools.partial(net.times),
    "by keyword": lambda net: functools.partial(lambda x, nets: nets[0].times(x), nets=[net]),
    "Sequential": lambda net: plait.Sequential(net.times),
    "list": lambda net: plait.Sequential(*[net.times, plait.identity]),
}
EVERY = pytest.mark.parametrize("how", HOW)


def call(net, x):
    return net(x)


RUNS = {
    "jit": lambda net, x: plait.jit(call)(net, x),
    "remat": lambda net, x: plait.remat(call)(net, x),
    "cond": lambda net, x: plait.cond(True, call, call, net, x),
    "vmap": lambda net, x: plait.vmap(call, in_axes=(None, 0))(net, x[None])[0],
    "scan": lambda net, x: plait.scan(lambda c, _: ((c[0], c[0](c[1])), None))((net, x), jnp.arange(1))[0][1],
    "fori_loop": lambda net, x: plait.fori_loop(0, 1, lambda i, c: (c[0], c[0](c[1])), (net, x))[1],
    "merge": lambda net, x: plait.merge(*plait.split(net))(x),
    "jax.jit": lambda net, x: jax.jit(call)(net, x),
}


@EVERY
@pytest.mark.parametrize("run", RUNS)
def test_it_calls_the_model_that_it_is_reached_through(run, how):
    if run == "jax.jit" and how != "method":
        pytest.skip("a cycle, which JAX itself does not take")
    net, x = Net(how), jnp.asarray(1.0)
    assert float(RUNS[run](net, x)) == 2.0
    net.w[...] = jnp.asarray(5.0)
    assert float(RUNS[run](net, x)) == 5.0


@EVERY
def test_it_trains(how):
    net = Net(how)
    optimizer = plait.Optimizer(net, optax.sgd(0.25), wrt=plait.Param)
    for _ in range(5):
        optimizer.update(net, plait.grad(lambda net: (net(1.0) - 1) ** 2)(net))
    np.testing.assert_allclose(net.w[...], 1.03125)


@EVERY
@pytest.mark.parametrize("make", [plait.clone, copy.deepcopy])
def test_a_copy_is_not_tied_to_the_original(make, how):
    net = Net(how)
    copied = make(net)
    copied.w[...] = jnp.asarray(7.0)
    assert (float(copied(1.0)), float(net(1.0))) == (7.0, 2.0)


def test_a_pickled_model_calls_itself():
    net = pickle.loads(pickle.dumps(Net("method")))
    net.w[...] = jnp.asarray(7.0)
    assert float(net(1.0)) == 7.0


class Block(plait.Module):
    def __init__(self):
        self.w = plait.Param(jnp.ones(2))

    def encode(self, x):
        return x * self.w[...]


class Holder(plait.Module):
    """Its method comes before the owner in the order of the names."""

    def __init__(self, block, own):
        self.apply = block.encode
        if own:
            self.blocks = [block]


def test_the_owner_keeps_its_own_path():
    assert [path for path, _ in plait.to_flat_state(plait.state(Holder(Block(), own=True)))] == [("blocks", 0, "w")]


def test_an_owner_from_elsewhere_is_part_of_the_graph():
    holder = Holder(block := Block(), own=False)
    assert [path for path, _ in plait.to_flat_state(plait.state(holder))] == [("apply", "__self__", "w")]
    doubled = jax.tree.map(lambda x: 2 * x, holder)
    assert doubled.apply(1.0).tolist() == [2.0, 2.0]
    assert block.encode(1.0).tolist() == [1.0, 1.0]
    plait.update(holder, jax.tree.map(lambda x: 3 * x, plait.state(holder)))
    assert block.encode(1.0).tolist() == [3.0, 3.0]


def test_tree_mode_takes_methods():
    for model, run in ((Net("method"), call), (Holder(Block(), own=True), lambda m, x: m.apply(x).sum() - 0)):
        assert float(plait.jit(run, graph=False)(model, 1.0)) == 2.0


def test_other_methods_and_partials_are_static():
    net = plait.Dict(a="text".upper, b=functools.partial(max, 1), c=plait.Linear.__call__, d=Net.mro)
    assert not plait.state(net)
    assert len(plait.graphdef(net).attributes) == 4
    assert plait.graphdef(net) == plait.graphdef(plait.clone(net))


def test_a_static_mark_keeps_the_original():
    net = Net("method")
    net.act = plait.static(net.times)
    assert plait.clone(net).act.__self__ is net


def test_a_cycle_through_a_method_is_an_error_for_jax_itself():
    with pytest.raises(GraphError, match=r"(?s)contains itself.*the same Net"):
        jax.tree.map(lambda x: x, Net("Sequential"))


def test_a_function_that_closes_over_its_model_is_warned_about_once():
    net = Net("method")
    net.act = lambda x: net.times(x)
    with pytest.warns(
        CapturedModelWarning, match=r"(?s)closes over.*at +act\n +found +'<lambda>', whose 'net'.*partial"
    ):
        plait.state(net)
    plait.state(net)
    net.act = functools.partial(lambda net, x: net.times(x), net)  # the advice
    net.w[...] = jnp.asarray(5.0)
    assert float(plait.jit(call)(net, 1.0)) == 5.0


def test_a_function_that_closes_over_another_model_is_not_warned_about():
    other = Block()
    plait.state(plait.Dict(f=lambda: other))


class Borrowing(plait.Module):
    """It has a method of a module that it reaches through nothing else, or also through ``z``."""

    def __init__(self, is_kept):
        owner = Net("list")
        self.a = owner.times
        self.b = plait.Param(jnp.ones(()))
        if is_kept:
            self.z = owner


@pytest.mark.parametrize("is_kept", [False, True])
def test_only_a_method_whose_owner_is_met_elsewhere_comes_after_it(is_kept):
    """Otherwise the attributes are walked in their order."""
    attributes = dict.fromkeys(path[0] for path, _ in plait.iter_graph(Borrowing(is_kept)) if path)
    assert [*attributes] == (["b", "z", "a"] if is_kept else ["a", "b"])


def test_a_partial_comes_after_the_only_variable_that_it_holds():
    """G1: the variable has the path that it has without the partial."""
    net = plait.Module()
    net.weight = plait.Param(jnp.asarray(2.0))
    net.act = functools.partial(lambda w, x: w[...] * x, net.weight)
    assert [path for path, _ in plait.to_flat_state(plait.state(net))] == [("weight",)]
