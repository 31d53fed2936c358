"""What every value in a graph is, the two registries, and the built-in pytree nodes."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.core.nodes.nodes import Kind, kind_of, unwrapped
from plait.errors import GraphError

Point = collections.namedtuple("Point", "y x")


class TupleOfTwo(tuple):
    """A tuple that JAX takes for a leaf."""


class Net(nnx.Module):
    pass


class Plain:
    pass


@jax.tree_util.register_pytree_with_keys_class
class Tagged:
    """A container of JAX, whose children come in an order of their own."""

    def __init__(self, second, first, tag):
        self.second, self.first, self.tag = second, first, tag

    def tree_flatten_with_keys(self):
        keys = jax.tree_util.GetAttrKey
        return ((keys("second"), self.second), (keys("first"), self.first)), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(*children, tag)


class Keyed:
    """A container of JAX with the key entries of its choice."""

    def __init__(self, entries):
        self.entries = entries


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda keyed: ([(entry, value) for entry, value in keyed.entries], tuple(entry for entry, _ in keyed.entries)),
    lambda entries, values: Keyed(list(zip(entries, values, strict=True))),
)

PYTREES = {
    "list": [1],
    "tuple": (1,),
    "dict": {"a": 1},
    "None": None,
    "state": nnx.State({"a": 1}),
    "named tuple": Point(1, 2),
    "tuple subclass": TupleOfTwo((1, 2)),
    "ordered dict": collections.OrderedDict(a=1),
    "unsortable defaultdict": collections.defaultdict(int, {1: 1, "a": 2}),
    "jax container": Tagged(1, 2, "t"),
}
STATICS = {
    "int": 1,
    "bool": True,
    "float": 1.0,
    "complex": 1j,
    "string": "a",
    "bytes": b"a",
    "type": int,
    "function": len,
    "lambda": lambda: None,
    "method": [].append,
    "partial": functools.partial(len),
    "numpy scalar": np.float32(1),
    "dtype": jnp.dtype("int8"),
    "object": Plain(),
    "set": {1},
    "partition spec": jax.sharding.PartitionSpec("a"),
    "ellipsis": ...,
}
KINDS = [
    *((name, value, Kind.PYTREE) for name, value in PYTREES.items()),
    *((name, value, Kind.STATIC) for name, value in STATICS.items()),
    ("variable", nnx.Param(1), Kind.VARIABLE),
    ("module", Net(), Kind.GRAPH),
    ("object node", type("Node", (nnx.Object,), {})(), Kind.GRAPH),
    ("list module", nnx.List(), Kind.GRAPH),
    ("array", jnp.ones(2), Kind.ARRAY),
    ("numpy array", np.ones(2), Kind.ARRAY),
    ("key", jax.random.key(0), Kind.ARRAY),
    ("abstract array", jax.ShapeDtypeStruct((2,), jnp.float32), Kind.ARRAY),
    ("reference", jax.new_ref(jnp.ones(2)), Kind.REF),
]
each_kind = pytest.mark.parametrize(("name", "value", "kind"), KINDS, ids=[name for name, _, _ in KINDS])


@each_kind
def test_every_value_has_one_kind(name, value, kind):
    """G1; asked twice, because kinds are remembered per type."""
    assert kind_of(value) is kind_of(value) is kind


def test_tracers_have_the_kind_of_what_they_stand_for():
    """G1."""
    kinds = []
    reference = jax.new_ref(jnp.ones(2))

    @jax.jit
    def look(x):
        kinds.append(kind_of(x))
        kinds.append(kind_of(jax.new_ref(x)))
        kinds.append(kind_of(reference))
        return x

    look(jnp.ones(2))
    jax.vmap(lambda x: kinds.append(kind_of(x)))(jnp.ones(2))
    assert kinds == [Kind.ARRAY, Kind.REF, Kind.REF, Kind.ARRAY]


def test_a_subclass_of_a_registered_type_is_not_registered():
    """G1: exact type, no inheritance lookup."""

    class Special(collections.UserDict):
        pass

    nnx.graph.register_pytree_node_type(
        Special, lambda node: (list(node.items()), None), lambda items, _: Special(dict(items))
    )
    assert kind_of(Special()) is Kind.PYTREE
    assert kind_of(type("MoreSpecial", (Special,), {})()) is Kind.STATIC


@each_kind
def test_predicates_answer_for_everything(name, value, kind):
    """G3, G4: total functions."""
    graph = nnx.graph
    assert graph.is_node(value) is (kind in (Kind.GRAPH, Kind.PYTREE))
    assert graph.is_graph_node(value) is (kind in (Kind.GRAPH, Kind.VARIABLE, Kind.REF))
    assert graph.is_node_module(value) is (kind is Kind.GRAPH)
    assert graph.is_pytree_node(value) is (kind is Kind.PYTREE)
    assert graph.is_node_leaf(value) is (kind in (Kind.VARIABLE, Kind.ARRAY, Kind.REF))
    assert graph.is_state_leaf(value) is (kind is Kind.VARIABLE)
    impl = graph.get_node_impl(value)
    assert (impl is not None) is (kind in (Kind.GRAPH, Kind.PYTREE))
    if kind is Kind.GRAPH:
        assert impl is graph.get_node_impl_for_type(type(value))
        assert graph.is_pytree_node(value, check_graph_registry=False) is not isinstance(value, nnx.Object)


def test_predicates_of_types():
    """G3, G4."""
    graph = nnx.graph
    for cls in (Net, nnx.Module, list, dict, type(None), nnx.State, graph.GenericPytree):
        assert graph.is_node_type(cls)
        assert graph.get_node_impl_for_type(cls) is not None
    for cls in (int, nnx.Param, Plain, Point):
        assert not graph.is_node_type(cls)
        assert graph.get_node_impl_for_type(cls) is None
    assert graph.get_node_impl(Point(1, 2)) is graph.get_node_impl_for_type(graph.GenericPytree)


# Registries -----------------------------------------------------------------------------------------------------------


class Box:
    """A graph node by registration: knows nothing of plait."""

    def __init__(self):
        raise AssertionError("a user's __init__ does not run")


def new_box(**content):
    box = object.__new__(Box)
    box.__dict__.update(content)
    return box


def set_box_key(box, key, value):
    current = box.__dict__.get(key)
    if isinstance(current, nnx.Variable) and isinstance(value, nnx.Variable):
        current.update_from_state(value)
    else:
        setattr(box, key, value)


BOX_CALLBACKS = {
    "flatten": lambda box: (
        [(k, nnx.graph.DataElem(v) if k == "data" else nnx.graph.StaticElem(v) if k == "fixed" else v)
         for k, v in sorted(box.__dict__.items())], "box metadata",
    ),
    "set_key": set_box_key,
    "pop_key": lambda box, key: box.__dict__.pop(key),
    "create_empty": lambda metadata: new_box(),
    "clear": lambda box: box.__dict__.clear(),
    "init": lambda box, children: box.__dict__.update(children),
}  # fmt: skip
nnx.graph.register_graph_node_type(Box, **BOX_CALLBACKS)


def test_a_registered_graph_node_goes_round_with_sharing_and_cycles():
    """G5: children can be forced to be data or static."""
    shared = nnx.Param(jnp.ones(2))
    box = new_box(a=shared, b=shared, data=3.0, fixed=(1, 2), name="n")
    box.me = box
    graphdef, state = nnx.split(box)
    assert nnx.to_pure_dict(state)["data"] == 3.0
    assert list(state) == ["a", "data"]
    again = nnx.merge(graphdef, state)
    assert type(again) is Box
    assert again.me is again
    assert again.a is again.b is not shared
    assert (again.data, again.fixed, again.name) == (3.0, (1, 2), "n")
    assert graphdef.metadata == "box metadata"


def test_update_and_pop_use_the_callbacks():
    """G5: an old variable is updated, and keeps its identity."""
    variable = nnx.Param(1.0)
    box = new_box(w=variable, n=nnx.BatchStat(2.0))
    nnx.update(box, {"w": nnx.Param(5.0)})
    assert box.w is variable
    assert variable.value == 5.0
    assert list(nnx.pop(box, nnx.BatchStat)) == ["n"]
    assert not hasattr(box, "n")


def test_all_callbacks_are_required():
    """G5."""
    with pytest.raises(TypeError, match="required positional argument"):
        nnx.graph.register_graph_node_type(Plain, BOX_CALLBACKS["flatten"])


def test_a_type_in_both_registries_is_a_graph_node():
    """G1: the order of the tests."""

    class Both(Box):
        pass

    nnx.graph.register_graph_node_type(Both, **BOX_CALLBACKS)
    nnx.graph.register_pytree_node_type(Both, lambda node: ((), None), lambda items, _: None)
    assert kind_of(object.__new__(Both)) is Kind.GRAPH


class Frozen:
    def __init__(self, *items):
        self.items = items


nnx.graph.register_pytree_node_type(
    Frozen, lambda node: (list(enumerate(node.items)), None), lambda items, _: Frozen(*(value for _, value in items))
)


def test_a_pytree_node_without_setters_is_immutable():
    """G6; error table: set and pop on an immutable container."""
    model = nnx.Dict(frozen=Frozen(nnx.Param(1.0), 2))
    again = nnx.clone(model)
    assert isinstance(again.frozen, Frozen)
    assert again.frozen.items[0].value == 1.0
    with pytest.raises(ValueError, match=r"(?s)Cannot set key 1.*Frozen"):
        nnx.update(model, {"frozen": {1: jnp.ones(2)}})
    with pytest.raises(ValueError, match=r"(?s)Cannot pop key 0.*Frozen"):
        nnx.pop(model, nnx.Param)
    nnx.update(model, {"frozen": {0: jnp.ones(2)}})
    assert model.frozen.items[0].shape == (2,), "a variable in it can change all the same"


# Built-in pytree nodes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "keys", "can_set", "can_pop"),
    [
        ([1, 2], [0, 1], True, False),
        ((1, 2), [0, 1], False, False),
        ({"b": 1, "a": 2, 10: 3, 9: 4}, [9, 10, "a", "b"], True, True),
        (nnx.State({"b": 1, 2: 3}), [2, "b"], True, True),
        (None, [], False, False),
    ],
    ids=["list", "tuple", "dict", "state", "None"],
)
def test_the_built_in_entries(node, keys, can_set, can_pop):
    """G8."""
    impl = nnx.graph.get_node_impl(node)
    children, metadata = impl.flatten(node)
    assert [key for key, _ in children] == keys
    assert (impl.set_key is not None, impl.pop_key is not None) == (can_set, can_pop)
    assert impl.unflatten(children, metadata) == node


def test_a_dict_is_rebuilt_in_key_order():
    """G8."""
    assert list(nnx.clone({"b": 1, "a": 2, 3: 4})) == [3, "a", "b"]


@pytest.mark.parametrize("container", [lambda v: [v], lambda v: {0: v}, lambda v: nnx.State({0: v})], ids=range(3))
def test_set_key_updates_a_variable_in_place(container):
    """G5, G8."""
    variable = nnx.Param(1.0)
    node = container(variable)
    set_key = nnx.graph.get_node_impl(node).set_key
    set_key(node, 0, nnx.Param(2.0))
    assert node[0] is variable
    assert variable.value == 2.0
    set_key(node, 0, 3)
    assert node[0] == 3


@pytest.mark.parametrize("key", [2, -1, "a"])
def test_a_list_takes_only_indices_that_exist(key):
    """G8; error table: set on a container."""
    with pytest.raises(ValueError, match=r"(?s)Cannot set key.*list of length 2"):
        nnx.graph.get_node_impl([]).set_key([1, 2], key, 3)


def test_generic_pytrees_are_flattened_one_level():
    """G9: children in key order, the order of JAX restored."""
    node = Tagged([1, nnx.Param(2.0)], {"x": nnx.Param(3.0)}, "tag")
    impl = nnx.graph.get_node_impl(node)
    children, metadata = impl.flatten(node)
    assert [key for key, _ in children] == ["first", "second"]
    assert children[1][1] is node.second
    again = impl.unflatten(children, metadata)
    assert again.first is node.first
    assert again.second is node.second
    assert again.tag == "tag"
    assert nnx.clone(node).second[1].value == 2.0


@pytest.mark.parametrize(
    "entry_and_key",
    [
        (jax.tree_util.SequenceKey(3), 3),
        (jax.tree_util.DictKey("a"), "a"),
        (jax.tree_util.FlattenedIndexKey(2), 2),
        (jax.tree_util.GetAttrKey("w"), "w"),
        ("other", "other"),
    ],
    ids=str,
)
def test_key_entries_of_jax_become_keys(entry_and_key):
    """G9, G67."""
    entry, key = entry_and_key
    assert nnx.graph.jax_to_nnx_path((entry,)) == (key,)


def test_named_tuples_are_keyed_by_field_and_other_tuples_by_index():
    """G1, G9."""
    node = {"n": Point(nnx.Param(1.0), 2), "t": TupleOfTwo((nnx.Param(3.0), 4))}
    state = nnx.state(node)
    assert [path for path, _ in nnx.to_flat_state(state)] == [("n", "y"), ("t", 0)]
    again = nnx.clone(node)
    assert type(again["n"]) is Point
    assert type(again["t"]) is TupleOfTwo
    assert (again["n"].y.value, again["n"].x, again["t"][0].value, again["t"][1]) == (1.0, 2, 3.0, 4)


def test_a_dict_with_keys_that_do_not_sort():
    """G2; error table: invalid generic key."""
    with pytest.raises(GraphError, match=r"(?s)cannot be ordered.*1j"):
        nnx.state({1j: nnx.Param(1), 2j: nnx.Param(2)})


children = st.integers() | st.just(None) | st.builds(lambda n: nnx.Param(n), st.integers())
containers = st.recursive(
    children,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=3).map(collections.OrderedDict)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | st.tuples(inner, inner).map(TupleOfTwo)
        | st.tuples(inner, inner).map(lambda pair: Tagged(*pair, "t"))
    ),
    max_leaves=6,
)


def shown(node):
    if isinstance(node, Tagged):
        return ("Tagged", shown(node.first), shown(node.second))
    if isinstance(node, dict):
        return (type(node).__name__, {key: shown(item) for key, item in node.items()})
    if isinstance(node, (list, tuple)):
        return (type(node).__name__, [shown(item) for item in node])
    return repr(node)


@given(containers.filter(lambda node: kind_of(node) is not Kind.STATIC))
def test_containers_go_round(node):
    """G8, G9."""
    assert shown(nnx.clone(node)) == shown(node)
    assert nnx.graphdef(nnx.clone(node)) == nnx.graphdef(node)


# Helpers --------------------------------------------------------------------------------------------------------------


def test_static_is_a_pytree_without_leaves():
    """G67: equality by value."""
    wrap = nnx.graph.Static
    assert jax.tree.leaves(wrap(3)) == []
    assert wrap((1, 2.0)) == wrap((1, 2.0)) != wrap((1, 2))
    assert hash(wrap("a")) == hash(wrap("a"))
    assert wrap(0.0) != wrap(-0.0)
    assert repr(wrap(3)) == "Static(3)"
    assert jax.tree.structure(wrap(1)) != jax.tree.structure(wrap(True))


def test_forced_children_are_unwrapped():
    """G5."""
    assert [unwrapped(nnx.graph.DataElem(1)), unwrapped(nnx.graph.StaticElem(2)), unwrapped(3)] == [1, 2, 3]


class Labelled(tuple):
    """A tuple of a label and a value, which JAX takes for a container of the value alone."""


jax.tree_util.register_pytree_node(
    Labelled, lambda pair: ((pair[1],), pair[0]), lambda label, children: Labelled((label, *children))
)


def test_a_tuple_that_is_registered_has_the_children_that_it_says():
    graphdef, state = nnx.split(Labelled(("north", jnp.ones(2))))
    assert [path for path, _ in nnx.to_flat_state(state)] == [(0,)]
    assert nnx.merge(graphdef, state)[0] == "north"
