"""Writes to existing objects change everything or nothing: ``update``, ``pop``, update contexts, merges. (rule U21)"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.core.nodes.journal import Journal
from plait.core.variables.cells import Cell
from plait.errors import GraphError, ShapeError
from tests.interrupts import WRITERS, interrupted
from tests.oracles import describe
from tests.strategies import Node


class Registered:
    """A graph node of the user's, which refuses some children."""

    interrupts = 0  # how many times ``clear`` is interrupted

    def __init__(self, **children: Any) -> None:
        self.children = children

    def __repr__(self) -> str:
        return "Registered()"

    def clear(self) -> None:
        if Registered.interrupts:
            Registered.interrupts -= 1
            raise KeyboardInterrupt
        self.children.clear()

    def set_key(self, key: str, value: Any) -> None:
        if key == "refused":
            raise ValueError("refused by the node")
        self.children[key] = value

    def fill(self, children: Any) -> None:
        for key, value in children:
            self.set_key(key, value)


plait.graph.register_graph_node_type(
    Registered,
    flatten=lambda node: (sorted(node.children.items()), None),
    set_key=Registered.set_key,
    pop_key=lambda node, key: node.children.pop(key),
    create_empty=lambda metadata: Registered(),
    clear=Registered.clear,
    init=Registered.fill,
)


def make() -> Any:
    return Node(
        a=plait.Param(jnp.zeros(2)),
        noted=plait.Param(jnp.zeros(2), note=1),
        reference=plait.Variable(jnp.zeros(2), ref=True),
        x=jnp.zeros(2),
        plain=[jnp.zeros(1), {"k": jnp.zeros(1)}],
        layers=plait.List([plait.Param(jnp.zeros(1)), plait.data(1.0)]),
        own=Registered(w=plait.Param(jnp.zeros(1)), x=jnp.zeros(1)),
        empty=plait.Dict(),
    )


def seen(model: Any) -> Any:
    """All of a model, the order of its attributes, and the registered node."""
    return describe(model), [*vars(model)], marks(model.layers), describe(*model.own.children.values())


def marks(node: Any) -> Any:
    return node._pytree__info.marks or {}


STATE = {
    "a": jnp.ones(2),
    "noted": plait.Param(jnp.ones(2), note=2),
    "reference": jnp.ones(2),
    "x": jnp.ones(2),
    "plain": {0: jnp.ones(1), 1: {"k": jnp.ones(1), "new": plait.Param(1.0)}},
    "layers": {0: jnp.ones(1), 1: 2.0, 2: plait.Param(jnp.ones(1))},
    "own": {"w": jnp.ones(1), "x": jnp.ones(1), "y": jnp.ones(1)},
    "empty": {"new": plait.Param(1.0)},
    "z": plait.Param(jnp.ones(1)),
}


def write(model: Any) -> None:
    plait.update(model, STATE)


def pop(model: Any) -> None:
    plait.pop(model, plait.Variable, plait.PathContains("layers"))


def change(inner: Any) -> None:
    inner.a += 1
    inner.noted.set_metadata(note=2)
    inner.reference[...] = jnp.ones(2)
    inner.x = jnp.ones(2)
    inner.plain.append(inner.layers)
    inner.layers.append(plait.Param(jnp.ones(1)))
    inner.layers[1] = plait.Param(jnp.ones(1))
    inner.own.children["y"] = inner.a
    del inner.empty
    inner.z = 3


def by_hand(model: Any) -> None:
    with plait.update_context("test") as context:
        inner = context.merge(*context.split(model))
        change(inner)
        context.merge(*context.split(inner))


def from_tree(model: Any) -> None:
    with plait.update_context("test"):
        (inner,) = plait.from_tree(plait.to_tree((model,), ctxtag="test"), is_inner=True, ctxtag="test")
        change(inner)
        plait.from_tree(plait.to_tree((inner,), ctxtag="test"), is_inner=False, ctxtag="test")


def unflatten(model: Any) -> None:
    refs = plait.graph.RefMap()
    plait.graph.flatten(model, refs)
    other = plait.clone(model)
    other.a += 1
    other.noted.set_metadata(note=2)
    other.x, other.layers[1], other.own.children["x"] = jnp.ones(2), plait.data(2.0), jnp.ones(1)
    cache = {index: item for item, index in refs.items()}
    plait.graph.unflatten(*plait.graph.flatten(other), index_ref_cache=cache)


BY_HAND = ("update_context", "from_tree")
WRITES = {"update": write, "pop": pop, "update_context": by_hand, "from_tree": from_tree, "unflatten": unflatten}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["update", "pop", "unflatten", *(pytest.param(name, marks=pytest.mark.slow) for name in BY_HAND)]
)
def test_an_interrupt_leaves_everything_as_before_or_as_after(name: str) -> None:
    """U21: at whichever line of what writes the interrupt comes."""
    run, new = WRITES[name], make()
    run(new)
    allowed, met = [seen(make()), seen(new)], set()
    for stop, model in interrupted(make, run, *WRITERS):
        assert seen(model) in allowed, stop
        met.add(allowed.index(seen(model)))
    assert met == {0, 1}


REFUSED = {
    "by the graph": ({"zz": {"a": {"b": 1}}}, GraphError, "entries for a part that the graph does not have"),
    "by a List": ({"layers": {9: 1.0}}, GraphError, r"at +layers\[9\]"),
    "by a plain list": ({"plain": {9: 1.0}}, GraphError, r"at +plain\[9\]"),
    "by a reference": ({"reference": jnp.ones(3)}, ValueError, None),
    "by a node of the user's": ({"own": {"refused": jnp.ones(1)}}, ValueError, "refused by the node"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_update_that_is_refused_changes_nothing(case: str) -> None:
    """G38: also if the entry is refused when others are written."""
    refused, error, match = REFUSED[case]
    model = make()
    before = seen(model)
    with pytest.raises(error, match=match):
        plait.update(model, STATE, refused)
    assert seen(model) == before


def test_a_merge_that_a_node_of_the_users_refuses_changes_nothing() -> None:
    """U21: the callback that fills it raises when the rest is refilled."""
    model = make()
    before = seen(model)

    def run(model: Any) -> None:
        with plait.update_context("test") as context:
            inner = context.merge(*context.split(model))
            change(inner)
            inner.own.children["refused"] = jnp.ones(1)
            context.merge(*context.split(inner))

    with pytest.raises(ValueError, match="refused by the node"):
        run(model)
    assert seen(model) == before
    by_hand(model)
    assert seen(model) != before


def test_an_error_in_a_merge_context_undoes_its_earlier_merges() -> None:
    first, second = make(), make()
    before = seen(first), seen(second)
    with plait.update_context("test") as context:
        with plait.split_context("test") as split:
            parts = [split.split(model) for model in (first, second)]
        with plait.merge_context("test", inner=True) as merged:
            inner = [merged.merge(*part) for part in parts]
        for each in inner:
            change(each)
        with plait.split_context("test") as split:
            parts = [split.split(model) for model in inner]
        with pytest.raises(RuntimeError, match="between"), plait.merge_context("test", inner=False) as merged:
            merged.merge(*parts[0])
            assert seen(first) != before[0]
            raise RuntimeError("between two merges")
        assert (seen(first), seen(second)) == before
        with plait.merge_context("test", inner=False) as merged:
            for part in parts:
                merged.merge(*part)
        assert context.ref_index is not None
    assert seen(first) != before[0]


def test_an_interrupt_while_a_refused_update_is_undone_undoes_the_rest() -> None:
    """U21: the undoing starts again."""
    model = make()
    before = seen(model)
    Registered.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        plait.update(model, STATE, REFUSED["by a List"][0])
    assert Registered.interrupts == 0
    assert seen(model) == before


class Kept:
    """A graph node of the user's, which cannot be emptied."""

    def __init__(self) -> None:
        self.children = {"w": plait.Param(jnp.zeros(1))}

    def clear(self) -> None:
        raise NotImplementedError("it cannot be emptied")


plait.graph.register_graph_node_type(
    Kept,
    flatten=lambda node: (sorted(node.children.items()), None),
    set_key=lambda node, key, value: node.children.__setitem__(key, value),
    pop_key=lambda node, key: node.children.pop(key),
    create_empty=lambda metadata: Kept(),
    clear=Kept.clear,
    init=lambda node, items: node.children.update(items),
)


@pytest.mark.parametrize("transform", [plait.jit, plait.remat, lambda f: lambda m: plait.cond(True, f, f, m)])
@pytest.mark.parametrize("inside", [False, True])
def test_one_node_that_cannot_be_emptied_keeps_no_other_from_being_put_back(inside, transform):
    model = Node(a=plait.Param(jnp.zeros(1)), kept=plait.data(Kept()), items=[1.0], note="x")
    before = [id(child) for child in vars(model).values()]

    def f(model):
        model.a[...] += 1
        model.note = "y"
        if inside:
            model.kept.children["new"] = plait.Param(jnp.zeros(1))

    with pytest.raises(NotImplementedError, match="emptied"):
        transform(f)(model)
    assert [id(child) for child in vars(model).values()] == before
    assert float(model.a[0]) == 0


class Refusing(Cell):
    """A cell that refuses its second value."""

    __slots__ = ()

    @property
    def raw(self) -> Any:
        return _raw.__get__(self)

    @raw.setter
    def raw(self, value: Any) -> None:
        if value is REFUSED_VALUE:
            raise ShapeError("refused", found="it", expected="another", do="nothing")
        _raw.__set__(self, value)


_raw: Any = Cell.__dict__["raw"]
REFUSED_VALUE = object()


def cell_of(value: Any, kind: type[Cell] = Cell) -> Cell:
    cell = kind()
    cell.version, cell.metadata, cell.trace = 0, {"ref": False}, None
    cell.raw = value
    return cell


def test_values_whose_old_buffers_were_donated_are_kept() -> None:
    """U21: the old ones are gone, so a model would be lost."""
    gone, new = jnp.ones(2), jnp.zeros(2)
    cells = [cell_of(gone), cell_of(1, Refusing), cell_of(2)]
    gone.delete()
    with pytest.raises(ShapeError, match="refused"), Journal() as journal:
        journal.write_values(cells, [new, REFUSED_VALUE, 3])
    assert [cell.raw for cell in cells] == [new, 1, 3]
    with pytest.raises(ShapeError, match="refused"), Journal() as journal:
        journal.write_values(cells, [4, REFUSED_VALUE, 4])
    assert [cell.raw for cell in cells] == [new, 1, 3]


def test_a_cached_walk_sees_what_was_put_back() -> None:
    """U33: a walk that another thread made of the half-written model would be stale."""
    model = make()
    read = plait.jit(lambda model: len(jax.tree.leaves(plait.state(model))))
    count = read(model)
    with pytest.raises(GraphError):
        plait.update(model, {"new": plait.Param(1.0)}, {"zz": {"a": {"b": 1}}})
    assert read(model) == count
