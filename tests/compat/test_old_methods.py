"""Methods that programs for Flax call."""

import jax.numpy as jnp
import pytest

import plait
from plait.errors import GraphError


def test_states_turn_into_pure_dicts_and_take_their_values():
    graphdef, state = plait.split(plait.Linear(3, 2, rngs=plait.Rngs(0)))
    with pytest.warns(DeprecationWarning, match=r"plait\.to_pure_dict\(state\)"):
        pure = state.to_pure_dict()
    assert pure["kernel"] is state["kernel"].get_raw_value()
    with pytest.warns(DeprecationWarning, match=r"plait\.replace_by_pure_dict"):
        state.replace_by_pure_dict({"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)})
    assert plait.merge(graphdef, state)(jnp.ones((1, 3))).tolist() == [[3.0, 3.0]]
    with pytest.warns(DeprecationWarning, match="to_pure_dict"):
        assert state.to_pure_dict(lambda leaf: leaf.shape)["bias"] == (2,)


def test_set_attributes_takes_the_mode():
    """D4: tree mode refuses what is shared, and nothing is set then; an attribute may not be called ``graph``."""
    dropout = plait.Dropout(0.5)
    tree, graph = plait.Dict(a=plait.Dropout(0.5)), plait.Dict(a=dropout, b=dropout)
    tree.set_attributes(deterministic=True, graph=False)
    graph.set_attributes(deterministic=True, graph=True)
    assert (tree.a.deterministic, dropout.deterministic) == (True, True)
    with pytest.raises(GraphError, match=r"at +a and b"):
        graph.set_attributes(deterministic=False, graph=False)
    assert dropout.deterministic is True
    graph.train(graph=True)
    assert dropout.deterministic is False
