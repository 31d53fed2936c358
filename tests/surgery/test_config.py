"""Configurations: a model's structure as JSON, and back."""

import enum
import functools
import json
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import plait
from plait.errors import ConfigError


def scaled(x, factor):
    return x * factor


class Net(plait.Module):
    """Shared parts, a cycle, plain containers, arrays, functions, dtypes and metadata."""

    def __init__(self):
        rngs = plait.Rngs(0)
        self.first = plait.Linear(2, 3, rngs=rngs, kernel_metadata={"note": ("in", "out")})
        self.again = self.first
        self.blocks = [plait.Linear(3, 3, rngs=rngs), {"norm": plait.BatchNorm(3, rngs=rngs)}, 1, "a"]
        self.items = plait.List([plait.Dropout(0.5, rngs=rngs)])
        self.activation = jax.nn.relu
        self.scale = functools.partial(scaled, factor=2.0)
        self.dtype = jnp.bfloat16
        self.table = jnp.arange(3)
        self.epsilon = float("inf")
        self.me = self


def round_trip(node):
    return plait.from_config(json.loads(json.dumps(plait.to_config(node))))


def test_a_configuration_gives_an_equal_structure():
    """Ask 22."""
    net = Net()
    again = round_trip(net)
    assert plait.graphdef(again) == plait.graphdef(net)
    assert again.again is again.first
    assert again.me is again


def test_a_file_may_have_its_entries_in_another_order():
    net = Net()
    again = plait.from_config(json.loads(json.dumps(plait.to_config(net), sort_keys=True)))
    assert plait.graphdef(again) == plait.graphdef(net)
    assert again.table == jax.ShapeDtypeStruct((3,), jnp.int32)


def test_leaves_are_shapes_and_dtypes():
    again = round_trip(Net())
    assert again.first.kernel.get_raw_value() == jax.ShapeDtypeStruct((2, 3), jnp.float32)
    assert again.table == jax.ShapeDtypeStruct((3,), jnp.int32)
    assert jnp.issubdtype(again.items[0].rngs.key.get_raw_value().dtype, jax.dtypes.prng_key)


def test_a_rebuilt_model_takes_the_values_of_another():
    net = Net()
    again = round_trip(net)
    plait.update(again, plait.state(net))
    assert (again.first(jnp.ones((1, 2))) == net.first(jnp.ones((1, 2)))).all()


def test_a_lambda_cannot_be_written():
    module = plait.Dict(inner=plait.Dict(f=lambda x: x))
    with pytest.raises(ConfigError, match=r"at +inner\.f\n") as error:
        plait.to_config(module)
    assert "top level" in str(error.value)


def test_a_name_that_is_not_imported_is_refused_and_not_imported():
    config = plait.to_config(plait.Dict())
    config["graph"]["node"] = "antigravity:Module"
    with pytest.raises(ConfigError, match="antigravity"):
        plait.from_config(config)


@pytest.mark.parametrize("damage", [{}, {"format": "other"}, [], {"format": "plait-config-1", "graph": {"node": 3}}])
def test_a_damaged_configuration_is_refused(damage):
    with pytest.raises(ConfigError, match="configuration"):
        plait.from_config(damage)


def test_a_name_that_is_no_variable_class_is_refused():
    config = plait.to_config(plait.Param(1.0))
    config["graph"]["variable"] = "json:dumps"
    with pytest.raises(ConfigError, match="not a variable class"):
        plait.from_config(config)


def test_filters_and_other_dataclasses_are_written_by_their_fields():
    inner = plait.Linear(3, 4, rngs=plait.Rngs(0))
    norm = plait.WeightNorm(inner, variable_filter=plait.OfType(plait.Param), rngs=plait.Rngs(0))
    assert round_trip(norm).variable_filter == plait.OfType(plait.Param)


def test_a_name_that_is_no_dataclass_is_refused():
    """Reading a configuration calls no function."""
    config = plait.to_config(plait.WeightNorm(plait.Dict(), rngs=plait.Rngs(0)))
    fields = next(child for key, child in config["graph"]["attributes"] if key == "variable_filter")
    fields["static"]["dataclass"] = "builtins:print"
    with pytest.raises(ConfigError, match="not a dataclass"):
        plait.from_config(config)


class Mode(enum.Enum):
    FAST = "fast"


LEAVES = {
    "an int": (3, 3),
    "a bool": (True, True),
    "a float": (2.5, 2.5),
    "an array": (jnp.ones((2, 1)), jax.ShapeDtypeStruct((2, 1), jnp.float32)),
    "a scalar array": (jnp.int32(3), jax.ShapeDtypeStruct((), jnp.int32)),
    "a dict": ({"a": jnp.ones(2), "b": 1}, {"a": jax.ShapeDtypeStruct((2,), jnp.float32), "b": 1}),
    "a list": ([1, jnp.ones(1)], [1, jax.ShapeDtypeStruct((1,), jnp.float32)]),
    "a tuple": ((1.5, (False,)), (1.5, (False,))),
}


@pytest.mark.parametrize("name", LEAVES)
def test_each_kind_of_leaf_comes_back(name):
    """Numbers with their values, arrays as shape and dtype, and containers around both."""
    value, expected = LEAVES[name]
    found = round_trip(plait.Variable(value)).get_raw_value()
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize("name", ["an int", "a bool", "a float", "an array", "a scalar array"])
def test_an_attribute_that_is_a_leaf_comes_back(name):
    value, expected = LEAVES[name]
    found = round_trip(plait.Dict(x=plait.data(value)))["x"]
    assert found == expected
    assert type(found) is type(expected)


STATICS = [
    *(None, True, 3, 2.5, math.inf, -math.inf, "text", Mode.FAST, (1, ("a",)), {"a": (1,), (2, 3): None}, ...),
    *(P("a", None, ("b", "c")), jnp.dtype("bfloat16"), jnp.bfloat16, scaled, plait.Linear, plait.PathContains("a")),
]


@pytest.mark.parametrize("value", STATICS, ids=lambda value: repr(value)[:20])
def test_each_kind_of_static_value_comes_back(value):
    """As an attribute, in a tuple, and as metadata of a variable."""
    model = plait.Dict(x=plait.static(value), items=plait.static((value,)), w=plait.Param(jnp.ones(1), note=value))
    again = round_trip(model)
    assert (again["x"], again["items"], again["w"].note) == (value, (value,), value)
    assert type(again["x"]) is type(value)


def test_static_values_that_equality_does_not_describe_come_back():
    again = round_trip(plait.Dict(nan=plait.static(math.nan), f=functools.partial(scaled, 2.0, factor=(1,))))
    assert math.isnan(again["nan"])
    assert (again["f"].func, again["f"].args, again["f"].keywords) == (scaled, (2.0,), {"factor": (1,)})
