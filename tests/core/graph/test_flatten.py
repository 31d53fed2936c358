"""The first walk, and the maps that it fills: by identity, and by index. (rules G10, G19 to G24)"""

import gc
import weakref

import jax
import jax.numpy as jnp
import pytest

import plait as nnx
from plait.errors import GraphError
from plait.graph import IndexMap, RefMap
from tests.strategies import Node, Pair


def test_a_ref_map_goes_by_identity_in_order():
    """G10: unhashable keys are fine, equal keys are two."""
    first, second = [], []
    refs = RefMap([(first, 0), (second, 1)])
    assert (first in refs, [] in refs, len(refs)) == (True, False, 2)
    assert [key is given for key, given in zip(refs, (first, second), strict=True)] == [True, True]
    refs[first] = 5
    assert (refs[first], refs.get(second), refs.get([]), refs.get([], 7)) == (5, 1, None, 7)
    del refs[first]
    with pytest.raises(KeyError):
        refs[first]
    assert list(refs.values()) == [1]


def test_a_ref_map_holds_its_keys_alive():
    """G10."""

    class Key: ...

    refs, key = RefMap(), Key()
    alive = weakref.ref(key)
    refs[key] = 0
    del key
    gc.collect()
    assert alive() is not None
    refs.clear()
    gc.collect()
    assert alive() is None


def test_an_index_map_is_the_inverse():
    """G10: the indices of a walk, the other way round."""
    model = nnx.Dict(w=nnx.Param(1.0))
    refs = RefMap()
    nnx.flatten(model, refs)
    inverse = IndexMap.from_refmap(refs)
    assert sorted(inverse) == [0, 1]
    assert inverse[refs[model]] is model
    assert inverse[refs[model.w]] is model.w


# Flatten --------------------------------------------------------------------------------------------------------------


def leaf_paths(graph):
    return nnx.graph.flatten(graph)[1].paths


CASES = {
    "ints before strings": (
        lambda: {"b": nnx.Param(1.0), 10: nnx.Param(2.0), 9: nnx.Param(3.0)},
        ((9,), (10,), ("b",)),
    ),
    "first path": (lambda: _tied(), (("dec",),)),
    "through a cycle": (lambda: _cycle(), (("next", "w"),)),
    "elements of a List": (lambda: nnx.List([nnx.Param(1.0), 2, jnp.ones(1)]), ((0,), (2,))),
    "named tuples by field": (lambda: Pair(nnx.Param(1.0), nnx.Param(2.0)), (("first",), ("second",))),
    "a variable root": (lambda: nnx.Param(1.0), ((),)),
    "data by mark": (lambda: Node(x=nnx.data(2.0), y=2.0), (("x",),)),
    "nothing": (lambda: Node(a=None, b=[], c=3), ()),
}


def _tied():
    w = nnx.Param(1.0)
    return Node(enc=w, dec=w)


def _cycle():
    first, second = Node(), Node(w=nnx.Param(1.0))
    first.next, second.next = second, first
    return first


@pytest.mark.parametrize("case", CASES)
def test_leaves_stand_in_visiting_order_at_their_first_path(case):
    """G20, G22, G23."""
    make, paths = CASES[case]
    assert leaf_paths(make()) == paths


def test_a_flat_state_is_detached_and_a_list_is_raw():
    """G19, G32."""
    model = Node(w=nnx.Param(jnp.ones(2)), x=jnp.zeros(1))
    _, flat = nnx.graph.flatten(model)
    _, raw = nnx.graph.flatten(model, with_paths=False)
    assert isinstance(flat, nnx.FlatState)
    assert flat.leaves[0] is not model.w
    assert [raw[0] is model.w.get_raw_value(), raw[1] is model.x] == [True, True]


def test_calls_with_one_index_see_what_was_met_before():
    """G19, G21: the second call yields a back-reference and no leaves."""
    model, refs = _tied(), RefMap()
    first, leaves = nnx.graph.flatten(model, refs, with_paths=False)
    again, none = nnx.graph.flatten(model, refs, with_paths=False)
    shared, _ = nnx.graph.flatten(Node(w=model.enc), refs)
    assert (len(leaves), none, type(again).__name__, again.index) == (1, [], "NodeRef", 0)
    assert (shared.index, shared.attributes[0].value.index) == (2, 1)
    assert first.index == 0


def test_pytree_nodes_take_no_index():
    """G20."""
    graphdef = nnx.graphdef([[nnx.Param(1.0)], (nnx.Param(2.0),)])
    assert [part.index for part in graphdef.nodes] == [None, None, 0, None, 1]


def test_a_reference_has_identity():
    """G1, G20: a JAX reference met twice is one leaf."""
    ref = jax.new_ref(jnp.ones(2))
    graphdef, leaves = nnx.graph.flatten(Node(a=ref, b=[ref]), with_paths=False)
    assert (graphdef.num_leaves, leaves) == (1, [ref])


def test_data_put_later_into_a_static_container_is_found():
    """G61: at the next walk, also when the graph was walked before."""
    model = Node(config=nnx.static([1]))
    nnx.split(model)
    model.config.append(nnx.Param(1.0))
    with pytest.raises(ValueError, match=r"Node\.config\[1\]"):
        nnx.split(model)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_plain_container_that_contains_itself_is_refused(depth):
    """G21: no walk can end there; the same list at two places is no cycle."""
    node = Node(items=[nnx.Param(jnp.ones(()))])
    node.twice = [node.items, node.items]
    nnx.split(node)
    innermost = node.items
    for _ in range(depth):
        innermost.append([])
        innermost = innermost[-1]
    innermost.append(node.items)
    for walk in (nnx.split, nnx.state, nnx.clone):
        with pytest.raises(GraphError, match=r"a plain container contains itself\n +at +items\[1\]"):
            walk(node)
    with pytest.raises(GraphError, match="contains itself"):
        Node(items=innermost)
