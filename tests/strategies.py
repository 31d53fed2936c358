"""Hypothesis strategies for graphs: shared variables and modules, cycles, containers of every kind, static values."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

import plait


class Node(plait.Module):
    """A module with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


class Leafy(Node):
    """Another class, so that types differ."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Box:
    """A container that JAX knows and plait has no entry for."""

    lid: Any
    bottom: Any


class Pair(NamedTuple):
    """Another one, whose fields do not sort in their own order."""

    second: Any
    first: Any


NAMES = ("a", "b", "c", "d")
KINDS = (plait.Param, plait.BatchStat, plait.Cache)
STATICS = st.one_of(
    st.integers(-2, 2), st.booleans(), st.sampled_from(["relu", "", "x"]), st.sampled_from([0.0, -0.0, 1.5]), st.none()
)
ARRAYS = st.builds(
    lambda shape, dtype, start: (np.arange(np.prod(shape, dtype=int)).reshape(shape) + start).astype(dtype),
    st.sampled_from([(), (2,), (1, 2)]),
    st.sampled_from([np.float32, np.int32]),
    st.integers(0, 3),
)
METADATA = st.one_of(st.just({}), st.just({}), st.fixed_dictionaries({"note": st.integers(0, 1)}))

# A recipe says what stands under a name: a kind and what the kind needs. Numbers name variables and modules of a pool.
Recipe = tuple[str, Any]


_LEAVES = st.one_of(
    st.tuples(st.just("variable"), st.integers(0, 4)),
    st.tuples(st.just("module"), st.integers(0, 3)),
    st.tuples(st.just("array"), ARRAYS),
    st.tuples(st.just("static"), STATICS),
)


def _containers(inner: st.SearchStrategy[Recipe]) -> st.SearchStrategy[Recipe]:
    items = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.sampled_from(["list", "tuple", "List"]), items),
        st.tuples(st.sampled_from(["dict", "Dict"]), st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)),
        st.tuples(st.sampled_from(["Box", "Pair"]), st.tuples(inner, inner)),
    )


RECIPES = st.one_of(_LEAVES, _containers(_LEAVES), _containers(st.one_of(_LEAVES, _containers(_LEAVES))))
_POOL = st.lists(st.tuples(st.sampled_from(KINDS), ARRAYS, METADATA), min_size=5, max_size=5)
_ATTRIBUTES = st.lists(
    st.tuples(st.sampled_from([Node, Leafy]), st.dictionaries(st.sampled_from(NAMES), RECIPES, max_size=4)),
    min_size=1,
    max_size=4,
)


@st.composite
def graphs(draw: Any, *, shared: bool = True, cycles: bool = True) -> Node:
    """A module with up to four modules and five variables below it."""
    variables = [kind(jnp.asarray(value), **metadata) for kind, value, metadata in draw(_POOL)]
    planned = draw(_ATTRIBUTES)
    nodes = [cls() for cls, _ in planned]
    used: set[int] = set()

    def take(thing: Any) -> Any:
        if id(thing) in used and not shared:
            return None
        used.add(id(thing))
        return thing

    def build(recipe: Recipe, owner: int) -> Any:
        kind, what = recipe
        if kind == "variable":
            return take(variables[what])
        if kind == "module":
            number = what % len(nodes) if cycles else owner + 1 + what
            return take(nodes[number]) if number < len(nodes) and (number or cycles) else None
        if kind == "array":
            return jnp.asarray(what)
        if kind == "static":
            return what
        if kind in ("dict", "Dict"):
            items = {name: build(item, owner) for name, item in what.items()}
            return items if kind == "dict" else plait.Dict(items)
        items = [build(item, owner) for item in what]
        make = {"list": list, "tuple": tuple, "List": plait.List}.get(kind)
        return make(items) if make else {"Box": Box, "Pair": Pair}[kind](*items)

    used.add(id(nodes[0]))
    for number, (_, attributes) in enumerate(planned):
        for name, recipe in attributes.items():
            setattr(nodes[number], name, build(recipe, number))
    return nodes[0]
