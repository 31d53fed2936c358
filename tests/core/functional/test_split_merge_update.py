"""The functional face of graphs. (rules G24, G31 to G41, G46, G67, section 11)"""

import pickle
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

import plait
from plait.graph import GraphState
from tests.oracles import assert_same_graph, describe, variables
from tests.strategies import Box, Leafy, Node


def model():
    return Node(
        a=plait.Param(jnp.ones(2), note=1),
        b=[Leafy(w=plait.Param(2.0), s=plait.BatchStat(3.0)), 3],
        c={"k": plait.Cache(4.0)},
        x=jnp.zeros(1),
    )


# Splitting and merging ------------------------------------------------------------------------------------------------


def test_split_gives_one_state_per_filter():
    """G31, G52: each is always there, and the first filter that matches wins."""
    graphdef, params, caches, nothing, rest = plait.split(model(), plait.Param, plait.Cache, plait.RngState, ...)
    assert isinstance(graphdef, plait.GraphDef)
    assert [state.flat_state().paths for state in (params, caches, nothing, rest)] == [
        (("a",), ("b", 0, "w")),
        (("c", "k"),),
        (),
        (("b", 0, "s"), ("x",)),
    ]


ROOTS = {
    "variable": lambda: plait.Param(jnp.ones(2)),
    "array": lambda: jnp.ones(2),
    "reference": lambda: jax.new_ref(jnp.ones(2)),
}


@pytest.mark.parametrize("case", ROOTS)
def test_the_state_of_a_leaf_is_the_leaf(case):
    """G24: not wrapped; with several filters the group that matched is the leaf, the others are empty."""
    leaf = ROOTS[case]()
    graphdef, state = plait.split(leaf)
    assert type(state) is type(leaf)
    assert describe(plait.merge(graphdef, state)[...]) == describe(leaf[...])
    graphdef, nothing, state = plait.split(leaf, plait.Cache, ...)
    assert (type(nothing), len(nothing)) == (plait.State, 0)
    assert type(plait.merge(graphdef, nothing, state)) is type(leaf)


def test_state_needs_no_exhaustive_filters():
    """G34: none or one filter give a state, several a tuple."""
    graph = model()
    assert len(plait.state(graph).flat_state()) == 5
    assert list(plait.state(graph, plait.Cache)) == ["c"]
    params, caches = plait.state(graph, plait.Param, plait.Cache)
    assert (list(params), list(caches)) == (["a", "b"], ["c"])


def test_variables_are_the_live_ones():
    """G33: and arrays are left out; one state for each filter, never a remainder."""
    graph = model()
    live = plait.variables(graph)
    assert live["a"] is graph.a
    assert "x" not in live
    params, stats = plait.variables(graph, plait.Param, plait.BatchStat)
    assert params["b"][0]["w"] is graph.b[0].w
    assert len(stats.flat_state()) == 1
    assert plait.variables(graph.a) is graph.a


def test_graphdef_is_the_first_half_of_split():
    """G15, G35."""
    graph = model()
    assert plait.graphdef(graph) is plait.split(graph)[0] is plait.graphdef(plait.clone(graph))


def test_merging_twice_gives_independent_models():
    """G36: copy=False adopts the variables of the state."""
    graphdef, state = plait.split(model())
    first, second = plait.merge(graphdef, state), plait.merge(graphdef, state)
    first.a.value = jnp.zeros(2)
    assert second.a.value.tolist() == [1.0, 1.0] == state["a"].value.tolist()
    assert plait.merge(graphdef, state, copy=False).a is state["a"]


def test_later_states_win():
    """G36: states are merged by path; plain dicts of raw values are welcome."""
    graphdef, state = plait.split(model())
    merged = plait.merge(graphdef, state, {"c": {"k": 40.0}}, plait.State({"b": {0: {"w": plait.Param(20.0)}}}))
    assert (merged.c["k"].value, merged.b[0].w.value, merged.b[0].s.value) == (40.0, 20.0, 3.0)
    assert isinstance(merged.c["k"], plait.Cache)


def test_raw_values_can_stay_raw():
    """G36."""
    graphdef, state = plait.split(model())
    assert plait.merge(graphdef, plait.to_pure_dict(state), recreate_variables=False).b[0].w == 2.0


# Updating -------------------------------------------------------------------------------------------------------------

UPDATES = {
    "raw value": ({"a": 5.0}, lambda m: (m.a.value, m.a.note), (5.0, 1)),
    "variable": ({"a": plait.Param(5.0, note=2)}, lambda m: (m.a.value, m.a.note), (5.0, 2)),
    "below a list": ({"b": {0: {"w": 5.0}}}, lambda m: m.b[0].w.value, 5.0),
    "array attribute": ({"x": 5.0}, lambda m: m.x, 5.0),
    "list element": ({"b": {1: 5}}, lambda m: m.b[1], 5),
    "new in a module": ({"z": plait.Param(5.0)}, lambda m: m.z.value, 5.0),
    "new in a dict": ({"c": {"z": 5.0}}, lambda m: m.c["z"], 5.0),
    "other shape": ({"a": jnp.zeros((3, 3))}, lambda m: m.a.shape, (3, 3)),
    "nothing": ({}, lambda m: m.a.note, 1),
}


@pytest.mark.parametrize("case", UPDATES)
def test_update_writes_in_place(case):
    """G38: variables keep their identity; what the state does not have stays."""
    state, read, expected = UPDATES[case]
    graph = model()
    before = variables(graph)
    plait.update(graph, plait.State(state))
    assert read(graph) == expected
    assert set(map(id, before)) <= set(map(id, variables(graph)))


def test_update_takes_several_states_and_the_later_wins():
    """G38."""
    graph = model()
    plait.update(graph, plait.State({"a": 1.0}), {"a": 2.0, "x": 3.0}, plait.FlatState([(("x",), 4.0)], sort=True))
    assert (graph.a.value, graph.x) == (2.0, 4.0)


def test_an_added_variable_is_a_copy():
    """G38."""
    graph, state = Node(), plait.State({"w": plait.Param(1.0)})
    plait.update(graph, state)
    assert graph.w is not state["w"]


def test_update_writes_through_references():
    """G38: and keeps the flag of a variable."""
    ref = jax.new_ref(jnp.zeros(2))
    graph = Node(r=ref, v=plait.Param(jnp.zeros(2), ref=True))
    plait.update(graph, plait.State({"r": jnp.ones(2), "v": plait.Param(jnp.ones(2))}))
    assert graph.r is ref
    assert (ref[...].tolist(), graph.v.value.tolist(), graph.v.ref) == ([1.0, 1.0], [1.0, 1.0], True)


MISFITS = {
    "leaf for a subgraph": ({"b": {0: plait.Param(1.0)}}, ValueError, r"(?s)subgraph.*at +b\[0\]"),
    "mapping for a leaf": ({"a": {"z": 1.0}}, ValueError, r"at +a\b"),
    "list index out of range": ({"b": {2: 1.0}}, ValueError, r"(?s)Cannot set key 2.*at +b\[2\]"),
    "name in a list": ({"b": {"z": 1.0}}, ValueError, r"(?s)Cannot set key 'z'.*at +b\.z"),
    "immutable container": ({"t": {0: 1.0}}, ValueError, r"(?s)Cannot set key 0.*tuple.*at +t\[0\]"),
    "immutable registered container": ({"u": {"lid": 1.0}}, ValueError, r"(?s)Cannot set key 'lid'.*Box.*at +u\.lid"),
    "variable for a static value": ({"steps": plait.Param(1.0)}, ValueError, "steps"),
    "List index out of range": ({"l": {3: 1.0}}, ValueError, r"(?s)Cannot set key 3 of a List.*at +l\[3\]"),
    "no state": (3, TypeError, "found +an? int"),
}


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize("case", MISFITS)
def test_an_update_that_does_not_fit_changes_nothing(case, comes_first):
    """G38, section 11: not even the parts that do fit, before and after it."""
    state, error, match = MISFITS[case]
    graph = model()
    graph.t, graph.u, graph.steps, graph.l = (jnp.ones(1),), Box(jnp.ones(1), 1), 3, plait.List([1, 2])
    before = describe(graph)
    whole = state
    if isinstance(state, dict):
        fitting = {name: 100.0 for name in ("a", "x") if name not in state}
        whole = {**state, **fitting} if comes_first else {**fitting, **state}
    with pytest.raises(error, match=match):
        plait.update(graph, whole)
    assert describe(graph) == before


@pytest.mark.parametrize(
    "kinds", [(), (plait.Param,), (plait.Param, plait.BatchStat), (plait.Cache, plait.Param, plait.BatchStat)]
)
@pytest.mark.parametrize("flat", [False, True])
def test_an_update_takes_the_parts_of_a_state_however_many_they_are(kinds, flat):
    """G38: each of them counts."""
    make = lambda value: Node(a=plait.Param(value), b=plait.BatchStat(value), c=[plait.Cache(value)])
    parts = plait.state(make(1.0), *kinds, ...)
    parts = parts if isinstance(parts, tuple) else (parts,)
    assert len(parts) == len(kinds) + 1
    graph = make(0.0)
    plait.update(graph, *(part.flat_state() if flat else part for part in parts))
    assert describe(graph) == describe(make(1.0))


def test_a_list_can_grow_by_an_update():
    """G38: plait.List takes the next index; the order of the state does not matter."""
    graph = Node(l=plait.List([1.0]))
    plait.update(graph, {"l": {2: jnp.float32(3), 1: jnp.float32(2)}})
    assert list(graph.l) == [1.0, 2.0, 3.0]


# Popping --------------------------------------------------------------------------------------------------------------


def test_pop_removes_and_returns():
    """G40: one state for each filter, from modules and dicts, at any depth."""
    graph = model()
    stats, caches = plait.pop(graph, plait.BatchStat, plait.Cache)
    assert (stats.flat_state().paths, caches.flat_state().paths) == ((("b", 0, "s"),), (("c", "k"),))
    assert (sorted(vars(graph.b[0])), graph.c) == (["w"], {})
    assert isinstance(plait.graph.graph_pop(graph, (plait.Param,)), tuple)


def test_pop_removes_a_shared_variable_at_its_first_path_only():
    """G40, G22: first in walk order, not in the order of assignment."""
    w = plait.Param(1.0)
    graph = Node(z=w)
    graph.a = Node(w=w)
    assert plait.pop(graph, plait.Param).flat_state().paths == (("a", "w"),)
    assert graph.z is w
    assert vars(graph.a) == {}


@pytest.mark.parametrize(("popped", "stay"), [(plait.Param, [0.0]), (..., []), (plait.RngKey, [0.0, 2.0, 3.0])])
def test_pop_of_the_last_list_elements(popped, stay):
    """G40: ``update`` with the popped state puts them back."""
    items = plait.List([plait.Cache(0.0), plait.Param(2.0), plait.Param(3.0)])
    before = describe(items)
    state = plait.pop(items, popped)
    assert [item.value for item in items] == stay
    plait.update(items, state)
    assert describe(items) == before


@pytest.mark.parametrize("popped", [plait.Cache, plait.BatchStat])
def test_pop_of_a_list_element_before_others_changes_nothing(popped):
    """G40: they would move, and ``update`` with the popped state would overwrite another variable."""
    layers = [plait.Param(1.0), plait.Cache(2.0), plait.BatchStat(3.0), plait.Param(4.0), plait.Cache(5.0)]
    graph = Node(a=plait.Cache(0.0), layers=plait.List(layers), z=plait.Cache(0.0))
    before = describe(graph)
    place = {plait.Cache: 1, plait.BatchStat: 2}[popped]
    match = rf"(?s)Cannot pop key {place} of a List.*at +layers\[{place}\].*found +layers\[{place + 1}\], which stays"
    with pytest.raises(plait.errors.GraphError, match=match):
        plait.pop(graph, popped)
    assert describe(graph) == before


def test_pop_takes_arrays_and_marked_data():
    """G40, G58."""
    graph = Node(x=jnp.ones(1), y=plait.data(2.0), n=2.0)
    assert sorted(plait.pop(graph, ...)) == ["x", "y"]
    assert vars(graph) == {"n": 2.0}


def test_nothing_matches_and_nothing_happens():
    """G40."""
    graph = model()
    before = describe(graph)
    assert len(plait.pop(graph, plait.RngState)) == 0
    assert describe(graph) == before


POP_ERRORS = {
    "list": (lambda: Node(z=plait.Cache(1.0), l=[plait.Cache(1.0)]), r"(?s)Cannot pop key 0 of a list.*at +l\[0\]"),
    "tuple": (lambda: Node(z=plait.Cache(1.0), l=(plait.Cache(1.0),)), r"(?s)Cannot pop key 0 of a tuple.*at +l\[0\]"),
    "registered": (
        lambda: Node(z=plait.Cache(1.0), l=Box(plait.Cache(1.0), 1)),
        r"(?s)Cannot pop key 'lid'.*at +l\.lid",
    ),
}


@pytest.mark.parametrize("case", POP_ERRORS)
def test_popping_from_an_immutable_container_changes_nothing(case):
    """G40, section 11."""
    make, match = POP_ERRORS[case]
    graph = make()
    before = describe(graph)
    with pytest.raises(ValueError, match=match):
        plait.pop(graph, plait.Cache)
    assert describe(graph) == before


# Graph states ---------------------------------------------------------------------------------------------------------


def test_a_graph_state_is_a_mapping_and_a_pytree():
    """G46."""
    graph = model()
    bundle = plait.unpack(graph)
    assert isinstance(bundle, GraphState)
    assert sorted(bundle) == ["a", "b", "c", "x"]
    doubled = jax.tree.map(lambda leaf: leaf * 2, bundle)
    assert plait.merge(doubled).a.value.tolist() == [2.0, 2.0]
    assert_same_graph(jax.jit(lambda b: b)(plait.unpack(Node(w=graph.a))).state["w"], graph.a)


def test_a_graph_state_is_read_and_written_as_its_state():
    """G46."""
    bundle = plait.unpack(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    assert bundle.kernel is bundle["kernel"]
    bundle.bias = plait.Param(jnp.ones(3))
    assert plait.merge(bundle).bias.value.tolist() == [1.0] * 3
    del bundle.bias
    assert [*bundle] == ["kernel"]
    with pytest.raises(AttributeError, match="no entry 'bias'"):
        bundle.bias
    assert describe(*pickle.loads(pickle.dumps(bundle)).values()) == describe(*bundle.values())


@pytest.mark.parametrize("root", [Node(w=plait.Param(1.0)), plait.Param(1.0), Node(**{"1": 2.0})])
def test_a_graph_state_is_taken_apart_like_its_state(root):
    """G46: the same leaves, and for a graph the same paths."""
    bundle = plait.unpack(root)
    leaves, structure = jax.tree.flatten(bundle)
    assert leaves == jax.tree.leaves(bundle.state)
    assert_same_graph(plait.merge(jax.tree.unflatten(structure, leaves)), root)


def test_gradients_of_a_graph_state_update_a_model():
    """G46."""
    model = plait.Linear(2, 3, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.sgd(1.0), wrt=plait.Param)
    grads = jax.grad(lambda bundle: plait.merge(bundle)(jnp.ones((1, 2))).sum())(plait.unpack(model))
    optimizer.update(model, grads)
    assert model.bias.value.tolist() == [-1.0] * 3


@pytest.mark.oracle
def test_flax_shows_the_same_of_a_graph_state():
    """G46."""
    libraries = plait, pytest.importorskip("flax.nnx")
    bundles = [nnx.unpack(nnx.Linear(2, 3, rngs=nnx.Rngs(0))) for nnx in libraries]
    paths = [[jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(b)] for b in bundles]
    assert paths[0] == paths[1]
    assert bundles[0].kernel.shape == bundles[1].kernel.shape


@pytest.mark.parametrize("value", [42, "a", 1.5, True, jnp.ones], ids=["int", "str", "float", "bool", "function"])
def test_a_value_that_is_no_graph_is_its_own_state(value):
    """G31."""
    graphdef, state = plait.split(value)
    assert state is plait.merge(graphdef, state) is plait.clone(value) is value
    assert plait.graphdef(value) == graphdef
    assert plait.split(value, ...) == (graphdef, value)


@pytest.mark.oracle
@pytest.mark.parametrize("value", [42, "a", None, (1, 2.0)], ids=str)
def test_flax_splits_values_too(value):
    """G31."""
    flax_nnx = pytest.importorskip("flax.nnx")
    answers = [(nnx.merge(*nnx.split(value)), nnx.clone(value)) for nnx in (plait, flax_nnx)]
    assert answers[0] == answers[1]


def test_graph_states_of_filters_merge():
    """G46."""
    graph = model()
    params, rest = plait.unpack(graph, plait.Param, ...)
    assert_same_graph(plait.merge(params, rest), graph)
    params["a"] = plait.Param(9.0)
    del rest["x"]
    with pytest.raises(ValueError, match=r"at +x of a Node"):
        plait.merge(params, rest)


# Size -----------------------------------------------------------------------------------------------------------------


def chain(length):
    node = Node(w=plait.Param(1.0))
    for _ in range(length - 1):
        node = Node(inner=node, w=plait.Param(1.0))
    return node


def wide(width):
    return Node(items=[plait.Param(float(i)) for i in range(width)])


BIG = {"deep": lambda: chain(5_000), "wide": lambda: wide(100_000)}


@pytest.mark.slow
@pytest.mark.parametrize("shape", BIG)
def test_big_graphs_need_no_recursion(shape):
    """G20: 5,000 modules deep, 100,000 variables wide, within Python's default limit of recursion."""
    assert sys.getrecursionlimit() <= 1_000
    graph = BIG[shape]()
    graphdef, state = plait.split(graph)
    merged = plait.merge(graphdef, state)
    plait.update(merged, state)
    other = plait.clone(merged)
    assert plait.graphdef(other) == graphdef
    assert hash(plait.graphdef(other)) == hash(graphdef)
    assert len(graphdef.nodes) == len(list(plait.iter_graph(graph)))
    assert len(plait.variables(other).flat_state()) == graphdef.num_leaves


@pytest.mark.slow
def test_big_graphs_can_be_popped_and_searched():
    """G40, G56: without recursion."""
    graph = chain(1_500)
    assert plait.find_duplicates(graph) == []
    assert len(plait.pop(graph, plait.Param).flat_state()) == 1_500


@pytest.mark.slow
def test_deep_graphs_that_cannot_be_interned_compare_too():
    """G16: by content, without recursion."""
    first, second, third = (chain(1_500) for _ in range(3))
    for graph, names in ((first, {"x"}), (second, {"x"}), (third, {"y"})):
        for _, module in list(plait.iter_modules(graph))[:1]:
            module.names = names
    assert plait.graphdef(first) == plait.graphdef(second) != plait.graphdef(third)
    assert hash(plait.graphdef(first)) == hash(plait.graphdef(second)) != hash(plait.graphdef(third))


def test_entries_for_a_part_that_is_not_there_are_refused_and_nothing_changes():
    """G38."""
    model = plait.Dict(a=plait.Param(jnp.ones(2)))
    with pytest.raises(ValueError, match=r"(?s)at +other\n.*'w'"):
        plait.update(model, {"a": jnp.zeros(2), "other": {"w": jnp.ones(2)}})
    assert model.a[0] == 1
    assert list(model) == ["a"]


@pytest.mark.parametrize("nested", [False, True])
def test_a_state_with_strings_as_indices_is_told_the_cure(nested):
    """As an Orbax checkpoint of lists is read without a target; the advice is run."""
    model = plait.List([plait.Linear(2, 2, rngs=plait.Rngs(0)) for _ in range(2)])
    state = {"1": {"bias": jnp.ones(2)}}
    root, state = (plait.Dict(blocks=model), {"blocks": state}) if nested else (model, state)
    with pytest.raises(plait.errors.GraphError, match=r"children of a List: 0, 1\n +do .*restore_int_paths\("):
        plait.update(root, state)
    plait.update(root, plait.restore_int_paths(state))
    assert model[1].bias[0] == 1
    with pytest.raises(plait.errors.GraphError, match="pass a state of the same model"):
        plait.update(model, {"7": {"bias": jnp.ones(2)}})
