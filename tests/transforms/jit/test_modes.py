"""The fast path in every mode: what a call does depends on the modes of that call, never on those of an earlier one."""

import contextlib
import itertools
import threading

import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st

import plait
from plait.errors import GraphError
from plait.transforms.jit import function as jit_module
from tests.strategies import Leafy, Node

pytestmark = pytest.mark.unchecked  # the check is a line of the generated code

MODES = [*itertools.product([True, False], repeat=2)]


def model():
    return Node(w=plait.Param(jnp.ones(2)), inner=Leafy(b=plait.Param(jnp.float32(1))))


def double(m):
    for variable in (m.w, m.inner.b):
        variable[...] = 2 * variable[...]
    return m.w[...].sum()


@contextlib.contextmanager
def set_modes(graph, updates):
    with plait.set_graph_mode(graph), plait.set_graph_updates(updates):
        yield


@pytest.mark.parametrize("modes", MODES, ids=str)
@pytest.mark.parametrize("are_set", [True, False], ids=["set", "passed"])
def test_repeated_calls_take_the_fast_path(modes, are_set, monkeypatch):
    """U32, U33."""
    graph, updates = modes
    passed = {} if are_set else {"graph": graph, "graph_updates": updates}
    step, m = plait.jit(double, **passed), model()
    with set_modes(*modes) if are_set else contextlib.nullcontext():
        step(m)
        monkeypatch.setattr(jit_module, "gather", None)
        assert step(m) == 8
    assert m.inner.b[...] == 4


def test_sharing_is_refused_in_tree_mode_at_the_call_where_it_appears():
    """G57, U32."""
    step, m = plait.jit(double, graph=False), model()
    step(m), step(m)
    m.inner.b = m.w
    with pytest.raises(GraphError, match=r"m\.inner\.b and m\.w|m\.w and m\.inner\.b"):
        step(m)
    m.inner.b = plait.Param(jnp.float32(1))
    step(m), step(m)
    assert m.inner.b[...] == 4


def test_two_arguments_that_share_are_refused_in_tree_mode():
    """G57."""
    step = plait.jit(lambda a, b: a.w[...] + b.w[...], graph=False)
    a, b = model(), model()
    step(a, b), step(a, b)
    with pytest.raises(GraphError, match="Duplicate"):
        step(a, a)
    b.w = a.w
    with pytest.raises(GraphError, match="Duplicate"):
        step(a, b)


@pytest.mark.parametrize("modes", MODES, ids=str)
def test_new_attributes_come_out_only_with_updates(modes):
    """U32: a call that makes one, again and again."""

    def grow(m):
        m.w[...] = m.w[...] + 1
        m.added = plait.Param(m.w[...])

    step, m = plait.jit(grow, graph=modes[0], graph_updates=modes[1]), model()
    for calls in (1, 2, 3):
        step(m)
        assert m.w[...].tolist() == [1 + calls] * 2
        assert hasattr(m, "added") == all(modes)


def test_a_thread_keeps_its_own_mode_on_the_fast_path():
    """U37: two threads call one function on one model in turns."""

    def grow(m):
        m.w[...] = m.w[...] + 1
        m.count = getattr(m, "count", 0) + 1

    step, m, turns, found = plait.jit(grow), model(), [threading.Semaphore(1), threading.Semaphore(0)], []

    def work(number):
        with plait.set_graph_updates(bool(number)):
            for _ in range(4):
                turns[number].acquire()
                step(m)
                found.append((number, getattr(m, "count", 0)))
                turns[1 - number].release()

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    [each.start() for each in threads], [each.join() for each in threads]
    assert found == [(0, 0), (1, 1), (0, 1), (1, 2), (0, 2), (1, 3), (0, 3), (1, 4)]
    assert m.w[...].tolist() == [9, 9]


CHANGES = {
    "none": lambda m: None,
    "share": lambda m: setattr(m.inner, "b", m.w),
    "separate": lambda m: setattr(m.inner, "b", plait.Param(jnp.ones(2))),
    "static": lambda m: setattr(m, "size", getattr(m, "size", 0) + 1),
    "more": lambda m: setattr(m, "more", plait.Param(jnp.ones(2))),
}


def change_inside(m):
    double(m)
    if hasattr(m, "size"):
        m.size = m.size + 1
        m.new = plait.Param(m.w[...] + m.size)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(MODES), st.sampled_from(sorted(CHANGES)), st.booleans()), min_size=3, max_size=8)
)
def test_any_sequence_of_modes_and_changes_is_as_without_the_fast_path(steps):
    """U32 to U34: beside functions that are jitted anew for each call, which never take it."""
    bodies = double, change_inside
    kept = [*map(plait.jit, bodies)]
    fast, slow = (model(), kept.__getitem__), (model(), lambda number: plait.jit(bodies[number]))
    for modes, change, inside in steps:
        results = []
        for m, function in (fast, slow):
            CHANGES[change](m)
            with set_modes(*modes):
                try:
                    function(inside)(m), function(inside)(m)
                    results.append("done")
                except GraphError as error:
                    results.append(str(error))
        assert results[0] == results[1]
        graphdefs, states = zip(*(plait.split(m) for m, _ in (fast, slow)), strict=True)
        assert graphdefs[0] == graphdefs[1]
        assert plait.to_pure_dict(states[0]).__repr__() == plait.to_pure_dict(states[1]).__repr__()
