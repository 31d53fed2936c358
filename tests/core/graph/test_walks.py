"""Cached walks: never stale, shared where they can be, and holding nothing alive. (rules U14, U33, U34)"""

import collections
import gc
import weakref

import jax.numpy as jnp
import optax
import pytest

import plait
from plait.core.graph.walks import CachedWalk, drop_runs, find_walk
from tests.oracles import leaves
from tests.strategies import Box, Leafy, Node, Pair


def model():
    return Node(
        a=plait.Param(jnp.ones(2)),
        items=[Leafy(w=plait.Param(1.0)), 2, [jnp.zeros(1)]],
        table={"x": plait.Cache(1.0), "y": {"z": 1}},
        pair=Pair([plait.Param(3.0)], None),
        box=Box([4], plait.Param(5.0)),
        list=plait.List([plait.Param(6.0)]),
        arr=jnp.ones(1),
        ordered=collections.OrderedDict(x=plait.Cache(7.0), y=8),
    )


def rename(table, old, new):
    """Another key for the same value at the same place: no value and no place tells that something changed."""
    items = [(new if key == old else key, value) for key, value in table.items()]
    table.clear()
    table.update(items)


def swap(table, first, second):
    table[first], table[second] = table[second], table[first]


EDITS = {
    "attribute": lambda m: setattr(m, "z", plait.Param(1.0)),
    "attribute below": lambda m: setattr(m.items[0], "w", plait.Param(2.0)),
    "deletion": lambda m: delattr(m, "a"),
    "append": lambda m: m.items.append(plait.Param(1.0)),
    "list item": lambda m: m.items.__setitem__(0, Leafy(w=plait.Param(1.0))),
    "list item of an equal number": lambda m: m.items.__setitem__(1, 2.0),
    "nested list": lambda m: m.items[2].append(jnp.ones(1)),
    "array in a nested list": lambda m: m.items[2].__setitem__(0, jnp.ones(1)),
    "reversed list": lambda m: m.items.reverse(),
    "dict item": lambda m: m.table.__setitem__("x", plait.Cache(1.0)),
    "dict deletion": lambda m: m.table.pop("y"),
    "dict key renamed": lambda m: rename(m.table, "x", "w"),
    "last dict key renamed": lambda m: rename(m.table, "y", "z"),
    "dict values swapped": lambda m: swap(m.table, "x", "y"),
    "ordered dict key renamed": lambda m: rename(m.ordered, "x", "w"),
    "last ordered dict key renamed": lambda m: rename(m.ordered, "y", "z"),
    "ordered dict values swapped": lambda m: swap(m.ordered, "x", "y"),
    "nested dict key renamed": lambda m: rename(m.table["y"], "z", "w"),
    "nested dict": lambda m: m.table["y"].__setitem__("z", 2),
    "list in a named tuple": lambda m: m.pair.second.append(1),
    "list in a registered container": lambda m: m.box.lid.append(1),
    "field of a registered container": lambda m: setattr(m.box, "bottom", plait.Param(1.0)),
    "plait.List": lambda m: m.list.append(1),
    "metadata": lambda m: m.items[0].w.set_metadata(note=1),
    "array attribute": lambda m: setattr(m, "arr", jnp.zeros(1)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_walk_is_made_anew_after_any_change(edit):
    """U33: graphdef, paths and values are those of a fresh walk."""
    graph = model()
    walk = find_walk((graph,))
    assert find_walk((graph,)) is walk
    EDITS[edit](graph)
    again, fresh = find_walk((graph,)), CachedWalk((graph,))
    assert again is not walk
    assert again.graphdefs == fresh.graphdefs
    assert again.paths() == [path for path, _ in leaves(graph)]
    assert list(map(id, again.raw_values())) == list(map(id, fresh.raw_values()))
    assert find_walk((graph,)) is again


def test_values_do_not_make_a_walk_stale():
    """U33."""
    graph = model()
    walk = find_walk((graph,))
    graph.a.value = jnp.zeros((3, 3))
    graph.items[0].w[...] = 2.0
    assert find_walk((graph,)) is walk
    assert walk.raw_values()[0] is graph.a.get_raw_value()


def test_a_change_elsewhere_only_restamps():
    """U33: the clock moved, but none of the graph's own versions."""
    graph, other = model(), model()
    walk = find_walk((graph,))
    find_walk((other,))
    other.z = 1
    assert find_walk((graph,)) is walk


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("edit", EDITS)
def test_a_change_in_any_of_several_roots_is_seen(edit, place):
    """U33: also in plain containers, which belong to that root."""
    roots = (model(), model(), model())
    walk = find_walk(roots)
    assert find_walk(roots) is walk
    EDITS[edit](roots[place])
    again, fresh = find_walk(roots), CachedWalk(roots)
    assert again is not walk
    assert (again.graphdefs, again.paths(), again.counts) == (fresh.graphdefs, fresh.paths(), fresh.counts)
    assert list(map(id, again.raw_values())) == list(map(id, fresh.raw_values()))


def test_static_values_that_change_in_place_are_always_walked():
    """U33: nothing tells when a set changes, so such a graph has no cached walk."""
    graph = Node(names={"a"})
    first = plait.graphdef(graph)
    graph.names = {"a", "b"}
    assert plait.graphdef(graph) != first
    assert find_walk((graph,)) is not find_walk((graph,))


def test_types_that_cannot_tell_are_always_walked():
    """U33: a foreign class registered without a stamp."""

    class Foreign:
        pass

    plait.graph.register_graph_node_type(
        Foreign,
        flatten=lambda node: (sorted(vars(node).items()), None),
        set_key=setattr,
        pop_key=lambda node, key: vars(node).pop(key),
        create_empty=lambda metadata: Foreign(),
        clear=lambda node: vars(node).clear(),
        init=lambda node, children: vars(node).update(children),
    )
    foreign = Foreign()
    foreign.w = plait.Param(1.0)
    graph = Node(inner=foreign)
    before = plait.split(graph)[1].flat_state().paths
    foreign.v = plait.Param(1.0)
    assert (before, plait.split(graph)[1].flat_state().paths) == (
        (("inner", "w"),),
        (("inner", "v"), ("inner", "w")),
    )


ROOTS = {
    "a model": lambda: [model()],
    "a variable": lambda: [plait.Param(1.0)],
    "two models": lambda: [model(), model()],
    "a model twice": lambda: [model()] * 2,
    "model and variable": lambda: [model(), plait.Param(1.0)],
}


@pytest.mark.parametrize("case", ROOTS)
def test_a_walk_keeps_no_root_alive(case):
    """U34: dropped at once, without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        roots = ROOTS[case]()
        find_walk(tuple(roots))
        alive = [weakref.ref(root) for root in roots]
        roots.clear()
        assert [ref() for ref in alive] == [None] * len(alive)
    finally:
        gc.enable()


def _with_back_pointer():
    root = Node(parts=[Leafy()])
    root.parts[0].owner = root
    return root


@pytest.mark.parametrize("dropped", [0, 1])
def test_a_walk_of_two_roots_keeps_neither_alive(dropped):
    """U34: also when its plain containers lead back to it."""
    roots = [_with_back_pointer(), _with_back_pointer()]
    find_walk(tuple(roots))
    alive = weakref.ref(roots.pop(dropped))
    gc.collect()
    assert alive() is None


def test_a_dead_root_takes_its_walk_with_it():
    """U34: an id that is used again finds nothing."""
    first, second = model(), model()
    find_walk((first, second))
    assert len(first._pytree__walks) == 1
    del second
    assert len(first._pytree__walks) == 0


def test_walks_of_many_short_lived_partners_do_not_pile_up():
    """U34."""
    graph = model()
    for _ in range(20):
        find_walk((graph, model()))
        partner = model()
        find_walk((partner, graph))
    del partner
    assert len(graph._pytree__walks) == 0


def test_a_graph_with_states_is_walked_once():
    """U33: the states of an optimizer are plain containers whose children are views, made anew each time."""
    model = plait.Dict(
        moments=plait.State({"a": {"b": plait.Variable(jnp.ones(2))}}), pair=(plait.Variable(jnp.ones(2)), 1)
    )
    walk = find_walk((model,))
    assert find_walk((model,)) is walk
    model.moments["a"]["b"] = plait.Variable(jnp.zeros(2))
    assert find_walk((model,)) is not walk


def test_a_step_with_an_adam_optimizer_is_walked_once(users_promotion):
    """U33."""
    model = plait.Linear(2, 2, rngs=plait.Rngs(0))
    optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)

    @plait.jit
    def step(model, optimizer):
        optimizer.update(model, plait.grad(lambda m: m.kernel[...].sum())(model))

    step(model, optimizer)
    walk = find_walk((model, optimizer))
    for _ in range(3):
        step(model, optimizer)
    assert find_walk((model, optimizer)) is walk


def test_the_cache_of_a_function_can_be_dropped_where_there_is_none():
    """A change of the model has dropped it, and the function is cleared after that."""
    model = Node(w=plait.Param(1.0))
    f = plait.jit(lambda model: model.w[...] * 2)
    f(model)
    model.v = plait.Param(1.0)
    drop_runs(model, -1)
    f.clear_cache()
    assert float(f(model)) == 2.0


def test_a_root_keeps_a_limited_number_of_walks():
    """The latest, of all those with other roots that are alive."""
    teacher, *students = (Node(w=plait.Param(1.0)) for _ in range(100))
    f = plait.jit(lambda teacher, student: teacher.w[...] + student.w[...])
    for student in students:
        f(teacher, student)
    kept = [each for each in teacher._pytree__walks.values() if isinstance(each, CachedWalk)]
    assert len(kept) < 50
    assert find_walk((teacher, students[-1])) in kept
    students[0].w.value = jnp.asarray(5.0)
    assert float(f(teacher, students[0])) == 6.0
