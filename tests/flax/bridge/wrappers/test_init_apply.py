"""``functional``."""

import jax.numpy as jnp
import pytest

import plait
from plait import bridge
from plait.errors import ArgumentError


def test_init_gives_the_state_and_apply_a_proxy():
    """B20, G18."""
    layer = bridge.functional(plait.Linear)(2, 3, use_bias=False)
    assert isinstance(layer, bridge.Functional)
    state = layer.init(rngs=plait.Rngs(0))
    assert list(state) == ["kernel"]
    y, (graphdef, after) = layer.apply(state)(jnp.ones((1, 2)))
    model = plait.merge(graphdef, after)
    assert (y == model(jnp.ones((1, 2)))).all()
    assert layer.graphdef == graphdef
    assert list(bridge.functional(plait.Dict)(a=plait.Param(1)).init()) == ["a"]


def test_apply_needs_init():
    with pytest.raises(ArgumentError, match=r"Functional of Linear(.|\n)*init\(\) before"):
        bridge.functional(plait.Linear)(2, 3).apply(plait.State({}))
