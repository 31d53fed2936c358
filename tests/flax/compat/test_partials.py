"""cached_partial and jit_partial. (rules U35, U36, X11, X12)"""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from tests.oracles import describe
from tests.strategies import Node


def counter():
    return Node(count=plait.Variable(jnp.zeros(())), layers=[plait.Param(jnp.float32(3))], scale=1)


def step(model, x, factor=1.0):
    model.count[...] += 1
    return x * model.count[...] * model.layers[0][...] * model.scale * factor


# What may happen to the bound model between two calls, and inside one.
CHANGES = {
    "value": lambda m: m.count.set_value(m.count[...] + 5),
    "static": lambda m: setattr(m, "scale", m.scale + 1),
    "repointed": lambda m: setattr(m, "count", plait.Variable(jnp.float32(7))),
    "container": lambda m: m.layers.__setitem__(0, plait.Param(jnp.float32(2))),
    "grown": lambda m: m.layers.append(plait.Param(jnp.float32(2))),
    "metadata": lambda m: m.count.set_metadata(note=len(m.layers)),
    "new attribute": lambda m: setattr(m, "extra", Node(w=m.count)),
    "nothing": lambda m: None,
}


@pytest.mark.slow
@given(st.lists(st.sampled_from(sorted(CHANGES)), max_size=4))
def test_it_is_the_function_with_its_arguments(changes):
    """U35: after any changes between the calls, the answers and the model are those of the plain call."""
    f = plait.jit(step)
    ours, expected = counter(), counter()
    bound = plait.cached_partial(f, ours)
    for name in ["nothing", *changes, "nothing"]:
        for model in (ours, expected):
            CHANGES[name](model)
        assert bound(2.0, factor=2.0).item() == f(expected, 2.0, factor=2.0).item() == step_value(expected)
        assert describe(ours) == describe(expected)


def step_value(model):
    """What the last step returned, from what it left."""
    return 2.0 * model.count.item() * model.layers[0].item() * model.scale * 2.0


@pytest.mark.parametrize("name", sorted(set(CHANGES) - {"value", "nothing"}))
def test_structure_may_change_inside_a_call(name):
    """U35: the reference refuses it."""

    @plait.jit
    def f(model):
        CHANGES[name](model)
        return model

    ours, expected = counter(), counter()
    bound = plait.cached_partial(f, ours)
    for _ in range(2):
        assert bound() is ours
        CHANGES[name](expected)
        assert describe(ours) == describe(expected)


def test_no_trace_more_than_for_the_plain_call():
    traces = []

    @plait.jit
    def f(model, x):
        traces.append(1)
        return step(model, x)

    model = counter()
    bound = plait.cached_partial(f, model)
    bound(1.0), f(model, 1.0), bound(1.0), f(counter(), 1.0)
    assert (len(traces), model.count.item()) == (1, 3.0)


def test_several_arguments_and_any_transform():
    """U35: the bound arguments may share; any transformed function goes."""
    model = counter()
    total = plait.cached_partial(plait.jit(lambda a, b, x: a.count[...] + b[...] + x), model, model.count)
    assert total(1.0).item() == 1.0
    rows = plait.cached_partial(plait.vmap(lambda model, x: x * model.layers[0][...], in_axes=(None, 0)), model)
    np.testing.assert_allclose(rows(jnp.arange(3.0)), [0, 3, 6])


def test_dropping_the_bound_function_frees_the_model():
    """U34."""
    model = counter()
    f = plait.jit(step)
    bound = plait.cached_partial(f, model)
    bound(1.0)
    seen = weakref.ref(model)
    del bound, model
    gc.collect()
    assert seen() is None


# jit_partial ----------------------------------------------------------------------------------------------------------


def test_jit_partial_carries_values_only():
    """X11: values come back by path; changes of structure are lost."""

    def f(model, x):
        model.scale = 10
        model.new = plait.Param(x)
        return step(model, x)

    model = counter()
    bound = plait.jit_partial(f, model)
    assert (bound(1.0).item(), bound(x=1.0).item()) == (30.0, 60.0)
    assert (model.count.item(), model.scale, hasattr(model, "new")) == (2.0, 1, False)
    plait.jit_partial(f, model, graph_updates=True)(1.0)
    assert (model.scale, hasattr(model, "new")) == (10, True)


def test_options_of_jit_count_from_the_first_bound_argument():
    def f(model, x, power):
        return (model.layers[0][...] * x) ** power

    assert plait.jit_partial(f, counter(), static_argnums=2)(1.0, 2).item() == 9.0
    assert plait.jit_partial(f, counter(), static_argnames="power")(1.0, power=2).item() == 9.0


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["cached_partial", "jit_partial"])
def test_bound_functions_do_what_flax_s_do(name):
    nnx = pytest.importorskip("flax.nnx")

    def run(lib):
        model = lib.Linear(2, 3, rngs=lib.Rngs(0))

        def f(model, x, scale=1.0):
            model.bias[...] += x.sum()
            return model(x) * scale

        if name == "cached_partial":
            bound = lib.cached_partial(lib.jit(f), model)
        else:
            bound = lib.jit_partial(f, model, graph_updates=False)
        x = jnp.ones((1, 2))
        return bound(x), bound(x, scale=2.0), model.bias[...]

    with jax.numpy_rank_promotion("allow"):
        for ours, theirs in zip(run(plait), run(nnx), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_the_defaults_of_variables_are_attributes_too():
    with plait.var_defaults(ref=True):
        assert (plait.var_defaults().ref, plait.var_defaults().hijax) == (True, False)
