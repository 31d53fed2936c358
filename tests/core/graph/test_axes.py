"""Axis names of one variable. What transforms do with them is in tests/transforms and tests/partitioning. (V37, V40)"""

import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import plait
from plait.core.graph.axes import PARTITION_NAME, drop_axis, has_axis_metadata, put_axis


class Hooked(plait.Param):
    def add_axis(self, index, name):
        raise AssertionError("it is only asked for")


@pytest.mark.parametrize("names", [("rows", "columns"), PartitionSpec("rows", "columns")])
@pytest.mark.parametrize("index", [0, 1, -1])
def test_names_that_are_dropped_can_be_put_back(names, index):
    variable = plait.Param(jnp.zeros((2, 3)), out_sharding=names)
    dropped = drop_axis(variable, index, {})
    assert dropped == {PARTITION_NAME: names[index]}
    assert tuple(variable.out_sharding) == (names[1 - index % 2],)
    put_axis(variable, index, {}, dropped)
    assert variable.out_sharding == names
    assert type(variable.out_sharding) is type(names)


@pytest.mark.parametrize(
    ("kind", "metadata", "with_name", "without"),
    [
        (plait.Param, {}, False, False),
        (plait.Param, {"out_sharding": ("rows",)}, True, True),
        (Hooked, {}, True, False),
        (plait.Param, {"on_remove_axis": lambda *given: None}, True, False),
        (plait.Param, {PARTITION_NAME: "x"}, True, False),
    ],
    ids=["plain", "names", "method", "hook", "own metadata"],
)
@pytest.mark.filterwarnings("ignore:hooks in the metadata")
def test_what_an_axis_affects(kind, metadata, with_name, without):
    variable = kind(jnp.zeros(2), **metadata)
    assert has_axis_metadata(variable, {PARTITION_NAME: "layers"}) is with_name
    assert has_axis_metadata(variable, {}) is without
