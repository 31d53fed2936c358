"""Static values as JSON and back, for a process that does not trace. (rules W5, W6)"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import plait
from plait.core.objects.nodes import Static
from plait.core.objects.statics import HashableMapping
from plait.transforms.stored.forms import Forms, NoForm
from tests.strategies import Node

VALUES = [
    *(None, True, 3, "text", 0.1, float("inf"), 2 - 1j, b"\x00\xff", ...),
    *((1, (2.5, "a")), [1, [2]], {"a": (1,), 2: None}, frozenset({"a", "b"})),
    *(HashableMapping({"a": 1}), Static(("a", 1)), P(), P("data"), P(("data", "model"), None, "x")),
    *(np.dtype("bfloat16"), plait.Param, plait.relu, jax.lax.dot_general),
]


def there_and_back(value, known=()):
    return Forms(known).read(json.loads(json.dumps(Forms(known).write(value))))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_w6_a_value_comes_back(value):
    found = there_and_back(value)
    assert type(found) is type(value)
    assert found.value == value.value if isinstance(value, Static) else found == value


def shared():
    part = Node(w=plait.Param(jnp.ones(2), out_sharding=("data", None)), label="a", seen=plait.data(3))
    return Node(first=part, again=part, own=plait.BatchStat(jnp.zeros(()), tag="x"), array=jnp.ones(3))


def in_a_cycle():
    node = Node(w=plait.Param(jnp.ones(2)))
    node.itself = node
    return node


@pytest.mark.parametrize("make", [shared, in_a_cycle, lambda: plait.Linear(2, 3, rngs=plait.Rngs(0))])
def test_w6_a_structure_comes_back(make):
    """With its shared parts, the marks of its attributes and the metadata of its variables: it is the same graphdef."""
    graphdef, state = plait.split(make())
    found = there_and_back(graphdef)
    assert found == graphdef
    assert plait.graphdef(plait.merge(found, state)) == graphdef


def test_w6_what_has_no_name_is_refused():
    with pytest.raises(NoForm, match="in what the function returns"):
        Forms(()).write(lambda x: x)
