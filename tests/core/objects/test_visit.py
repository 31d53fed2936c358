"""``visit``: order, sharing, paths, passing parts over, stopping early. (G1, G2, G53)"""

import jax.numpy as jnp
import pytest
from hypothesis import given

import plait as nnx
from plait.core.graph.flatten import Walk, path_of
from plait.core.objects.nodes import Kind
from plait.core.objects.visit import Place, children_first, children_if_any, children_of, iter_graph_nodes, visit
from plait.errors import GraphError
from tests.strategies import graphs


def shared_and_cyclic():
    shared = nnx.Dict(v=nnx.Param(1.0))
    root = nnx.Dict(b=[1, shared], a={"x": (shared, nnx.List([nnx.Dict()]))})
    root.me = root
    return root


LEAVES = (Kind.VARIABLE, Kind.REF, Kind.ARRAY)


@given(graphs())
def test_leaves_come_as_in_the_walk(graph):
    """The order, the first paths and the sharing are those of flatten."""
    walk = Walk()
    walk.add(graph)
    places = [place for place in visit(graph) if place.kind in LEAVES and place.first is None]
    assert [place.path for place in places] == [*map(path_of, walk.links)]
    assert all(place.value is leaf for place, leaf in zip(places, walk.leaves, strict=True))


@given(graphs())
def test_children_first_gives_the_same_places(graph):
    places = [*visit(graph)]
    turned = [place.path for place in children_first(places)]
    assert sorted(turned, key=str) == sorted((place.path for place in places), key=str)
    done = {path: number for number, path in enumerate(turned)}
    assert all(done[path] < done[path[:-1]] for path in turned if path)


def test_owners_come_before_what_they_own_and_cycles_end():
    found = [(place.path, place.first and place.first.path) for place in visit(shared_and_cyclic())]
    assert found == [
        ((), None),
        (("a",), None),
        (("a", "x"), None),
        (("a", "x", 0), None),
        (("a", "x", 0, "v"), None),
        (("a", "x", 1), None),
        (("a", "x", 1, 0), None),
        (("b",), None),
        (("b", 0), None),
        (("b", 1), ("a", "x", 0)),
        (("me",), ()),
    ]


def test_graph_nodes_come_once_at_their_first_path():
    root = shared_and_cyclic()
    assert [path for path, _ in iter_graph_nodes(root)] == [(), ("a", "x", 0), ("a", "x", 1), ("a", "x", 1, 0)]
    assert list(iter_graph_nodes(3)) == []


def test_a_part_can_be_passed_over():
    seen = []
    for place in visit(shared_and_cyclic()):
        seen.append(place.path)
        if place.path == ("a",):
            place.enter = False
    assert seen == [(), ("a",), ("b",), ("b", 0), ("b", 1), ("b", 1, "v"), ("me",)]


def test_what_is_not_asked_for_is_not_opened():
    opened = []

    def children(node):
        opened.append(node)
        return children_of(node)

    places = visit([[1], [2]], children=children)
    assert [next(places).path for _ in range(3)] == [(), (0,), (0, 0)]
    assert opened == [[[1], [2]], [1]]


def test_who_asks_says_what_is_one_object():
    array = jnp.ones(2)
    root = [array, array]
    assert [place.first for place in visit(root)] == [None, None, None]
    places = [*visit(root, is_shared=lambda value, kind: kind is Kind.ARRAY)]
    assert places[2].first is places[1]


@pytest.mark.parametrize(
    ("child", "value", "kind", "paths"),
    [
        (2.0, 2.0, Kind.STATIC, [("x",)]),
        (nnx.data(2.0), 2.0, Kind.ARRAY, [("x",)]),
        (nnx.static([1]), [1], Kind.PYTREE, [("x",), ("x", 0)]),
        (None, None, Kind.PYTREE, [("x",)]),
    ],
)
def test_marks_are_taken_off(child, value, kind, paths):
    """G58: what is marked as data is a leaf whatever its type."""

    class Holder(nnx.Module):
        def __init__(self):
            self.x = child

    root, *places = visit(Holder())
    assert [place.path for place in places] == paths
    assert (places[0].value, places[0].kind, places[0].owner) == (value, kind, root)


def test_depth_costs_no_recursion():
    root = leaf = []
    for _ in range(5_000):
        leaf.append([])
        leaf = leaf[0]
    *_, last = visit(root)
    assert len(last.path) == 5_000
    assert next(children_first(visit(root))).value is leaf


def test_what_cannot_be_walked_is_passed_over_on_demand():
    root = [{"a": 1}, {"a": 0, 1j: 1, 2j: 1}, [3]]
    with pytest.raises(GraphError, match="key"):
        list(visit(root))
    assert [place.path for place in visit(root, children=children_if_any)][-1] == (2, 0)


def test_a_place_is_known_by_itself():
    assert len({Place(None, None, 1), Place(None, None, 1)}) == 2


def test_a_plain_container_that_contains_itself_ends():
    """G53: it has no identity, so a list that occurs twice is entered twice; but not inside of itself."""
    inner = [1]
    root = [inner, inner, []]
    root[2].append(root)
    assert [place.path for place in visit(root)] == [(), (0,), (0, 0), (1,), (1, 0), (2,), (2, 0)]
