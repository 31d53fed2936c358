"""Models that JAX flattens by itself: what contains itself is refused, and what is shared is told. (rule G63)"""

import warnings

import jax
import jax.numpy as jnp
import pytest

import plait
from plait.errors import GraphError, LostSharingWarning
from tests.strategies import Node


def cyclic():
    root = Node(w=plait.Param(jnp.ones(2)), inner=Node(items=plait.List([Node()])))
    root.inner.items[0].back = root
    return root


PLAIN_CYCLES = {
    "without data": lambda items: items.append([items]),
    "after data": lambda items: items.extend([plait.Param(jnp.ones(2)), {"again": items}]),
    "before data": lambda items: items.extend([(items,), plait.Param(jnp.ones(2))]),
}


@pytest.mark.parametrize("name", ["tree.leaves", "tree_flatten_with_path", "jit"])
@pytest.mark.parametrize("put", PLAIN_CYCLES.values(), ids=PLAIN_CYCLES)
@pytest.mark.parametrize(("kind", "at"), [(Node, "items"), (plait.List, r"\[0\]")])
def test_a_plain_container_that_was_put_into_itself_is_refused_by_path(name, put, kind, at):
    """G21, G63: a list that changed after it was assigned."""
    items: list = [1]
    model = Node(items=items) if kind is Node else plait.List([items])
    put(items)
    with pytest.raises(GraphError, match=rf"a plain container contains itself\n +at +{at}"):
        FLATTENING[name](model)


def test_the_data_of_a_container_that_contains_itself_has_no_end():
    items: list = [1]
    items.append(items)
    with pytest.raises(GraphError, match=r"a plain container contains itself\n +at +\[1\]"):
        plait.has_data(items)


def tied():
    return Node(a=Node(w=plait.Param(jnp.ones(2))), z=[Node()])


FLATTENING = {
    "tree.map": lambda model: jax.tree.map(lambda x: x, model),
    "tree.leaves": jax.tree.leaves,
    "tree.leaves of a list": lambda model: jax.tree.leaves([model]),
    "tree_flatten_with_path": jax.tree_util.tree_flatten_with_path,
    "tree_map_with_path": lambda model: jax.tree_util.tree_map_with_path(lambda path, x: x, model),
    "jit": lambda model: jax.jit(lambda model: 1)(model),
    "vmap": lambda model: jax.vmap(lambda model: 1, out_axes=None)(model),
    "grad": lambda model: jax.grad(lambda model: 1.0)(model),
    "device_put": jax.device_put,
}


@pytest.mark.parametrize("name", FLATTENING)
def test_a_model_that_contains_itself_is_refused_by_path(name):
    """Python would run out of its stack, and JAX could flatten nothing after."""
    for _ in range(20):
        with pytest.raises(GraphError, match=r"contains itself\n +at +the root and inner\.items\[0\]\.back\n"):
            FLATTENING[name](cyclic())
    assert len(jax.tree.leaves(Node(a=Node(b=Node(w=plait.Param(1.0)))))) == 1


SHARED = {
    "variable": (lambda m: setattr(m.z[0], "w", m.a.w), r"a\.w and z\[0\]\.w\n +found +the same Param"),
    "module": (lambda m: m.z.append(m.a), r"a and z\[1\]\n +found +the same Node"),
    "in a List": (lambda m: setattr(m, "y", plait.List([m.a])), r"a and y\[0\]\n +found +the same Node"),
}


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("name", ["tree.map", "jit"])
def test_a_model_that_loses_its_sharing_is_told_once(case, name):
    share, pattern = SHARED[case]
    model = tied()
    share(model)
    with pytest.warns(LostSharingWarning, match=pattern) as told:
        FLATTENING[name](model)
    assert {each.filename for each in told} == {__file__}
    assert len({str(each.message) for each in told}) == 1


QUIET = {
    "leaves": jax.tree.leaves,
    "structure": jax.tree.structure,
    "wait": jax.block_until_ready,
    "plait.jit": lambda model: plait.jit(lambda model: model.a.w[...].sum())(model),
    "plait.grad": lambda model: plait.grad(lambda model: model.a.w[...].sum())(model),
    "clone": plait.clone,
    "split": plait.split,
    "text": repr,
    "a tree": lambda model: jax.tree.map(lambda x: x, tied()),
    "twice the same tree": lambda model: [jax.tree.map(lambda x: x, each) for each in [tied()] * 2],
}


@pytest.mark.parametrize("case", QUIET)
def test_what_keeps_sharing_or_needs_none_is_quiet(case):
    model = tied()
    SHARED["variable"][0](model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        QUIET[case](model)
