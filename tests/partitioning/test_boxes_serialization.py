"""Boxes in ``flax.serialization``: what is stored is the value, as for Flax's own boxes. (rule B3)"""

import flax.linen as nn
import flax.serialization as serialization
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait import meta
from plait.bridge import NNXMeta
from plait.errors import ArgumentError

BOXES = {
    "Partitioned": meta.Partitioned(jnp.ones(2), ("a",)),
    "LogicallyPartitioned": meta.LogicallyPartitioned(jnp.ones(2), ("a",)),
    "NNXMeta": NNXMeta(plait.Param, jnp.ones(2), {"note": "hi"}),
    "in a box": meta.Partitioned(meta.Partitioned(jnp.ones(2), ("a",)), ("b",)),
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_comes_back_with_its_metadata(name):
    box = BOXES[name]
    assert list(serialization.to_state_dict(box)) == ["value"]
    back = serialization.from_bytes({"w": box}, serialization.to_bytes({"w": box}))["w"]
    assert type(back) is type(box)
    assert back == box


def test_the_state_is_that_of_flaxs_boxes():
    ours, theirs = BOXES["LogicallyPartitioned"], nn.LogicallyPartitioned(jnp.ones(2), ("a",))
    assert serialization.to_bytes(ours) == serialization.to_bytes(theirs)
    assert np.array_equal(serialization.from_state_dict(ours, serialization.to_state_dict(theirs)).value, np.ones(2))


def test_a_state_that_does_not_fit_is_an_error():
    for state in ({}, {"value": 1, "names": 2}):
        with pytest.raises(ArgumentError, match=r"at +a Partitioned"):
            serialization.from_state_dict(BOXES["Partitioned"], state)


def test_boxes_have_replace():
    box = BOXES["NNXMeta"].replace(value=jnp.zeros(2))
    assert (box.value.tolist(), box.metadata) == ([0.0, 0.0], {"note": "hi"})
