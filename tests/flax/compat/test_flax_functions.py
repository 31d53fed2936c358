"""The small functions of Flax beside Flax's own: equal results, or errors on both sides."""

import importlib

import jax
import pytest

from plait.core.states import mappings
from plait.flax.compat import reprs
from plait.flax.compat.flax_paths import find
from plait.flax.compat.private_names import PytreeState, TraceState

NESTED = {"a": {"b": 1, "c": {}}, "d": 2, "e": {3: 4}}
CALLS = [
    ("module.first_from", (None, 0, 2), {"error_msg": "none"}),
    ("module.first_from", (None,), {"error_msg": "none"}),
    ("traversals.flatten_mapping", (NESTED,), {}),
    ("traversals.flatten_mapping", ({"a": {"b": 1, "c": {}}},), {"sep": "/"}),
    ("traversals.flatten_mapping", (NESTED,), {"is_leaf": lambda path, xs: path == ("a",)}),
    ("traversals.flatten_mapping", ({},), {}),
    ("traversals.flatten_mapping", ({},), {"keep_empty_nodes": True}),
    ("traversals.flatten_to_sequence", (NESTED,), {}),
    ("traversals.flatten_to_sequence", (5,), {}),
    ("traversals.unflatten_mapping", ({("a", "b"): 1, ("a", "c"): 2, ("d",): 3},), {}),
    ("traversals.unflatten_mapping", ([(("a", "b"), 1)],), {}),
    ("traversals.unflatten_mapping", ({"a/b": 1, "c": 2},), {"sep": "/"}),
    ("nn.linear.canonicalize_padding", (1, 2), {}),
    ("nn.linear.canonicalize_padding", ("SAME", 2), {}),
    ("nn.linear.canonicalize_padding", ([1, (2, 3)], 2), {}),
    ("nn.linear.canonicalize_padding", (None, 2), {}),
    ("nn.linear.canonicalize_padding", ((1, 2, 3), 2), {}),
]


def result_of(function, args, options):
    try:
        return function(*args, **options)
    except (ValueError, TypeError, AssertionError):
        return "an error"


@pytest.mark.oracle
@pytest.mark.parametrize(("name", "args", "options"), CALLS, ids=[f"{i}-{call[0]}" for i, call in enumerate(CALLS)])
def test_functions_agree_with_flax(name, args, options):
    path, _, name = name.rpartition(".")
    theirs = getattr(importlib.import_module(f"flax.nnx.{path}"), name)
    assert result_of(find("flax.nnx", path, name), args, options) == result_of(theirs, args, options)


def test_empty_mappings_are_kept_on_request():
    flat = mappings.flatten_mapping(NESTED, keep_empty_nodes=True)
    assert flat["a", "c"] is mappings.empty_node
    assert mappings.unflatten_mapping(flat) == NESTED
    assert jax.tree.leaves(TraceState()) == []


def test_objects_are_shown_by_what_they_yield():
    class Point(reprs.Representable):
        def __nnx_repr__(self):
            yield reprs.Object(type(self), start="{", end="}", kv_sep=": ")
            yield reprs.Attr("x", 1)

    assert repr(Point()) == "Point{x: 1}"


def test_a_trace_state_is_valid_in_its_own_trace():
    state = TraceState()
    seen = []

    def f(x):
        inner = TraceState()
        seen.extend([state.is_valid(), inner.is_valid(), inner == state, inner == TraceState()])
        return x

    jax.jit(f)(1.0)
    assert seen == [False, True, False, True]
    assert state.is_valid()
    assert PytreeState() == PytreeState()
