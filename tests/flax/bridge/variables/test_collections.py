"""Whole trees, each way, and models as collections."""

import flax
import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import plait
from plait import bridge, meta
from plait.errors import ArgumentError, GraphError
from plait.flax.bridge import variables as bv
from tests.flax.bridge.flaxes import Block, plain, same_trees
from tests.nn.stacks.stacks import Net, blocks_of

NAMES = st.sampled_from(["a", "b", "c", "d"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(tuple)
COLLECTIONS = st.sampled_from(["params", "batch_stats", "cache", "collections_mine"])


def leaf_of(collection, kind, value):
    array = jnp.full((2,), value, jnp.float32)
    if kind == "named":
        return meta.LogicallyPartitioned(array, ("x",), rules=(("x", "data"),))
    if kind == "noted":
        return bv.to_linen_var(bridge.variable_type(collection)(array, note=value))
    return [array, {"k": 1}] if kind == "list" else array


@st.composite
def linen_variables(draw):
    """Collections whose paths do not collide."""
    variables, taken = {}, []
    kinds = st.sampled_from(["bare", "named", "noted", "list"])
    for path in draw(st.lists(PATHS, max_size=6, unique=True)):
        if any(path[: len(other)] == other or other[: len(path)] == path for other in taken):
            continue
        taken.append(path)
        collection = draw(COLLECTIONS)
        node = variables.setdefault(collection, {})
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf_of(collection, draw(kinds), len(taken))
    return variables


@given(linen_variables())
def test_there_and_back_is_the_identity(variables):
    """B18."""
    back = bv.nnx_attrs_to_linen_vars(bv.linen_vars_to_nnx_attrs(variables))
    same_trees(back, variables)


def test_empty_collections_vanish_and_frozen_dictionaries_are_read():
    """B16, B18."""
    variables = flax.core.freeze({"params": {"a": {"w": jnp.ones(2)}, "b": {}}, "batch_stats": {}})
    attrs = bv.linen_vars_to_nnx_attrs(variables)
    assert list(attrs) == ["a"]
    assert list(bv.nnx_attrs_to_linen_vars(attrs)) == ["params"]


def test_subtrees_of_different_collections_are_merged():
    """B16: boxes and whatever is no mapping are leaves."""
    attrs = bv.linen_vars_to_nnx_attrs(
        {"params": {"norm": {"scale": jnp.ones(2)}, "many": [1, 2]}, "batch_stats": {"norm": {"mean": jnp.zeros(2)}}}
    )
    assert {name: type(leaf) for name, leaf in attrs["norm"].items()} == {"scale": plait.Param, "mean": plait.BatchStat}
    assert attrs["many"].value == [1, 2]


COLLIDING = {
    "the same path": ({"params": {"a": {"w": 1}}, "batch_stats": {"a": {"w": 2}}}, r"a\.w"),
    "a leaf, then below it": ({"params": {"a": 1}, "batch_stats": {"a": {"w": 2}}}, "at +a\n"),
    "below it, then a leaf": ({"params": {"a": {"w": 1}}, "batch_stats": {"a": 2}}, "at +a\n"),
}


@pytest.mark.parametrize(("variables", "path"), COLLIDING.values(), ids=COLLIDING)
def test_one_path_in_two_collections_is_an_error_that_names_both(variables, path):
    """B16."""
    with pytest.raises(ArgumentError, match=rf"(.|\n)*{path}(.|\n)*Param(.|\n)*'params'(.|\n)*BatchStat"):
        bv.linen_vars_to_nnx_attrs(variables)


def test_a_value_that_stands_in_no_collection_is_an_error():
    """B16, B17, section 9."""
    with pytest.raises(ArgumentError, match=r"not in a collection(.|\n)*'params'"):
        bv.linen_vars_to_nnx_attrs({"params": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"at +a\.b(.|\n)*3 of type int"):
        bv.nnx_attrs_to_linen_vars({"a": {"b": 3}})


def test_a_graphdef_goes_to_its_own_collection():
    """B17."""
    graphdef, state = plait.split(plait.Linear(2, 3, rngs=plait.Rngs(0)))
    variables = bv.nnx_attrs_to_linen_vars({"layer": {**state, "graphdef": graphdef}})
    assert variables["nnx"]["layer"]["graphdef"] is graphdef
    assert sorted(variables["params"]["layer"]) == ["bias", "kernel"]


def test_an_unregistered_class_is_an_error():
    """B17, section 10: explicit is safer."""

    class CollectionsUnknown(plait.Variable):
        pass

    with pytest.raises(ArgumentError, match="CollectionsUnknown"):
        bv.nnx_attrs_to_linen_vars({"a": CollectionsUnknown(1)})


class Tied(plait.Module):
    def __init__(self, rngs):
        self.first = plait.Linear(2, 2, rngs=rngs, kernel_init=plait.with_metadata(jax.nn.initializers.ones, note="n"))
        self.again = self.first
        self.norm = plait.BatchNorm(2, rngs=rngs)
        self.drop = plait.Dropout(0.5, rngs=rngs)
        self.table = plait.Cache({"k": jnp.ones(2), "v": jnp.zeros(2)})


def tied():
    return Tied(plait.Rngs(0))


def test_a_model_becomes_collections_and_comes_back():
    """Lossless without Linen: kinds, metadata, sharing, dictionaries as values; random state is not stored."""
    model = tied()
    collections = bridge.to_collections(model)
    assert sorted(collections) == ["batch_stats", "cache", "params"]
    for like in (tied(), model):
        back = bridge.from_collections(collections, like)
        assert back is not model
        assert back.first is back.again
        assert back.first.kernel.note == "n"
        same_trees(plait.state(back, plait.Not(plait.RngState)), plait.state(model, plait.Not(plait.RngState)))


def test_collections_fill_an_abstract_model_and_take_unboxed_values():
    """Values without a box keep the metadata that the model has."""
    model = plait.Linear(2, 3, rngs=plait.Rngs(0), kernel_init=plait.with_metadata(jax.nn.initializers.ones, note="n"))
    like = plait.eval_shape(lambda: plait.clone(model))
    back = bridge.from_collections(flax.core.freeze(meta.unbox(bridge.to_collections(model))), like)
    assert back.kernel.note == "n"
    same_trees(plait.state(back), plait.state(model))


def test_collections_of_a_linen_module_fill_a_model_of_the_same_names():
    x = jnp.ones((1, 2))
    variables = flax.linen.Dense(3).init(jax.random.key(0), x)
    model = bridge.from_collections(variables, plait.Linear(2, 3, rngs=plait.Rngs(1)))
    assert (model(x) == flax.linen.Dense(3).apply(variables, x)).all()


@pytest.mark.parametrize(
    ("depth", "period", "groups"), [(3, 1, [""]), (5, 2, ["0:4:2", "1:4:2", "4:5"])], ids=["one group", "several"]
)
def test_a_stack_has_the_form_of_nn_scan(depth, period, groups):
    """A stack of equal layers is one block with all layers, in place of the stack; several groups keep their keys."""
    model = Net(plait.Stack(blocks_of(depth, period), period=period))
    collections = bridge.to_collections(model)
    blocks = collections["params"]["blocks"]
    assert sorted(blocks) == (["linear", "norm"] if groups == [""] else groups)
    own = plait.variables(model)["blocks"]
    for group, key in zip(groups, sorted(own), strict=True):
        found = blocks[group] if group else blocks
        same_trees(found["linear"]["kernel"], own[key]["linear"]["kernel"][...])
    back = bridge.from_collections(collections, Net(plait.Stack(blocks_of(depth, period, seed=1), period=period)))
    same_trees(bridge.to_collections(back), collections)


def changed(collections, change):
    collections = jax.tree.map(lambda x: x, collections)
    change(collections)
    return collections


MISFITS = {
    "a value is missing": (lambda c: c["params"]["norm"].pop("scale"), r"'params', norm\.scale"),
    "another collection": (
        lambda c: c.setdefault("cache", {}).update(norm={"mean": c["batch_stats"]["norm"].pop("mean")}),
        r"'batch_stats', norm\.mean(.|\n)*in collection 'cache'",
    ),
    "a value is left over": (lambda c: c["params"]["norm"].update(extra=1), r"'params', norm\.extra"),
    "an unknown collection": (lambda c: c.update(collections_odd={"w": 1}), r"'collections_odd', w"),
    "another shape": (lambda c: c["params"]["norm"].update(scale=jnp.ones(3)), r"'params', norm\.scale(.|\n)*\(3,\)"),
}


@pytest.mark.parametrize(("change", "named"), MISFITS.values(), ids=MISFITS)
def test_collections_that_do_not_fit_name_collection_and_leaf_and_make_no_model(change, named):
    model = tied()
    before = plait.state(plait.clone(model))
    collections = bridge.to_collections(model)
    with pytest.raises(GraphError, match=rf"(.|\n)*{named}"):
        bridge.from_collections(changed(collections, change), model)
    same_trees(plait.state(model), before)


def test_a_models_own_arrays_belong_to_no_collection():
    model = plait.Dict(scale=jnp.ones(2))
    with pytest.raises(ArgumentError, match=r"at +scale"):
        bridge.to_collections(model)


def test_the_variables_of_a_linen_module_survive_the_trip():
    """B18 on real variables, sown ones too."""
    variables = Block().init({"params": jax.random.key(0)}, jnp.ones((1, 2)), mutable=True)
    back = bv.nnx_attrs_to_linen_vars(bv.linen_vars_to_nnx_attrs(variables))
    same_trees(back, plain(variables))
