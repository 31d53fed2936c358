"""The outline of live graphs: every place once, shared objects and cycles as links. (W2, W3, W5, W6)"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

import plait
from plait.core.nodes.nodes import visit
from plait.inspect.explore.graphs import describe, outline_of_graph
from plait.inspect.explore.outline import LEAF, LINK, NODE
from tests.strategies import graphs


class Net(plait.Module):
    def __init__(self):
        rngs = plait.Rngs(0)
        self.first, self.second = plait.Linear(2, 3, rngs=rngs), plait.Linear(2, 3, rngs=rngs)
        self.second.kernel = self.first.kernel
        self.again = self.first
        self.itself = self
        self.sizes, self.act = (1, (2, 3)), plait.relu
        self.held = plait.Variable({"a": jnp.ones(2), "b": [jnp.zeros(3)]})


def by_path(node):
    return {entry.path: entry for entry in outline_of_graph(node, "model").entries}


def test_shared_objects_and_cycles_are_links_to_where_they_stand_first():
    entries = by_path(Net())
    links = {path: entry.target for path, entry in entries.items() if entry.role == LINK}
    assert links == {("first",): ("again",), ("itself",): (), ("second", "kernel"): ("again", "kernel")}


def test_static_attributes_belong_to_their_node():
    root = by_path(Net())[()]
    assert dict(root.attributes) == {"act": "relu()", "sizes": "(1, (2, 3))"}
    assert by_path(Net())["again",].attributes["dtype"] == "None"


def test_a_variable_that_holds_a_container_is_a_node_above_its_arrays():
    entries = by_path(Net())
    assert (entries["held",].role, entries["held",].type) == (NODE, "Variable")
    assert entries["held", "b"].role == NODE
    assert entries["held", "b", 0].shape == (3,)
    assert [entries["held", *path].type for path in (("a",), ("b",), ("b", 0))] == [""] * 3


@given(graphs())
def test_every_array_of_a_graph_is_a_leaf_once(graph):
    entries = outline_of_graph(graph, "model").entries
    paths = [entry.path for entry in entries]
    assert len(paths) == len(set(paths))
    for place, path in enumerate(paths[1:], 1):
        assert path[:-1] in paths[:place]  # owners come first
    variables = {p.path for p in visit(graph) if p.kind.name == "VARIABLE" and p.first is None}
    assert {path for path in paths if path in variables} == variables


def test_shapes_without_values_have_no_reader():
    model = plait.eval_shape(lambda: plait.Linear(10**6, 10**6, rngs=plait.Rngs(0)))
    kernel = by_path(model)["kernel",]
    assert (kernel.read, kernel.why, kernel.bytes) == (None, "a shape without values", 4 * 10**12)


def test_a_donated_array_has_no_values():
    variable = plait.Param(jnp.ones(3))
    variable.get_raw_value().delete()
    assert by_path(variable)[()].why == "its buffer was donated or deleted"


def test_random_keys_are_compared_by_their_data_and_have_no_statistics():
    entry = by_path(plait.Rngs(3))["default", "key"]
    assert (entry.is_key, entry.dtype, entry.why) == (True, "key<fry>", "")
    np.testing.assert_array_equal(entry.read(), jax.random.key_data(jax.random.key(3)))


def test_numbers_among_the_values_are_leaves():
    assert by_path({"a": jnp.ones(2), "b": 3})[()].attributes == {"b": "3"}
    variable = by_path(plait.Variable(3))[()]
    assert (variable.role, variable.dtype, variable.read()) == (LEAF, "int", 3)


class Loud:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (functools.partial(jnp.sum, axis=-1), "partial(sum(), axis=-1)"),
        (object(), "<object object>"),
        (plait.Linear, "Linear"),
        (Loud(), "<Loud>"),
        ("x" * 1000, f"'{'x' * 198}…"),
    ],
    ids=["partial", "address", "class", "repr that raises", "long"],
)
def test_static_values_are_short_text_without_addresses(value, text):
    assert describe(value) == text


def test_an_array_on_a_mesh_has_a_layout():
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec(None, ("model", "data"))
    array = jax.device_put(jnp.zeros((3, 16)), jax.sharding.NamedSharding(mesh, spec))
    layout = by_path(plait.Param(array))[()].layout
    assert (layout.mesh, layout.spec) == ((("data", 2), ("model", 4)), ((), ("model", "data")))
    assert layout.devices == tuple(device.id for device in mesh.devices.flat)


def test_axis_names_give_a_layout_on_the_mesh_in_force():
    layer = plait.Linear(4, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": (None, "model")})
    assert by_path(layer)["kernel",].layout is None
    with jax.set_mesh(jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))):
        assert by_path(layer)["kernel",].layout.spec == ((), ("model",))
