"""The leaves of nested states in the walk order of a graphdef. (rule G29)"""

import collections
import types

import jax.numpy as jnp
import pytest
from hypothesis import given

import plait
from plait.core.graph.state_leaves import leaves_in_order
from tests.strategies import Node, graphs


@given(graphs())
def test_leaves_of_nested_states_come_in_walk_order(graph):
    """G22, G29: whatever the order of the entries in the mappings."""
    graphdef, flat = plait.graph.flatten(graph)

    def reversed_entries(mapping):
        return {
            key: reversed_entries(value) if isinstance(value, dict) else value
            for key, value in reversed(mapping.items())
        }

    nested = flat.to_nested_state().raw_mapping
    for mapping in (nested, reversed_entries(nested), types.MappingProxyType(nested)):
        assert list(map(id, leaves_in_order(graphdef, mapping))) == list(map(id, flat.leaves))


def model():
    return Node(a=Node(w=plait.Param(jnp.ones(2))), b=Node(steps=1, below=[None, ()]), c=plait.Param(1.0))


FORMS = {
    "plain": lambda state: state,
    "an empty entry for a part without leaves": lambda state: {**state, "b": {}},
    "entries all the way down": lambda state: {**state, "b": {"below": {1: {}}}},
    "a state inside": lambda state: {**state, "a": plait.State(state["a"])},
    "another mapping inside": lambda state: {**state, "a": types.MappingProxyType(state["a"])},
    "an ordered dict": lambda state: collections.OrderedDict(state),
}


@pytest.mark.parametrize("form", FORMS)
def test_mappings_of_every_kind_are_taken(form):
    """G25, G29."""
    graphdef, state = plait.split(model())
    leaves = leaves_in_order(graphdef, FORMS[form](state.raw_mapping))
    assert leaves == [state["a"]["w"], state["c"]]


def test_a_leaf_in_place_of_a_part_is_not_asked_for_entries():
    """G29: the hooks of the variable do not run."""
    calls = []

    class Asked(plait.Param):
        def on_get_value(self, value):
            calls.append("get")
            return value

    graphdef, _ = plait.split(model())
    with pytest.raises(ValueError, match=r"(?s)a leaf where a subgraph is expected.*at +a of a Node"):
        plait.merge(graphdef, {"a": Asked({"w": jnp.ones(2)}), "c": plait.Param(1.0)})
    assert calls == []


def test_looking_up_adds_no_entries():
    """A dict that makes up its entries is only read."""
    graphdef, state = plait.split(model())
    lazy = collections.defaultdict(dict, c=state["c"])
    with pytest.raises(ValueError, match=r"(?s)lacks a leaf.*at +a\.w"):
        plait.merge(graphdef, lazy)
    assert list(lazy) == ["c"]
