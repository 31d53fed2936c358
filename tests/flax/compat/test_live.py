"""Live states: under plait.compat.live_states, states hold the model's own variables, as Flax's do (rule X33)."""

import pickle
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

import plait as nnx
from plait.compat import live_states
from tests.forked import run_python
from tests.nn.twins import users_promotion


def model_of(lib):
    """A model with a shared parameter and statistics."""

    class Model(lib.Module):
        def __init__(self):
            self.linear = lib.Linear(2, 3, rngs=lib.Rngs(0))
            self.norm = lib.BatchNorm(3, rngs=lib.Rngs(0))
            self.tied = self.linear.kernel

        def __call__(self, x):
            return self.norm(self.linear(x))

    return Model()


def called(lib, model):
    _, (_, state) = lib.call(lib.split(model))(jnp.ones((2, 2)))
    return state


def applied(lib, model):
    graphdef, state = lib.split(model)
    return graphdef.apply(state)(jnp.ones((2, 2)))[1][1]


# What holds a kernel, made from a model: first what holds the model's own if states are live, then what never does.
SHARED = {
    "split": lambda lib, m: lib.split(m)[1],
    "split with filters": lambda lib, m: lib.split(m, lib.Param, ...)[1],
    "state": lambda lib, m: lib.state(m),
    "state with a filter": lambda lib, m: lib.state(m, lib.Param),
    "a filtered state": lambda lib, m: lib.filter_state(lib.state(m), lib.Param),
    "flatten": lambda lib, m: lib.from_flat_state(lib.flatten(m)[1]),
    "unpack": lambda lib, m: nnx.merge_state(lib.unpack(m).state) if lib is nnx else lib.unpack(m)._state,
    "pop": lambda lib, m: lib.pop(m, lib.Param),
    "merge": lambda lib, m: vars(lib.merge(*lib.split(m))),
    "map": lambda lib, m: vars(lib.map(lambda path, leaf: leaf, m)),
    "call": called,
    "apply": applied,
    "an output of jit": lambda lib, m: lib.jit(lib.state)(m),
    "tree mode": lambda lib, m: lib.split(lib.Dict(linear=m.linear), graph=False)[1],
}
OWN = {
    "a merged copy": lambda lib, m: vars(lib.merge(*lib.split(m), copy=True)),
    "clone": lambda lib, m: vars(lib.clone(m)),
    "jax.tree.map": lambda lib, m: jax.tree.map(lambda x: x, lib.state(m)),
}


def kernel_of(layer):
    return layer.kernel if hasattr(layer, "kernel") else layer["kernel"]


def holds_the_model_s_own(lib, name):
    model = model_of(lib)
    kernel = model.linear.kernel
    return kernel_of({**SHARED, **OWN}[name](lib, model)["linear"]) is kernel


@pytest.mark.parametrize("name", [*SHARED, *OWN])
@pytest.mark.parametrize("live", [False, True])
def test_states_share_variables_only_when_they_are_live(name, live):
    """X33."""
    with live_states(live):
        assert holds_the_model_s_own(nnx, name) == (live and name in SHARED)


@pytest.mark.oracle
@pytest.mark.parametrize("name", [*SHARED, *OWN])
def test_the_sharing_is_that_of_flax(name):
    flax = pytest.importorskip("flax.nnx")
    with users_promotion():
        assert holds_the_model_s_own(flax, name) == (name in SHARED)


def test_a_write_to_a_live_state_is_a_write_to_the_model():
    model = model_of(nnx)
    with live_states():
        graphdef, state = nnx.split(model)
        state["linear"]["bias"][...] = jnp.ones(3)
        again = nnx.merge(graphdef, state)
        again.norm(jnp.array([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]))
    assert model.linear.bias.tolist() == [1, 1, 1]
    assert model.norm.mean[...].tolist() == again.norm.mean[...].tolist() != [0, 0, 0]
    assert again.tied is again.linear.kernel is model.tied


@pytest.mark.parametrize("transform", ["jit", "remat", "cond", "eager"])
def test_states_made_inside_a_transform_are_live_too(transform):
    def step(model):
        state = nnx.state(model)
        state["linear"]["bias"][...] += 1

    calls = {
        "jit": lambda m: nnx.jit(step)(m),
        "remat": lambda m: nnx.remat(step)(m),
        "cond": lambda m: nnx.cond(True, step, lambda m: None, m),
        "eager": step,
    }
    model = model_of(nnx)
    with live_states():
        calls[transform](model)
    assert model.linear.bias.tolist() == [1, 1, 1]


def test_a_trace_is_not_shared_by_both_settings():
    @nnx.jit
    def step(model):
        nnx.split(model)[1]["linear"]["bias"].raw_value += 1  # a write that no warning sees

    model = model_of(nnx)
    for live, expected in ((False, 0), (True, 1), (False, 1), (True, 2)):
        with live_states(live):
            step(model)
        assert model.linear.bias[0] == expected


# Published patterns -------------------------------------------------------------------------------------------------


def test_a_pipeline_finds_its_own_variables_in_a_split_state():
    """A pipeline keeps the variables of a split state, and looks one up by ``is``."""

    class Pipeline(nnx.Module):
        def __init__(self):
            self.position = nnx.Variable(jnp.zeros((), jnp.int32))
            self.seed = nnx.Variable(jnp.ones((), jnp.int32))

        def names(self, state):
            flat = nnx.to_flat_state(state)
            return [path for path, leaf in flat if leaf is self.position]

    with live_states():
        pipeline = Pipeline()
        kept = nnx.split(pipeline)[1]
        pipeline.position[...] += 3
        assert pipeline.names(kept) == [("position",)]
        assert int(kept["position"][...]) == 3


def test_an_optimizer_s_update_is_read_through_an_earlier_split():
    with live_states():
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
        _, params, _ = nnx.split(model, nnx.Param, ...)
        before = params["kernel"][...]
        optimizer.update(model, nnx.grad(lambda m: m.kernel[...].sum())(model))
        assert (params["kernel"][...] == before - 1).all()


def test_an_ema_shares_what_it_does_not_average():
    with live_states():
        model = model_of(nnx)
        ema = nnx.EMA(nnx.state(model, nnx.Param), decay=0.5)
        averaged = ema.apply_to(nnx.state(model))
        assert averaged["norm"]["mean"] is model.norm.mean
        assert averaged["linear"]["kernel"] is not model.linear.kernel


# The switch ---------------------------------------------------------------------------------------------------------


def is_live():
    model = nnx.Dict(a=nnx.Param(1.0))
    return nnx.state(model)["a"] is model.a


def test_the_switch_is_of_one_thread_and_is_restored():
    seen = []
    assert not is_live()
    with live_states():
        with live_states(False):
            assert not is_live()
        thread = threading.Thread(target=lambda: seen.append(is_live()))
        thread.start()
        thread.join()
        assert is_live()
    assert live_states()(is_live)()
    assert not is_live()
    assert seen == [False]


def test_the_functions_are_found_by_pickle():
    for function in (nnx.merge, nnx.pop, nnx.split, nnx.state, nnx.map, nnx.call, nnx.graph.graph_pop):
        assert pickle.loads(pickle.dumps(function)) is function


PROGRAM = """
import threading, plait.as_flax
from flax import nnx
def shares():
    model = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    print(nnx.state(model)["kernel"] is model.kernel, nnx.merge(*nnx.split(model)).kernel is model.kernel)
shares()
thread = threading.Thread(target=shares)
thread.start()
thread.join()
"""


@pytest.mark.slow
def test_programs_for_flax_have_live_states_in_every_thread():
    pytest.importorskip("flax.nnx")
    assert run_python("-c", PROGRAM).stdout == "True True\n" * 2
