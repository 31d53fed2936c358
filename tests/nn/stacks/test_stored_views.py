"""Views of a stack that are stored in a model: refused by every function that walks it, with one error. (rule ST17)"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import plait
from plait.errors import SharingError
from tests.sampling import slow_but


class Leaf(plait.Module):
    def __init__(self, value: float) -> None:
        self.w = plait.Param(jnp.full((2,), value))
        self.drop = plait.Dropout(0.5)

    def __call__(self, x: Any) -> Any:
        return x * self.w[...]


class Model(plait.Module):
    def __init__(self, kind: Any) -> None:
        self.blocks = kind([Leaf(float(i)) for i in range(3)])
        self.other = plait.Linear(2, 2, rngs=plait.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.blocks[0](x)


def nested(kind: Any) -> Any:
    return plait.Dict(blocks=kind([Model(kind) for _ in range(2)]))


def put(model: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def twice() -> Any:
    blocks = Model(plait.Stack).blocks
    return plait.Dict(first=blocks[2], second=blocks[2])


def inner_and_outer() -> Any:
    block = nested(plait.Stack).blocks[1]
    return plait.Dict(block=block, leaf=block.blocks[0])


def stacked(**attributes: Callable[[Any], Any]) -> Callable[[], Any]:
    def make() -> Any:
        model = Model(plait.Stack)
        return put(model, **{name: value(model) for name, value in attributes.items()})

    return make


# Where a layer is stored twice, and the two paths.
STORED: dict[str, tuple[Callable[[], Any], str]] = {
    "an attribute": (stacked(extra=lambda m: m.blocks[2]), "blocks[2].w and extra.w (the same Param)"),
    "before the stack": (stacked(a=lambda m: m.blocks[2]), "blocks[2].w and a.w (the same Param)"),
    "in a list": (stacked(extra=lambda m: [m.other, m.blocks[1]]), "blocks[1].w and extra[1].w"),
    "in a List": (stacked(extra=lambda m: plait.List([m.blocks[1]])), "blocks[1].w and extra[0].w"),
    "in a dict": (stacked(extra=lambda m: {"x": m.blocks[0]}), "blocks[0].w and extra.x.w"),
    "a variable": (stacked(tied=lambda m: m.blocks[2].w), "blocks[2].w and tied"),
    "in a module": (stacked(head=lambda m: plait.Sequential(m.blocks[2])), "blocks[2].w and head.layers[0].w"),
    "two views": (twice, "first.w and second.w"),
    "of a stack in a stack": (
        lambda: put(model := nested(plait.Stack), leaf=model.blocks[1].blocks[2]),
        "blocks[1].blocks[2].w and leaf.w",
    ),
    "a view and a view of it": (inner_and_outer, "block.blocks[0].w and leaf.w"),
}


def roundtrip(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


def in_context(model: Any) -> Any:
    with plait.split_context() as context:
        return context.split(model)


def walked_apart(model: Any) -> Any:
    """The parts of the model are flattened one after the other, with one index."""
    refs = plait.graph.RefMap()
    return [plait.graph.flatten(child, ref_index=refs) for _, child in plait.iter_children(model)]


# What walks a model.
WALKS: dict[str, Callable[[Any, Any], Any]] = {
    "state": lambda m, _: plait.state(m),
    "state, filters": lambda m, _: plait.state(m, plait.Param, ...),
    "split": lambda m, _: plait.split(m),
    "graphdef": lambda m, _: plait.graphdef(m),
    "flatten": lambda m, _: plait.graph.flatten(m),
    "flatten, parts": lambda m, _: walked_apart(m),
    "split_context": lambda m, _: in_context(m),
    "clone": lambda m, _: plait.clone(m),
    "clone, shared variables": lambda m, _: plait.clone(m, variables=False),
    "view": lambda m, _: plait.view(m, deterministic=True),
    "with_attributes": lambda m, _: plait.with_attributes(m, rate=0.1),
    "variables": lambda m, _: plait.variables(m),
    "iter_graph": lambda m, _: next(plait.iter_graph(m)),
    "iter_modules": lambda m, _: next(plait.iter_modules(m)),
    "find_duplicates": lambda m, _: plait.find_duplicates(m),
    "pop": lambda m, _: plait.pop(m, plait.Param),
    "set_metadata": lambda m, _: plait.set_metadata(m, note=1),
    "map": lambda m, _: plait.map(lambda path, value: value, m),
    "recursive_map": lambda m, _: plait.recursive_map(lambda path, value: value, m),
    "select": lambda m, _: plait.select(m, "**.w"),
    "eval": lambda m, _: m.eval(),
    "as_list": lambda m, _: plait.as_list(m),
    "reseed": lambda m, _: plait.reseed(m, default=1),
    "capture": lambda m, _: plait.capture(lambda m: m, plait.Intermediate)(m),
    "partition specs": lambda m, _: plait.get_partition_spec(m),
    "Optimizer": lambda m, _: plait.Optimizer(m, optax.sgd(0.1), wrt=plait.Param),
    "EMA": lambda m, _: plait.EMA(m, decay=0.9),
    "jit": lambda m, _: plait.jit(lambda m: 1.0)(m),
    "grad": lambda m, _: plait.grad(lambda m: 1.0)(m),
    "eval_shape": lambda m, _: plait.eval_shape(lambda m: 1.0, m),
    "save": lambda m, path: plait.checkpoint.save(path / "saved", {"model": m}),
    "to_torch": lambda m, _: plait.convert.to_torch(m),
    "pickle": lambda m, _: roundtrip(m),
    "deepcopy": lambda m, _: copy.deepcopy(m),
    "jax.tree.map": lambda m, _: jax.tree.map(lambda x: x, m),
    "jax.tree.leaves": lambda m, _: jax.tree.leaves(m),
    "jax.tree.flatten_with_path": lambda m, _: jax.tree.flatten_with_path(m),
    "jax.jit": lambda m, _: jax.jit(lambda m: 1.0)(m),
}


def contents(model: Any) -> dict[int, Any]:
    """Every object below a model, and the values, without a walk."""
    found: dict[int, Any] = {}
    stack = [model]
    while stack:
        value = stack.pop()
        if isinstance(value, plait.Variable):
            found[id(value)] = np.asarray(value.get_raw_value()).tolist()
        elif id(value) not in found and isinstance(value, plait.Module | list | dict):
            items = value if isinstance(value, list) else vars(value) if isinstance(value, plait.Module) else value
            items = [*enumerate(items)] if isinstance(items, list) else [*items.items()]
            items += [*enumerate(value)] if isinstance(value, plait.List) else []
            found[id(value)] = [(key, id(child)) for key, child in items]
            stack += [child for _, child in items]
    return found


@pytest.mark.parametrize("where", STORED)
def test_a_stored_view_is_named_by_both_paths(where: str) -> None:
    make, paths = STORED[where]
    model = make()
    for walk in ("state", "iter_graph"):
        with pytest.raises(SharingError, match=r"at +" + re.escape(paths)):
            WALKS[walk](model, None)
    in_call = " and ".join(f"m.{path}" for path in paths.split(" and "))
    with pytest.raises(SharingError, match=r"at +" + re.escape(in_call)):
        WALKS["jit"](model, None)


PLACES = ["an attribute", "in a List", "two views"]


@pytest.mark.parametrize(
    ("walk", "where"),
    slow_but(lambda row: row[1] == "an attribute", [(walk, where) for walk in WALKS for where in PLACES]),
)
def test_every_walk_refuses_a_stored_view_and_changes_nothing(walk: str, where: str, tmp_path: Any) -> None:
    model = STORED[where][0]()
    before = contents(model)
    for _ in range(2):
        with pytest.raises(SharingError, match="a layer of a stack was given twice"):
            WALKS[walk](model, tmp_path)
    assert contents(model) == before
    assert not [*tmp_path.iterdir()]


def test_update_refuses_entries_for_a_stored_view() -> None:
    model = STORED["an attribute"][0]()
    before = contents(model)
    with pytest.raises(SharingError, match=re.escape("blocks[2].w and extra.w")):
        plait.update(model, {"other": {"bias": jnp.ones(2)}, "extra": {"w": jnp.ones(2)}})
    assert contents(model) == before


def test_a_model_is_walked_again_once_the_view_is_gone() -> None:
    model = Model(plait.Stack)
    plait.state(model)
    model.extra = model.blocks[2]
    with pytest.raises(SharingError, match="do not store a view"):
        plait.state(model)
    model.extra = plait.clone(model.blocks[2])
    assert plait.state(model)["extra"]["w"].shape == (2,)
    model.extra = plait.List([])
    plait.state(model)
    model.extra.append(model.blocks[1])
    with pytest.raises(SharingError, match=re.escape("blocks[1].w and extra[0].w")):
        plait.state(model)


def test_a_stored_view_does_not_stop_a_repr() -> None:
    assert "extra" in repr(STORED["an attribute"][0]())


RETURNED = {
    "output.w": lambda m: m.blocks[1],
    "output[0].w": lambda m: [m.blocks[1], m],
    "output.a": lambda m: {"a": m.blocks[1].w},
}


@pytest.mark.parametrize("output", RETURNED)
def test_a_transform_does_not_return_a_view_of_its_arguments(output: str) -> None:
    """It would be a copy; a list of blocks returns the block itself."""
    with pytest.raises(SharingError, match=re.escape(f"m.blocks[1].w and {output} ")) as caught:
        plait.jit(lambda m: RETURNED[output](m))(Model(plait.Stack))
    assert "plait.clone(model.blocks[1])" in str(caught.value)


def test_a_transform_without_updates_returns_no_view_either() -> None:
    with pytest.raises(plait.errors.ArgumentError, match=r"at +m\.blocks\[0:3\]\.w"):
        plait.vmap(lambda m, x: m.blocks[1].w, in_axes=(None, 0), graph_updates=False)(Model(plait.Stack), jnp.ones(2))


# What views are for --------------------------------------------------------------------------------------------------


def state_of(model: Any) -> dict[Any, Any]:
    return {path: np.asarray(leaf.get_raw_value()).tolist() for path, leaf in plait.to_flat_state(plait.state(model))}


def updated(part: Any) -> Any:
    plait.update(part, jax.tree.map(lambda x: x + 1, plait.state(part, plait.Param)))
    return state_of(part)


# Parts that hold each layer once.
PARTS: dict[str, Callable[[Any], Any]] = {
    "a view": lambda m: m.blocks[1],
    "a list of views": lambda m: [*m.blocks],
    "a slice": lambda m: m.blocks[:2],
    "a variable of a view": lambda m: {"w": m.blocks[2].w},
    "views in a module": lambda m: plait.Sequential(*m.blocks[1:]),
    "a view in another model": lambda m: put(plait.Linear(2, 2, rngs=plait.Rngs(1)), extra=m.blocks[2]),
    "one view in two places": lambda m: (lambda view: {"a": view, "b": [view]})(m.blocks[0]),
}
USES: dict[str, Callable[[Any], Any]] = {
    "state": state_of,
    "clone": lambda part: state_of(plait.clone(part)),
    "merge": lambda part: state_of(plait.merge(*plait.split(part))),
    "iter_graph": lambda part: [path for path, value in plait.iter_graph(part) if isinstance(value, plait.Variable)],
    "find_duplicates": lambda part: plait.find_duplicates(part, only=plait.Variable),
    "update": updated,
    "pickle": lambda part: state_of(roundtrip(part)),
    "deepcopy": lambda part: state_of(copy.deepcopy(part)),
    "jit": lambda part: plait.jit(updated_in_jit)(part) or state_of(part),
    "jax.tree.leaves": lambda part: [x.tolist() for x in jax.tree.leaves(part)],
}


def updated_in_jit(part: Any) -> None:
    for _, leaf in plait.iter_graph(part):
        if isinstance(leaf, plait.Param):
            leaf[...] = 2 * leaf[...]


@pytest.mark.parametrize("part", PARTS)
def test_views_that_are_given_once_are_as_the_blocks_of_a_list(part: str) -> None:
    looped, stacked = Model(plait.List), Model(plait.Stack)
    theirs, ours = PARTS[part](looped), PARTS[part](stacked)
    for name, use in USES.items():
        assert use(ours) == use(theirs), name
    assert state_of(stacked.blocks.to_list()) == state_of(looped.blocks)


# A view in a module that does not hold its stack.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "pop": lambda m: plait.pop(m, plait.Param),
    "set_metadata": lambda m: plait.set_metadata(m, note=1),
    "eval": lambda m: m.eval(),
    "update": lambda m: plait.update(m, {"a": {"new": jnp.ones(2)}, "extra": {"new": jnp.ones(2)}}),
    "an attribute": lambda m: setattr(m.extra, "w", plait.Param(jnp.ones(2))),
    "a deletion": lambda m: delattr(m.extra, "w"),
    "a setting": lambda m: setattr(m.extra.drop, "rate", 0.1),
    "a List": lambda m: m.extra.items.append(1),
    "sown": lambda m: m.extra.sow(plait.Intermediate, "x", 1.0),
    "jit": lambda m: plait.jit(changed)(m),
    "jit, a List": lambda m: plait.jit(lambda m: m.extra.items.append(1))(m),
    "update_context": lambda m: changed_in_context(m),
}


class Wide(Leaf):
    def __init__(self, value: float) -> None:
        super().__init__(value)
        self.items = plait.List([plait.Param(jnp.ones(1))])


def changed(model: Any) -> None:
    model.a.w[...] = 9.0
    model.extra.more = plait.Param(1.0)


def changed_in_context(model: Any) -> None:
    with plait.update_context("views") as context:
        graphdef, state = context.split(model)
        inner = context.merge(graphdef, state)
        changed(inner)
        graphdef, state = context.split(inner)
        context.merge(graphdef, state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_structure_in_a_view_changes_nothing(change: str) -> None:
    stack = plait.Stack([Wide(float(i)) for i in range(3)])
    model = plait.Dict(a=Leaf(5.0), extra=stack[2], z=Leaf(6.0))
    plait.state(model)
    before = contents(model), plait.graphdef(model), plait.graphdef(stack)
    with pytest.raises(plait.errors.GraphError, match="one layer of a stack cannot differ from the others"):
        CHANGES[change](model)
    assert (contents(model), plait.graphdef(model), plait.graphdef(stack)) == before
