"""One variable or leaf, each way."""

import dataclasses
import warnings

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax.core import meta as flax_meta

import plait
from plait import bridge, meta
from plait.errors import ArgumentError, CollectionTypeError
from plait.flax.bridge import variables as bv


class Hooked(plait.Param):
    def on_get_value(self, value):
        return value * 2


def test_vanilla_is_a_variable_without_metadata():
    """B11: flags, empty hooks and the hooks of the class itself say nothing that the class does not."""
    assert bv.is_vanilla_variable(plait.Param(1))
    assert bv.is_vanilla_variable(plait.Param(1, eager_sharding=False, on_get_value=(), get_value_hooks=()))
    assert bv.is_vanilla_variable(Hooked(1))
    assert not bv.is_vanilla_variable(plait.Param(1, note="x"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        assert not bv.is_vanilla_variable(plait.Param(1, on_get_value=lambda v, x: x))


@dataclasses.dataclass
class Box(meta.AxisMetadata):
    value: object
    tag: str = ""

    unbox = replace_boxed = add_axis = remove_axis = None


class Plain(meta.AxisMetadata):
    """No dataclass."""

    unbox = replace_boxed = add_axis = remove_axis = None

    def __init__(self, value, tag=""):
        self.value, self.tag = value, tag


TO_LINEN = {
    "its own conversion": (
        plait.Param(jnp.ones(2), out_sharding=("a",), linen_meta_type=meta.Partitioned),
        lambda x: type(x) is meta.Partitioned and x.names == ("a",),
    ),
    "its fields": (plait.Param(jnp.ones(2), tag="t", linen_meta_type=Box), lambda x: type(x) is Box and x.tag == "t"),
    "its attributes": (
        plait.Param(jnp.ones(2), tag="t", linen_meta_type=Plain),
        lambda x: type(x) is Plain and x.tag == "t",
    ),
    "vanilla": (plait.Param(jnp.ones(2)), lambda x: isinstance(x, jax.Array)),
    "metadata": (plait.Param(jnp.ones(2), tag="t"), lambda x: type(x) is bridge.NNXMeta and x.metadata["tag"] == "t"),
}


@pytest.mark.parametrize(("variable", "right"), TO_LINEN.values(), ids=TO_LINEN)
def test_a_variable_becomes_the_least_that_keeps_it(variable, right):
    """B12: the variable is not modified, and comes back."""
    before = dict(variable.get_metadata())
    leaf = bv.to_linen_var(variable)
    assert right(leaf)
    assert variable.get_metadata() == before
    back = bv.to_nnx_var("params", leaf)
    assert type(back) is plait.Param
    assert back.get_raw_value() is variable.get_raw_value()
    kept = {name: value for name, value in back.get_metadata().items() if value is not None}
    assert kept == before


def test_get_hooks_run_where_a_variable_is_used_not_where_it_is_carried():
    """B12: Flax applies them at every conversion, which doubles values on a round trip."""
    plait.register_variable_name("leaves_hooked", Hooked, overwrite=True)
    variable = Hooked(jnp.ones(2))
    back = bv.to_nnx_var("leaves_hooked", bv.to_linen_var(variable))
    assert back[...].tolist() == variable[...].tolist() == [2.0, 2.0]


def test_a_box_of_another_class_than_its_collection_is_refused():
    """B13: both a ValueError and an AssertionError."""
    box = bv.to_linen_var(plait.Param(1, note="x"))
    with pytest.raises(CollectionTypeError, match=r"'batch_stats'(.|\n)*of Param(.|\n)*BatchStat") as caught:
        bv.to_nnx_var("batch_stats", box)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AssertionError)


def test_a_box_without_a_value_is_refused():
    """B13."""

    class Empty(meta.AxisMetadata):
        unbox = replace_boxed = add_axis = remove_axis = None

        def to_nnx_metadata(self):
            return {"names": ()}

    with pytest.raises(ArgumentError, match=r"(.|\n)*Empty"):
        bv.to_nnx_var("params", Empty())


@pytest.mark.parametrize("kind", [flax_meta.Partitioned, nn.LogicallyPartitioned])
def test_a_box_of_linen_enters_and_leaves_as_its_own_class(kind):
    """B3, B13, M34: and is not modified, as Flax's own conversion does."""
    box = kind(jnp.ones((2, 3)), ("in", None))
    before = dict(vars(box))
    variable = bv.to_nnx_var("params", box)
    assert dict(vars(box)) == before
    assert variable.out_sharding == ("in", None)
    assert variable.get_metadata("linen_meta_type") is kind
    back = bv.to_linen_var(variable)
    assert type(back) is kind
    assert (back.names, back.mesh) == (box.names, box.mesh)


def test_each_side_unboxes_the_boxes_of_the_other():
    """B3."""
    tree = {"f": flax_meta.Partitioned(jnp.ones(2), ("a",)), "p": meta.Partitioned(jnp.ones(2), ("a",)), "n": None}
    tree["n"] = bv.to_linen_var(plait.Param(jnp.ones(2), note="x"))
    for unbox in (meta.unbox, nn.unbox):
        assert all(isinstance(leaf, jax.Array) for leaf in unbox(tree).values())
    named = {plait.PARTITION_NAME: "layers"}
    for add in (meta.add_axis, flax_meta.add_axis):
        deep = add({"f": tree["f"], "p": tree["p"]}, 0, named)
        assert deep["f"].names == deep["p"].names == ("layers", "a")
    assert not isinstance(jnp.ones(2), meta.AxisMetadata)
    assert not issubclass(dict, meta.AxisMetadata)


def test_a_plain_value_becomes_a_variable_of_its_collection():
    """B13: a class is made for an unknown collection, and the constructor's hooks do not change the value."""
    assert type(bv.to_nnx_var("params", 3)) is plait.Param
    made = bv.to_nnx_var("leaves_new", {"a": 1})
    assert type(made).__name__ == "leaves_new"
    assert made.value == {"a": 1}


def test_names_that_no_mesh_knows_place_nothing():
    """B13: logical names on a variable that enters while a mesh is set."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    box = nn.LogicallyPartitioned(jnp.ones((2, 3)), ("embed", "mlp"))
    with jax.set_mesh(mesh):
        assert bv.to_nnx_var("params", box).out_sharding == ("embed", "mlp")


def test_the_collection_is_the_first_key_of_a_path():
    """B14."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path({"params": {"w": 1}, "cache": [2]})]
    assert [bv.get_col_name(path) for path in paths] == ["cache", "params"]
    for path in ((), (jax.tree_util.SequenceKey(0),)):
        with pytest.raises(ArgumentError, match="not in a collection"):
            bv.get_col_name(path)


def test_with_partitioning_annotates_a_variable_that_becomes_partitioned():
    """B15, M28."""
    init = bridge.with_partitioning(plait.initializers.ones_init(), ("a", None))
    variable = plait.Param(init(jax.random.key(0), (2, 3), jnp.float32))
    assert variable.get_metadata("linen_meta_type") is meta.Partitioned
    assert bv.to_linen_var(variable) == meta.Partitioned(jnp.ones((2, 3)), ("a", None))


def test_two_collections_of_one_class_are_told_before_anything_is_lost():
    """B4: the variables of the second would come back in the first."""

    class Twofold(plait.Variable):
        pass

    plait.register_variable_name("leaves_first", Twofold)
    plait.register_variable_name("leaves_second", Twofold)
    assert type(bv.to_nnx_var("leaves_first", 1)) is Twofold
    with pytest.raises(CollectionTypeError, match=r"'leaves_second'\n +found +Twofold, the class of .* 'leaves_first'"):
        bv.to_nnx_var("leaves_second", 1)
