"""Plans: what a graphdef remembers about rebuilding its graph. (rules G25 to G30)"""

import gc
import weakref

import jax.numpy as jnp
import pytest

import plait
from plait.graph import flatten, register_graph_node_type, register_pytree_node_type, unflatten
from tests.oracles import rebuilt
from tests.strategies import Node


def test_a_plan_keeps_no_object_alive():
    """Neither what it was made from, nor what it has built, nor the graphdef."""
    model = Node(w=plait.Param(jnp.ones(2)), below=[Node(w=plait.BatchStat(jnp.ones(2)), x=jnp.zeros(1))])
    graphdef, state = plait.split(model)
    built = plait.merge(graphdef, state)
    objects = [model, model.w, model.below[0], built, built.w, built.below[0]]
    refs = [weakref.ref(item) for item in objects]
    del model, built, state, objects
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    graphdef = weakref.ref(graphdef)
    gc.collect()
    assert graphdef() is None


class Watched:
    """A graph node whose callbacks write down what they see."""

    seen: list = []

    def __init__(self, **children):
        self.children = children


class WatchedPair:
    """A pytree node that does so, too."""

    def __init__(self, first, second):
        self.first, self.second = first, second


def names_below(child):
    return sorted(vars(child)) if isinstance(child, Node) else type(child).__name__


def init(node, children):
    children = list(children)
    Watched.seen.append([(key, names_below(child)) for key, child in children])
    node.children.update(children)


def unflatten_pair(children, metadata):
    Watched.seen.append([(key, names_below(child)) for key, child in children])
    return WatchedPair(*(child for _, child in children))


register_graph_node_type(
    Watched,
    flatten=lambda node: (sorted(node.children.items()), None),
    set_key=lambda node, key, value: node.children.__setitem__(key, value),
    pop_key=lambda node, key: node.children.pop(key),
    create_empty=lambda metadata: Watched(),
    clear=lambda node: node.children.clear(),
    init=init,
)
register_pytree_node_type(
    WatchedPair,
    flatten=lambda pair: ([("first", pair.first), ("second", pair.second)], None),
    unflatten=unflatten_pair,
)


def test_callbacks_of_registered_types_find_their_children_filled():
    """G26: children first, then the node; the same calls in the same order as node by node."""
    inner = Node(a=plait.Param(1.0), b=Node(c=2))
    graph = Node(
        first=Watched(x=inner, y=[Node(d=1)]), second=WatchedPair(Node(e=plait.Param(2.0)), Watched(z=inner)), last=3
    )
    graphdef, values = flatten(graph, with_paths=False)
    Watched.seen.clear()
    expected = rebuilt(graphdef, values)
    calls = Watched.seen[:]
    Watched.seen.clear()
    built = unflatten(graphdef, values)
    assert Watched.seen == calls == [[("x", ["a", "b"]), ("y", "list")], [("z", ["a", "b"])], calls[2]]
    assert calls[2] == [("first", ["e"]), ("second", "Watched")]
    assert plait.graphdef(built) == plait.graphdef(expected) == graphdef
    assert built.first.children["x"] is built.second.second.children["z"]
    assert built.first.children["x"].b.c == 2


class Loud(plait.Module):
    """Has a property of the name of an attribute, as old code does to check what is assigned."""

    calls: list = []

    @property
    def rate(self):
        return self.__dict__["rate"]

    @rate.setter
    def rate(self, value):
        Loud.calls.append(value)
        self.__dict__["rate"] = value


def test_properties_of_the_class_are_not_called():
    """G26: a rebuild runs no code of the user."""
    model = Loud()
    model.rate = 0.5
    model.w = plait.Param(1.0)
    vars(model)["__class__"] = "hidden"
    Loud.calls.clear()
    merged = plait.merge(*plait.split(model))
    assert (merged.rate, Loud.calls) == (0.5, [])
    assert vars(merged)["__class__"] == "hidden"
    assert type(merged) is Loud


class Totalled(plait.Module):
    """Has a read-only property; the class alone does not say whether an attribute is hidden under it."""

    @property
    def total(self):
        return -1


class OtherTotalled(Totalled):
    pass


def totalled(kind, name):
    """A module with one attribute, stored as old code does that renamed an attribute and kept a property."""
    node = kind()
    vars(node)[name] = plait.Param(1.0)
    return node


@pytest.mark.parametrize("second", [(Totalled, "w"), (Totalled, "total"), (OtherTotalled, "total"), (Node, "total")])
@pytest.mark.parametrize("first", [(Totalled, "w"), (Totalled, "total"), (OtherTotalled, "w"), (Node, "total")])
def test_how_a_node_is_filled_depends_on_its_class_and_its_keys(first, second):
    """G26: each of two nodes is rebuilt as if it were alone, in either order."""
    model = Node(a=totalled(*first), b=totalled(*second))
    merged = plait.merge(*plait.split(model))
    for node, (kind, name) in ((merged.a, first), (merged.b, second)):
        assert (type(node), vars(node)[name].value) == (kind, 1.0)


def test_marks_are_each_nodes_own():
    """G58: explicit marks come back, and a later mark on one node is not one on another."""
    model = Node(a=Node(x=plait.data(1)), b=Node(x=plait.static("s")), c=Node(x=2), d=Node(x=2))
    merged = plait.merge(*plait.split(model))
    assert plait.graphdef(merged) == plait.graphdef(model)
    merged.c.x = plait.data(2)
    assert list(plait.state(merged)) == ["a", "c"]


class Sum(plait.Param):
    """A kind with an own way to copy and to take a state."""

    def copy(self, *args, **updates):
        return super().copy(*args, **{**updates, "copied": True})

    def update_from_state(self, leaf):
        super().update_from_state(leaf.replace(leaf.get_raw_value() + self.get_raw_value()))


def test_kinds_of_variables_keep_their_own_methods():
    """G28, G38: merge copies a variable as its class says, and update gives it the leaf."""
    model = Node(a=Sum(1.0), b=plait.Param(1.0, note=1), c=plait.Param(1.0))
    state = plait.state(model)
    plait.update(model, state)
    assert (model.a.value, model.b.value) == (2.0, 1.0)
    merged = plait.merge(*plait.split(model))
    assert merged.a.get_metadata("copied") is True
    assert (merged.b.note, merged.c.has_metadata("copied")) == (1, False)


@pytest.mark.filterwarnings("ignore::plait.errors.LostUpdateWarning")  # what is written is not read again
@pytest.mark.parametrize("copy", [True, False])
def test_references_arrays_and_raw_values_stand_beside_variables(copy):
    """G28, G36: every kind of leaf of a state, in one merge; a reference is never shared by a copy."""
    model = Node(a=plait.Param(1.0), r=plait.Param(jnp.ones(2), ref=True), x=jnp.zeros(1), z=plait.Cache(3.0, note=1))
    graphdef, state = plait.split(model)
    state["a"] = 5.0
    merged = plait.merge(graphdef, state, copy=copy)
    assert (type(merged.a), merged.a.value, merged.z.note) == (plait.Param, 5.0, 1)
    assert merged.x is model.x
    assert (merged.r is state["r"], merged.z is state["z"]) == (not copy, not copy)
    assert (merged.r.get_raw_value() is state["r"].get_raw_value()) == (not copy)
    merged.r[...] = jnp.zeros(2)
    assert model.r.value.tolist() == [1.0, 1.0]
