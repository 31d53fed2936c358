"""States, nested and flat: the mapping, the functions, and the laws between them."""

import copy
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, strategies as st

import plait as nnx
from plait.core.graph.walks import CachedWalk, find_walk
from plait.core.states.state import to_flat_state, tracked
from plait.core.states.state_functions import diff
from plait.util.paths import sort_key

keys = st.integers(-3, 12) | st.sampled_from(["a", "b", "kernel", "10", "_x"])
leaves = st.sampled_from([nnx.Param, nnx.BatchStat, nnx.RngCount]).flatmap(
    lambda kind: st.integers(0, 9).map(lambda n: kind(jnp.asarray(n), note=n))
) | st.integers(0, 9).map(jnp.asarray)
# Nested dicts without empty ones: a state has no paths but those of its leaves.
trees = st.recursive(leaves, lambda inner: st.dictionaries(keys, inner, min_size=1, max_size=3), max_leaves=8)
mappings = trees.filter(lambda tree: isinstance(tree, dict))
states = mappings.map(nnx.State)
FILTERS = [nnx.Param, nnx.BatchStat, nnx.RngState, nnx.PathContains("a"), nnx.PathContains(0), nnx.Variable, "x"]
filters = st.lists(st.sampled_from(FILTERS), min_size=1, max_size=4)


def paths(state):
    return list(nnx.to_flat_state(state).paths)


def pure(state):
    return nnx.to_pure_dict(state)


def nested_keys(state):
    return [(key, nested_keys(value) if isinstance(value, nnx.State) else None) for key, value in state.items()]


def test_g22_entries_are_in_the_order_of_the_paths():
    """Whether a variable or a module: programs walk two states side by side."""

    class Block(nnx.Module):
        def __init__(self, depth):
            self.z, self.a = nnx.Param(jnp.ones(1)), nnx.Param(jnp.ones(1))
            self.inner = nnx.List([Block(depth - 1), nnx.Param(jnp.ones(1))]) if depth else nnx.BatchStat(jnp.ones(1))

    model = Block(2)
    order = nested_keys(nnx.state(model))
    assert [key for key, _ in order] == ["a", "inner", "z"]
    assert [key for key, _ in order[1][1][0][1]] == ["a", "inner", "z"]
    made = [nnx.split(model)[1], nnx.state(model, ...), nnx.jit(nnx.state)(model), nnx.to_flat_state(nnx.state(model))]
    made[-1] = made[-1].to_nested_state()
    assert all(nested_keys(state) == order for state in made)


# The mapping (G47) ----------------------------------------------------------------------------------------------------


def test_a_state_is_a_mapping_with_views_that_write_through():
    """G47."""
    leaf = nnx.Param(1.0)
    state = nnx.State({"a": {0: leaf, "b": 2}, "c": 3})
    assert state["a"][0] is state.a[0] is leaf
    assert isinstance(state["a"], nnx.State)
    state["a"]["b"] = 4
    state.a["new"] = nnx.State({"x": 5})
    assert state.raw_mapping["a"]["b"] == 4
    assert pure(state) == {"a": {0: 1.0, "b": 4, "new": {"x": 5}}, "c": 3}
    assert ("a" in state, "z" in state, len(state), list(state)) == (True, False, 2, ["a", "c"])
    assert [key for key, _ in state.items()] == ["a", "c"]
    del state["a"]
    state.update({"d": {"e": 6}})
    state.f = 7
    del state.c
    assert pure(state) == {"d": {"e": 6}, "f": 7}
    assert isinstance(state.d, nnx.State)


def test_a_state_is_made_from_a_mapping_or_pairs_and_copies_the_nesting():
    """G47."""
    inner = {"x": 1}
    state = nnx.State({"a": inner})
    state["a"]["x"] = 2
    assert inner == {"x": 1}
    assert pure(nnx.State([("a", 1), ("b", {"c": 2})])) == {"a": 1, "b": {"c": 2}}
    assert pure(nnx.State(nnx.State({"a": 1}))) == {"a": 1}
    assert len(nnx.State({})) == 0


def test_storing_a_state_stores_its_nested_mapping():
    """G47."""
    inner, outer = nnx.State({"x": 1}), nnx.State({})
    outer["a"] = inner
    assert outer.raw_mapping["a"] is inner.raw_mapping


def test_an_entry_that_is_not_there():
    """G47."""
    state = nnx.State({"a": 1})
    with pytest.raises(KeyError, match="z"):
        state["z"]
    with pytest.raises(AttributeError, match=r"no entry 'z'; it has \['a'\]"):
        state.z
    with pytest.raises(AttributeError, match="__deepcopy_me__"):
        state.__deepcopy_me__
    with pytest.raises(TypeError, match="unhashable"):
        hash(state)


def test_copies_and_pickle():
    """G47: a copy has a nesting of its own and the same leaves."""
    state = nnx.State({"a": {"b": nnx.Param(jnp.ones(2))}})
    fresh = copy.copy(state)
    fresh["a"]["c"] = 1
    assert "c" not in state["a"]
    assert fresh["a"]["b"] is state["a"]["b"]
    assert pickle.loads(pickle.dumps(state)) == state
    assert copy.deepcopy(state) == state


# Equality -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ({"a": jnp.ones(2)}, {"a": jnp.ones(2)}, True),
        ({"a": jnp.ones(2)}, {"a": jnp.zeros(2)}, False),
        ({"a": jnp.ones(2)}, {"a": jnp.ones(3)}, False),
        ({"a": jnp.ones(2)}, {"a": jnp.ones(2, jnp.int32)}, False),
        ({"a": jnp.ones(2)}, {"b": jnp.ones(2)}, False),
        ({"a": nnx.Param(1)}, {"a": nnx.BatchStat(1)}, False),
        ({"a": nnx.Param(1, note=1)}, {"a": nnx.Param(1, note=True)}, False),
        ({"a": nnx.Param({"x": 1})}, {"a": nnx.Param({"x": 1})}, True),
        ({"a": nnx.Param({"x": 1})}, {"a": nnx.Param({"y": 1})}, False),
        ({"a": jax.random.key(0)}, {"a": jax.random.key(0)}, True),
        ({"a": jax.ShapeDtypeStruct((2,), jnp.float32)}, {"a": jax.ShapeDtypeStruct((2,), jnp.float32)}, True),
        ({"a": nnx.Param(jnp.ones(2), note=np.ones(2).tolist())}, {"a": nnx.Param(jnp.ones(2), note=[1.0, 1.0])}, True),
    ],
)
def test_states_compare_by_paths_classes_metadata_and_values(first, second, equal):
    """G47."""
    assert (nnx.State(first) == nnx.State(second)) is equal
    assert nnx.State(first) != {"a": 1}


# The pytree face (G48) ------------------------------------------------------------------------------------------------


@given(states)
def test_a_state_is_a_pytree_in_key_order(state):
    """G48."""
    leaves_with_paths = jax.tree_util.tree_leaves_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))
    found = [nnx.graph.jax_to_nnx_path(path) for path, _ in leaves_with_paths]
    assert found == paths(state) == sorted(found, key=lambda path: tuple(map(sort_key, path)))
    assert all(isinstance(entry, jax.tree_util.DictKey) for path, _ in leaves_with_paths for entry in path)
    assert jax.tree.map(lambda x: x, state) == state


@pytest.mark.parametrize(
    "mapping",
    [
        {"b": {1: {"y": 1.0, "x": 2.0}, 0: 3.0}, "a": 4.0},
        {"b": {"y": 1.0, 1: {"z": 2.0}, 0: 3.0}, "a": 4.0},  # keys that JAX could not sort
        {"c": {"b": {0: {"y": 1.0, 1: 2.0}}}, "a": {"x": 0.0}},
        {},
        {"a": {}},
    ],
)
def test_jax_goes_through_nested_mappings_of_any_keys(mapping):
    """G47: in the order of paths, with the keys as its own, and back."""
    state = nnx.State(mapping)
    flat = nnx.to_flat_state(state)
    pairs, structure = jax.tree_util.tree_flatten_with_path(state)
    assert [nnx.graph.jax_to_nnx_path(path) for path, _ in pairs] == [*flat.paths]
    assert [leaf for _, leaf in pairs] == jax.tree.leaves(state) == flat.leaves
    assert jax.tree.structure(state) == structure
    doubled = jax.tree.map(lambda x: 2 * x, state)
    assert doubled == nnx.map_state(lambda path, x: 2 * x, state)
    assert jax.tree.map(lambda x, y: y - x, state, doubled) == state


@given(states)
def test_mapping_keeps_classes_and_metadata(state):
    """G48."""
    mapped = jax.tree.map(lambda x: x + 1, state)
    assert paths(mapped) == paths(state)
    for (_, old), (_, new) in zip(nnx.to_flat_state(state), nnx.to_flat_state(mapped), strict=True):
        assert type(old) is type(new)
        if isinstance(old, nnx.Variable):
            assert old.get_metadata() == new.get_metadata()
            assert new.value == old.value + 1


def test_a_subclass_registers_itself_and_survives():
    """G48."""

    class Gradients(nnx.State):
        pass

    state = Gradients({"a": {"b": nnx.Param(jnp.ones(2))}})
    assert type(jax.tree.map(jnp.negative, state)) is Gradients
    assert type(state["a"]) is type(state.filter(nnx.Param)) is type(nnx.map_state(lambda p, x: x, state)) is Gradients
    assert type(Gradients.merge(nnx.State({"a": 1}), {"b": 2})) is Gradients
    assert type(nnx.clone({"s": state})["s"]) is Gradients


def test_a_state_crosses_jit():
    """G48."""
    state = nnx.State({"a": nnx.Param(jnp.ones(2), note=1), "b": {0: jnp.zeros(2)}})
    out = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s))(state)
    assert out["a"].note == 1
    assert out["b"][0].tolist() == [1.0, 1.0]


# Functions (G49) ------------------------------------------------------------------------------------------------------


@given(states)
def test_flat_and_nested_are_inverse(state):
    """G49."""
    flat = nnx.to_flat_state(state)
    assert nnx.from_flat_state(flat) == flat.to_nested_state() == nnx.State.from_flat_path(flat) == state
    assert nnx.from_flat_state(dict(flat)) == state
    assert nnx.from_flat_state(reversed(list(flat))) == state
    assert list(state.flat_state()) == list(flat)


@given(states, filters)
def test_merge_undoes_split(state, chosen):
    """G49, G52: every leaf is in exactly one part."""
    parts = nnx.split_state(state, *chosen, ...)
    assert sum(len(paths(part)) for part in parts) == len(paths(state))
    assert nnx.merge_state(*parts) == state
    assert state.split(*chosen, ...) == parts


@given(states, filters)
def test_filter_gives_the_parts_of_a_split(state, chosen):
    """G49: it need not cover everything, and the first match wins."""
    parts = nnx.split_state(state, *chosen, ...)[:-1]
    filtered = state.filter(*chosen)
    assert (filtered if len(chosen) > 1 else (filtered,)) == parts
    assert nnx.filter_state(state, *chosen) == filtered


@given(states, states)
def test_the_union_and_the_difference(first, second):
    """G49: the later wins; the difference goes by path."""
    lead = {path[:n] for path in paths(first) for n in range(1, len(path))}
    if any(path in lead or any(path[:n] in paths(first) for n in range(1, len(path))) for path in paths(second)):
        with pytest.raises(ValueError, match="one path goes through the leaf of another"):
            nnx.merge_state(first, second)
        return
    union = nnx.merge_state(first, second)
    assert set(paths(union)) == {*paths(first), *paths(second)}
    assert (first | second) == union == nnx.State.merge(first, second)
    for path, leaf in nnx.to_flat_state(second):
        assert dict(nnx.to_flat_state(union))[path] is leaf
    rest = first - second
    assert set(paths(rest)) == {*paths(first)} - {*paths(second)}
    assert diff(first, second) == rest


@given(states)
def test_neutral_elements(state):
    """G49: one argument is returned unchanged."""
    assert nnx.merge_state(state) is state
    assert state | nnx.State({}) is state
    assert (nnx.State({}) | state) == state
    assert state - nnx.State({}) == state
    assert len(state - state) == 0


@given(states)
def test_map_sees_path_and_leaf(state):
    """G49."""
    seen = nnx.map_state(lambda path, leaf: (path, leaf), state)
    for path, (given_path, leaf) in nnx.to_flat_state(seen):
        assert path == given_path
        assert dict(nnx.to_flat_state(state))[path] is leaf
    assert paths(state.map(lambda path, leaf: leaf)) == paths(state)


@given(states)
def test_a_pure_dict_goes_back_in_place(state):
    """G49: also with keys that went through JSON."""
    values = nnx.to_pure_dict(state)
    target = jax.tree.map(lambda x: x + 1, state)
    nnx.replace_by_pure_dict(target, values)
    assert target == state
    as_text = {f"{path}": 0 for path in paths(state)}
    if len({tuple(map(str, path)) for path in paths(state)}) == len(as_text):  # "10" and 10 may be neighbours
        target = jax.tree.map(lambda x: x + 1, state)
        nnx.replace_by_pure_dict(target, _with_text_keys(values))
        assert target == state


def _with_text_keys(tree):
    return {str(key): _with_text_keys(item) for key, item in tree.items()} if isinstance(tree, dict) else tree


def test_a_pure_dict_is_of_one_state():
    states = nnx.State({"a": nnx.Param(1.0)}), nnx.State({"b": nnx.Param(2.0)})
    with pytest.raises(nnx.errors.ArgumentTypeError, match=r"takes one state\s+found +a tuple"):
        nnx.to_pure_dict(states)
    assert nnx.to_pure_dict(nnx.merge_state(*states)) == {"a": 1.0, "b": 2.0}


def test_pure_dicts_can_be_made_and_written_in_other_ways():
    """G49."""
    state = nnx.State({"a": nnx.Param(1), "b": 2})
    assert nnx.to_pure_dict(state, lambda leaf: type(leaf).__name__) == {"a": "Param", "b": "int"}
    nnx.replace_by_pure_dict(state, {"a": 5}, lambda leaf, value: (leaf.value, value))
    assert state["a"] == (1, 5)


def test_integer_paths_are_restored():
    """G49."""
    tree = {"0": {"-12": 1, "1a": 2, "²": 3, "--1": 4, "": 5}, 7: 6, "layer": {"3": []}}
    restored = {0: {-12: 1, "1a": 2, "²": 3, "--1": 4, "": 5}, 7: 6, "layer": {3: []}}
    assert nnx.restore_int_paths(tree) == restored


@given(mappings)
def test_integer_paths_come_back_from_text(tree):
    """G49."""
    numbers = nnx.State({key: 0 for key in tree if key != "10"})
    assert nnx.restore_int_paths(_with_text_keys(pure(numbers))) == pure(numbers)


def test_as_pure_goes_through_everything():
    """G49."""
    tree = {"a": nnx.Param(nnx.Param(1)), "b": [nnx.State({"c": nnx.BatchStat(2)}), 3], "d": nnx.Dict(w=nnx.Param(4))}
    out = nnx.as_pure(tree)
    assert (out["a"], out["b"][1], out["d"].w) == (1, 3, 4)
    assert pure(out["b"][0]) == {"c": 2}
    assert nnx.pure is nnx.as_pure


def test_a_reference_is_read_for_a_pure_dict():
    """G49: a variable gives its value."""
    state = nnx.State({"a": nnx.Param(jnp.ones(2), ref=True)})
    assert isinstance(nnx.to_pure_dict(state)["a"], jax.Array)
    assert isinstance(nnx.as_pure(state)["a"], jax.Array)


def test_a_leaf_that_is_left_over():
    """G52; error table: non-exhaustive filters."""
    state = nnx.State({"a": {"b": nnx.Param(1)}, "c": nnx.BatchStat(1)})
    match = r"(?s)Non-exhaustive.*a\.b \(Param\).*1 of 2 leaves.*`\.\.\.`"
    for split in (state.split, state.flat_state().split):
        with pytest.raises(ValueError, match=match):
            split(nnx.BatchStat)


# Flat states (G50) ----------------------------------------------------------------------------------------------------


def test_a_flat_state_can_become_a_mapping_of_another_class():
    nested = nnx.from_flat_state({("a", 0): 1.0}, cls=dict)
    assert type(nested) is dict
    assert nested == {"a": {0: 1.0}}


def test_a_flat_state_is_an_immutable_sequence():
    """G50."""
    flat = nnx.FlatState([(("b",), 2), (("a", 10), 1), (("a", 9), 0)], sort=True)
    assert flat.paths == (("a", 9), ("a", 10), ("b",))
    assert list(flat.leaves) == [0, 1, 2]
    assert (len(flat), flat[0], flat[-1], (("b",), 2) in flat) == (3, (("a", 9), 0), (("b",), 2), True)
    assert isinstance(flat[1:], nnx.FlatState)
    assert list(flat[1:]) == [(("a", 10), 1), (("b",), 2)]
    with pytest.raises(AttributeError, match="immutable"):
        flat.paths = ()
    assert list(pickle.loads(pickle.dumps(flat))) == list(flat)


def test_a_flat_state_of_values_is_one_node_and_stands_for_the_state():
    """G50: in ``jax.jit``, Optax, ``device_put``, and back in the model."""
    model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    graphdef, state = nnx.split(model)
    flat = nnx.as_pure(state.flat_state())
    pairs, treedef = jax.tree_util.tree_flatten_with_path(flat)
    assert treedef.num_nodes == len(flat) + 1
    assert [key.key for (key,), _ in pairs] == [*nnx.to_flat_state(state).paths]
    assert all(isinstance(leaf, jax.Array) for _, leaf in pairs)

    @jax.jit
    def step(flat, x):
        merged = nnx.merge(graphdef, flat)
        return merged(x), nnx.as_pure(nnx.state(merged).flat_state())

    tx = optax.trace(0.9)
    updates, _ = tx.update(flat, tx.init(flat))
    assert jax.tree.structure(updates) == treedef
    assert jax.tree.structure(jax.device_put(flat, jax.tree.map(lambda value: value.sharding, flat))) == treedef
    x = jax.random.normal(jax.random.key(0), (3, 2))
    (out, after), expected = step(flat, x), model(x)
    assert jax.tree.structure(after) == treedef
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    other = nnx.merge(graphdef, flat)
    nnx.update(other, after)
    for path, value in nnx.to_flat_state(nnx.as_pure(nnx.state(model))):
        np.testing.assert_allclose(dict(nnx.as_pure(nnx.state(other).flat_state()))[path], value, rtol=1e-6)


def test_a_flat_state_is_not_sorted_unless_asked():
    """G50: ``sort`` has no default."""
    assert nnx.FlatState([(("b",), 2), (("a",), 1)], sort=False).paths == (("b",), ("a",))
    with pytest.raises(TypeError, match="sort"):
        nnx.FlatState([])


@given(states, filters)
def test_flat_states_split_filter_and_merge_like_nested_ones(state, chosen):
    """G50."""
    flat = nnx.to_flat_state(state)
    parts = flat.split(*chosen, ...)
    assert [part.to_nested_state() for part in parts] == list(nnx.split_state(state, *chosen, ...))
    assert list(nnx.FlatState.merge(*parts)) == list(flat)
    assert nnx.FlatState.merge(flat) is flat
    assert list(flat.filter(chosen[0])) == list(parts[0])


@given(states)
def test_a_flat_state_is_a_pytree_with_static_paths(state):
    """G50."""
    flat = nnx.to_flat_state(state)
    mapped = jax.tree.map(lambda x: x + 1, flat)
    assert mapped.paths == flat.paths
    assert jax.tree.structure(flat) == jax.tree.structure(mapped)
    assert tuple(path[0].key for path, _ in jax.tree_util.tree_leaves_with_path(flat)) == flat.paths


# Updating and printing ------------------------------------------------------------------------------------------------


def test_a_state_in_a_graph_updates_its_variables_in_place():
    """G5, G8: a variable that is given for a variable updates the one that is there."""
    inner = nnx.State({"w": nnx.Param(1.0), "n": nnx.Param(2.0)})
    holder = nnx.Dict(s=inner)
    variable = inner["w"]
    nnx.graph.get_node_impl(inner).set_key(inner, "w", nnx.Param(5.0))
    assert inner["w"] is variable
    assert variable.value == 5.0
    nnx.pop(holder, nnx.PathContains("n"))
    assert list(holder.s) == ["w"]


def test_repr_of_nested_and_flat_states():
    """G66."""
    state = nnx.State({"b": {0: nnx.Param(1), "a": {}}, "a": jnp.ones(2)})
    assert repr(state) == (
        "State({\n  'a': Array([1., 1.], dtype=float32),\n  'b': {\n    0: Param(value=1),\n    'a': {}\n  }\n})"
    )
    assert repr(nnx.State({})) == "State({})"
    flat = nnx.FlatState([(("a", 0), nnx.Param(1)), (("b",), 2)], sort=True)
    assert repr(flat) == "FlatState([\n  ('a', 0): Param(value=1),\n  ('b',): 2\n])"


@given(states)
def test_a_state_equals_the_mapping_that_it_holds(state):
    """G47."""
    nested = state.raw_mapping
    assert state == nested
    assert nested == state
    assert state != {**nested, "more": 1}
    assert state != [*nested.items()]


@pytest.mark.oracle
@pytest.mark.parametrize(
    "ask",
    [
        lambda nnx, s: nnx.State({"a": {"b": 1}}) == {"a": {"b": 1}},
        lambda nnx, s: nnx.State({"a": 1}) == {"a": 2},
        lambda nnx, s: nnx.State({"a": 1}) == {"a": 1},
        lambda nnx, s: nnx.to_pure_dict(s),
        lambda nnx, s: [path for path, _ in nnx.to_flat_state(s)],
        lambda nnx, s: [path for path, _ in nnx.to_flat_state(nnx.filter_state(s, nnx.Param))],
        lambda nnx, s: [len(part) for part in nnx.split_state(s, nnx.Param, ...)],
        lambda nnx, s: nnx.to_pure_dict(nnx.merge_state(s, nnx.State({"a": nnx.Param(7)}))),
        lambda nnx, s: nnx.to_pure_dict(nnx.map_state(lambda path, leaf: path, s)),
    ],
    ids=["equal", "unequal", "turned", "pure", "flat", "filter", "split", "merge", "map"],
)
def test_flax_answers_the_same(ask):
    """G47 to G50."""
    flax_nnx = pytest.importorskip("flax.nnx")
    answers = []
    for library in (nnx, flax_nnx):
        state = library.State({"a": library.Param(1), "b": {1: library.BatchStat(2), 0: library.Param(3, note="n")}})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answers.append(ask(library, state))
    assert answers[0] == answers[1]


# Tracked states -------------------------------------------------------------------------------------------------------


def tracked_graph():
    """A module with a tracked state, as an optimizer has, walked once."""
    graph = nnx.Dict(moments=tracked(nnx.State({"a": {"b": nnx.Variable(1.0), "c": nnx.Variable(2.0)}, "d": {}})))
    find_walk((graph,))
    return graph


WRITES = {
    "an entry": lambda s: s.__setitem__("a", nnx.Variable(3.0)),
    "an attribute": lambda s: setattr(s, "e", nnx.Variable(3.0)),
    "an entry of a view": lambda s: s["a"].__setitem__("b", nnx.Variable(3.0)),
    "an entry of an old view": lambda s: s["a"].__setitem__("b", nnx.Variable(3.0)),
    "a deletion": lambda s: s["a"].__delitem__("b"),
    "pop": lambda s: s["a"].pop("b"),
    "clear": lambda s: s["a"].clear(),
    "update": lambda s: s.update({"e": nnx.Variable(3.0)}),
    "setdefault": lambda s: s["d"].setdefault("e", nnx.Variable(3.0)),
    "the dict underneath": lambda s: s.raw_mapping["a"].__setitem__("b", nnx.Variable(3.0)),
    "a dict": lambda s: s.__setitem__("a", {"b": nnx.Variable(3.0)}),
    "pure values": lambda s: nnx.replace_by_pure_dict(s, {"a": {"b": 3.0}}, lambda leaf, value: nnx.Variable(value)),
    "popped from the graph": lambda s: nnx.pop(s, nnx.Variable),
}


@pytest.mark.parametrize("write", WRITES)
def test_every_write_to_a_tracked_state_is_seen(write):
    """G47, U33: twice in a row, since some end the tracking."""
    graph = tracked_graph()
    for _ in range(2):
        before = find_walk((graph,))
        assert find_walk((graph,)) is before
        assert bool(before.containers) == (graph.moments._tracking.ended)
        try:
            WRITES[write](graph.moments)
        except KeyError:
            return
        found, fresh = find_walk((graph,)), CachedWalk((graph,))
        assert found.graphdefs == fresh.graphdefs
        assert list(map(id, found.cells)) == list(map(id, fresh.cells))


def test_a_state_that_shares_dicts_with_a_tracked_one_is_seen():
    """G47, U33: a nested mapping that was stored, in either direction, is no longer tracked."""
    for share in (
        lambda moments, other: other.__setitem__("x", moments),
        lambda moments, other: moments.__setitem__("x", other),
        lambda moments, other: nnx.State({"x": {"y": moments}}),
        lambda moments, other: nnx.merge_state(moments)["a"],
        lambda moments, other: other.__setitem__("x", moments["a"]),
    ):
        graph, other = tracked_graph(), nnx.State({"b": nnx.Variable(1.0)})
        holder = share(graph.moments, other)
        find_walk((graph,))
        for state in (other, holder, graph.moments):
            while state is not None:
                for key in list(state):
                    if not isinstance(state[key], nnx.State):
                        state[key] = nnx.Variable(9.0)
                state = next((child for child in state.values() if isinstance(child, nnx.State) and len(child)), None)
            found, fresh = find_walk((graph,)), CachedWalk((graph,))
            assert list(map(id, found.cells)) == list(map(id, fresh.cells))


def test_reading_does_not_end_the_tracking():
    """U33: nor do the functions on graphs; what they make anew is tracked by itself."""
    graph = tracked_graph()
    nnx.update(graph, nnx.state(graph))
    copies = [nnx.clone(graph), nnx.merge(*nnx.split(graph)), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))]
    _ = jax.tree.map(lambda x: x, graph), repr(graph), nnx.variables(graph), graph.moments == graph.moments
    _ = to_flat_state(graph.moments), nnx.to_pure_dict(graph.moments), jax.tree.leaves(graph.moments["a"])
    assert find_walk((graph,)).containers == []
    for made in copies:
        assert find_walk((made,)).containers == []
        before = find_walk((graph,))
        made.moments["a"]["b"] = nnx.Variable(5.0)
        assert find_walk((graph,)) is before
        assert find_walk((made,)).cells[0].raw == 5.0


def test_the_walk_of_an_optimizer_compares_no_containers():
    """U33: at each call of a training step only the structure clock is asked."""
    model = nnx.Dict(layer=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    assert find_walk((model, optimizer)).containers == []
