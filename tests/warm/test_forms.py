"""What a stored program says of a call, as JSON and back. (rule W6)"""

import json
import math

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

import plait
from plait.core.graph.graphdef import with_index_mapping
from plait.core.objects.nodes import Static
from plait.core.objects.statics import HashableMapping
from plait.graph import register_graph_node_type
from plait.transforms.call.gather import gather
from plait.warm.forms import Forms, NoForm
from tests.strategies import Node, Pair


class Marked:
    """A graph node with metadata of its own."""

    def __init__(self, mark=None, **children):
        self.mark, self.children = mark, children


register_graph_node_type(
    Marked,
    flatten=lambda node: (sorted(node.children.items()), node.mark),
    set_key=lambda node, key, value: node.children.__setitem__(key, value),
    pop_key=lambda node, key: node.children.pop(key),
    create_empty=Marked,
    clear=lambda node: node.children.clear(),
    init=lambda node, children: node.children.update(children),
)


def shared():
    """A node below two others, a variable in two places, and a cycle."""
    below, value = Node(v=plait.Param(1.0)), plait.BatchStat(2.0)
    node = Node(a=below, b=[below, {"w": value}], w=value)
    node.me = node
    return node


GRAPHS = {
    "static values": lambda: Node(size=3, f=jax.nn.relu, names=("a", None), layout=plait.static(P("x", None))),
    "array attributes": lambda: Node(x=jnp.ones(2), y=plait.data(3.0)),
    "metadata of a variable": lambda: plait.Param(1.0, out_sharding=P(None, "x"), note={"a": 1}),
    "metadata of a node": lambda: Marked(("mark", 1), a=plait.Param(1.0)),
    "a node without metadata": lambda: Marked(None, a=Node(v=plait.Param(1.0))),
    "sharing and a cycle": shared,
    "containers": lambda: Node(items=[(), {}, {"k": plait.Cache(0.0)}, (None, 1)]),
    "a layer": lambda: plait.Linear(2, 3, dtype=jnp.bfloat16, rngs=plait.Rngs(0)),
    "streams": lambda: plait.Rngs(params=0, dropout=1),
}


def through_json(value, forms=None):
    forms = Forms([]) if forms is None else forms
    return forms.read(json.loads(json.dumps(forms.write(value))))


@pytest.mark.parametrize("name", GRAPHS)
def test_each_structure_comes_back(name):
    graphdef = plait.graphdef(GRAPHS[name]())
    assert through_json(graphdef) == graphdef
    moved = with_index_mapping(graphdef, {0: 1, 2: 0})
    assert dict(through_json(moved).index_mapping) == {0: 1, 2: 0}


def test_references_to_objects_of_another_root_come_back():
    """Several results may share an object: the second names it by its number."""
    node = shared()
    structure = gather(([node.b, node], {"again": node.a}, 1.0)).structure
    assert through_json(structure) == structure
    with plait.split_context() as context:
        parts = [context.split(each)[0] for each in (node.b[1], node.a, node, node.w, node)]
    assert [through_json(each) for each in parts] == parts


VALUES = [
    *(None, True, 3, "text", 2.5, math.inf, 1 + 2j, b"\x00\xff", ..., (1, ("a",)), [1, [2]], {"a": 1, (2,): [3]}),
    pytest.param(frozenset({1, "a"}), id="frozenset"),  # its repr has one order or the other
    *(HashableMapping({"a": (1,)}), Static((1, 2)), jnp.dtype("bfloat16"), jax.nn.relu, Node),
    *(jax.random.key(0).dtype, jax.random.key(0, impl="rbg").dtype),
    *(P(), P(None), P("x", None, ("y", "z"))),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:25])
def test_each_static_value_comes_back(value):
    found = through_json(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, P):  # P(None) == P()
        assert tuple(found) == tuple(value)


def test_values_that_equality_does_not_describe_come_back():
    assert math.isnan(through_json(math.nan))
    assert math.copysign(1, through_json(-0.0)) == -1


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, ("x", "y"))], ids=repr)
def test_shardings_come_back(spec):
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto, AxisType.Explicit))
    found = through_json(NamedSharding(mesh, spec))
    assert found == NamedSharding(mesh, spec)
    assert found.mesh.axis_types == mesh.axis_types
    assert through_json(SingleDeviceSharding(jax.devices()[3])) == SingleDeviceSharding(jax.devices()[3])


# Where the arguments of a call hold an object that has no form of its own.
KNOWN = {
    "a static attribute": lambda own: Node(tool=plait.static(own)),
    "the metadata of a variable": lambda own: plait.Param(1.0, tool=own),
    "the metadata of a node": lambda own: Marked(own, a=plait.Param(1.0)),
    "the metadata of a node below": lambda own: Node(below=[Marked(own)]),
}


@pytest.mark.parametrize("where", KNOWN)
def test_static_values_of_the_arguments_are_not_stored(where):
    """W6: they need no form, and the later process has its own."""
    own = object()
    forms = Forms([gather(KNOWN[where](own)).structure])
    assert through_json((own, 1), forms) == (own, 1)
    with pytest.raises(NoForm, match="an object in what the function returns"):
        through_json((own, 1))


REFUSED = {
    "an unconstrained spec": P(P.UNCONSTRAINED),
    "a lambda": lambda: None,
    "a set": {1, 2},
    "a container that JAX alone knows": plait.graphdef(Node(pair=Pair(plait.Param(1.0), None))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused(name):
    with pytest.raises(NoForm):
        through_json(REFUSED[name])


def adds(node, x):
    node.new = plait.Param(x, out_sharding=P("x"), note=("a", 1))
    return plait.Cache(x, out_sharding=P(None, ("x", "y")))


def test_new_variables_of_a_loaded_program_have_their_layouts(tmp_path):
    """W5, W6."""
    found = []
    for _ in range(2):
        node, step = Node(), plait.jit(adds, cache=tmp_path)
        made = step(node, jnp.ones(2))
        found.append((node.new.out_sharding, node.new.note, made.out_sharding, step.jitted_fn.programs.counts))
    layouts = P("x"), ("a", 1), P(None, ("x", "y"))
    assert found == [
        (*layouts, {"loaded": 0, "stored": 1, "not stored": 0}),
        (*layouts, {"loaded": 1, "stored": 0, "not stored": 0}),
    ]
