"""Laws of the graph core, over random graphs: round trips, identities, partitions."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from tests.oracles import assert_same_graph, describe, leaves, modules, rebuilt, updated, variables, walk
from tests.strategies import KINDS, Node, graphs


@given(graphs())
def test_merge_undoes_split(graph):
    """G37: the merged graph has the same types, values, sharing and cycles, and is made of other objects."""
    merged = plait.merge(*plait.split(graph))
    assert_same_graph(merged, graph)
    assert not set(map(id, variables(merged))) & set(map(id, variables(graph)))


@given(graphs())
def test_merge_keeps_the_arrays(graph):
    """G37: the leaf arrays of the merged graph are the same array objects."""
    merged = plait.merge(*plait.split(graph))
    for before, after in zip(leaves(graph), leaves(merged), strict=True):
        raw = [leaf.get_raw_value() if isinstance(leaf, plait.Variable) else leaf for _, leaf in (before, after)]
        assert raw[0] is raw[1]


@given(graphs())
def test_split_is_deterministic(graph):
    """G15, G20: splitting twice, or splitting a copy, gives the same graphdef and the same paths."""
    first, again, other = plait.split(graph), plait.split(graph), plait.split(copy.deepcopy(graph))
    assert first[0] == again[0] == other[0]
    assert hash(first[0]) == hash(other[0])
    assert first[1].flat_state().paths == again[1].flat_state().paths == other[1].flat_state().paths


@given(graphs())
def test_the_paths_of_a_state_are_the_first_paths_of_its_leaves(graph):
    """G22: leaves stand in sorted path order, each at the first path at which it is met."""
    flat = plait.graph.flatten(graph)[1]
    assert list(flat.paths) == [path for path, _ in leaves(graph)]


@pytest.mark.slow
@given(graphs(), graphs())
def test_graphdefs_are_equal_exactly_if_structures_are(first, second):
    """G15: values play no part; types, static values, topology, names and metadata do."""

    def structure(graph):
        return describe(_without_values(graph))

    assert (plait.graphdef(first) == plait.graphdef(second)) == (structure(first) == structure(second))


def _without_values(graph):
    graphdef = plait.graphdef(graph)
    return plait.merge(graphdef, [np.zeros(())] * graphdef.num_leaves)


@given(graphs())
def test_updating_with_the_own_state_changes_nothing(graph):
    """G38: update(x, split(x)[1]) is the identity, and keeps every object."""
    before, objects = describe(graph), list(map(id, variables(graph)))
    plait.update(graph, plait.split(graph)[1])
    assert describe(graph) == before
    assert list(map(id, variables(graph))) == objects


@given(graphs())
def test_update_carries_all_values_over(graph):
    """G38: a copy with other values takes the state of the original."""
    other = plait.clone(graph)
    for variable in variables(other):
        variable.set_raw_value(variable.get_raw_value() + 1)
    plait.update(other, plait.state(graph))
    assert_same_graph(other, graph)


@pytest.mark.slow
@given(graphs())
def test_clones_and_copies_are_the_same_graph(graph):
    """G41, G42: clone, deepcopy and pickle keep sharing and cycles."""
    for other in (
        plait.clone(graph),
        plait.clone(graph, arrays=True),
        copy.deepcopy(graph),
        pickle.loads(pickle.dumps(graph)),
    ):
        assert_same_graph(other, graph)
        assert plait.graphdef(other) == plait.graphdef(graph)


@given(graphs())
def test_a_clone_can_share_the_variables(graph):
    """G41: variables=False shares the variable objects and copies the rest."""
    other = plait.clone(graph, variables=False)
    assert_same_graph(other, graph)
    assert list(map(id, variables(other))) == list(map(id, variables(graph)))
    assert other is not graph


@given(graphs(), st.permutations(KINDS))
def test_filters_partition_the_leaves(graph, kinds):
    """G31, G52: each leaf goes to exactly one state, and merging the states gives the whole back."""
    graphdef, *states = plait.split(graph, *kinds, ...)
    assert sum(len(state.flat_state()) for state in states) == graphdef.num_leaves
    assert_same_graph(plait.merge(graphdef, *states), graph)
    for kind, state in zip(kinds, states, strict=False):
        assert all(isinstance(leaf, kind) for leaf in state.flat_state().leaves)


@pytest.mark.filterwarnings("ignore::plait.errors.LostUpdateWarning")  # what is written is not read again
@given(graphs())
def test_states_are_detached(graph):
    """G32: writing to a state never changes the model."""
    before = describe(graph)
    for leaf in plait.split(graph)[1].flat_state().leaves:
        if isinstance(leaf, plait.Variable):
            leaf.value = leaf.value + 1
            leaf.set_metadata(touched=True)
    assert describe(graph) == before


@given(graphs())
def test_the_live_view_holds_the_variables_themselves(graph):
    """G33: variables(m) has the model's own variables at their first paths, and no other leaves."""
    live = plait.variables(graph).flat_state()
    expected = [(path, leaf) for path, leaf in leaves(graph) if isinstance(leaf, plait.Variable)]
    assert list(live.paths) == [path for path, _ in expected]
    assert all(found is leaf for found, (_, leaf) in zip(live.leaves, expected, strict=True))


@given(graphs(shared=False, cycles=False))
def test_a_tree_round_trips_through_jax(graph):
    """G63: without sharing, the JAX face of a module is a faithful copy."""
    assert_same_graph(jax.tree.map(lambda leaf: leaf, graph), graph)


@given(graphs())
def test_a_flattened_graph_unflattens(graph):
    """G19, G25: from the flat state, the nested state, and the list of leaves."""
    graphdef, flat = plait.graph.flatten(graph)
    raw = plait.graph.flatten(graph, with_paths=False)[1]
    for state in (flat, flat.to_nested_state(), raw):
        assert_same_graph(plait.graph.unflatten(graphdef, state), graph)


@given(graphs(), st.booleans())
def test_a_planned_rebuild_is_the_one_node_by_node(graph, raw):
    """G26 to G28: the plan of a graphdef gives what the callbacks of the types give, in the order of the rules."""
    graphdef, flat = plait.graph.flatten(graph)
    values = plait.graph.flatten(graph, with_paths=False)[1] if raw else flat.leaves
    planned, expected = plait.graph.unflatten(graphdef, list(values)), rebuilt(graphdef, values)
    assert describe(planned) == describe(expected)
    for first, second in zip(modules(planned), modules(expected), strict=True):
        assert list(vars(first)) == list(vars(second))
        assert plait.graphdef(first) == plait.graphdef(second)


@given(graphs(), graphs())
def test_planned_rebuilds_share_what_rebuilds_node_by_node_share(first, second):
    """G27: a root that refers to what an earlier root has built, under one index."""
    second.partner, second.box = first, [first, *variables(first)]
    refs = plait.graph.RefMap()
    parts = [plait.graph.flatten(root, refs, with_paths=False) for root in (first, second)]
    planned: dict = {}
    expected: dict = {}
    made = [plait.graph.unflatten(graphdef, leaves, index_ref=planned) for graphdef, leaves in parts]
    twins = [rebuilt(graphdef, leaves, expected) for graphdef, leaves in parts]
    assert describe(*made) == describe(*twins)
    indices = sorted(planned)
    assert indices == sorted(expected)
    assert describe([planned[i] for i in indices]) == describe([expected[i] for i in indices])


@given(graphs())
def test_a_merge_into_the_own_objects_is_the_identity(graph):
    """G30: with all objects in the cache, each is refilled with what it held."""
    before, refs = describe(graph), plait.graph.RefMap()
    graphdef, values = plait.graph.flatten(graph, refs, with_paths=False)
    cache = plait.graph.IndexMap.from_refmap(refs)
    objects = list(map(id, [*modules(graph), *variables(graph)]))
    assert plait.graph.unflatten(graphdef, values, index_ref_cache=cache) is graph
    assert describe(graph) == before
    assert list(map(id, [*modules(graph), *variables(graph)])) == objects


@given(graphs(), st.sampled_from(KINDS), st.booleans())
def test_an_update_writes_each_leaf_to_its_path(graph, kind, noted):
    """G38: value and metadata of a part of the variables, as if each was written alone."""
    state, other = plait.state(graph, kind), plait.clone(graph)
    for _, leaf in state.flat_state():
        leaf.set_raw_value(leaf.get_raw_value() + 1)
        if noted:
            leaf.set_metadata(note="new")
    plait.update(graph, state)
    updated(other, state)
    assert describe(graph) == describe(other)
    assert plait.graphdef(graph) == plait.graphdef(other)


@pytest.mark.slow
@given(graphs(), graphs())
def test_roots_that_share_an_index_share_objects(first, second):
    """G19: an object met by an earlier call is a back-reference of the later one."""
    second.partner = first
    refs = plait.graph.RefMap()
    one, leaves_one = plait.graph.flatten(first, ref_index=refs, with_paths=False)
    two, leaves_two = plait.graph.flatten(second, ref_index=refs, with_paths=False)
    built: dict = {}
    a = plait.graph.unflatten(one, leaves_one, index_ref=built)
    b = plait.graph.unflatten(two, leaves_two, index_ref=built)
    assert b.partner is a
    assert describe(a, b) == describe(first, second)


@given(graphs())
def test_iter_graph_visits_every_object_once(graph):
    """G53: the oracle finds the same modules and variables, and the root comes last."""
    found = list(plait.iter_graph(graph))
    objects = [value for _, value in found if isinstance(value, (plait.Pytree, plait.Variable))]
    expected = [value for _, value in walk(graph) if isinstance(value, (plait.Pytree, plait.Variable))]
    assert sorted(map(id, objects)) == sorted(map(id, expected))
    assert found[-1] == ((), graph)


@pytest.mark.slow
@given(graphs(), st.sampled_from(KINDS))
def test_popped_leaves_are_gone_and_the_rest_stays(graph, kind):
    """G40: every variable is removed at its first path only; putting the state back restores what was there."""
    graph = Node(root=graph, box={})
    poppable = [value for value in variables(graph) if isinstance(value, kind)]
    try:
        state = plait.pop(graph, kind)
    except plait.errors.GraphError:
        assert len(variables(graph)) >= len(poppable)  # a list or tuple holds one: nothing was removed
        return
    assert len(state.flat_state()) == len(poppable)
