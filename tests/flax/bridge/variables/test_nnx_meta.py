"""The box that carries a variable through Linen."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import plait
from plait import bridge, meta
from plait.errors import AxisNameMismatchError

NAMED = {plait.PARTITION_NAME: "layers"}


def box_of(variable):
    box = bridge.to_linen_var(variable)
    assert isinstance(box, bridge.NNXMeta)
    return box


def test_a_box_is_frozen_and_gives_back_its_variable():
    """B10."""
    box = box_of(plait.BatchStat(jnp.ones((2, 3)), note="demo"))
    back = box.to_nnx_variable()
    assert type(back) is plait.BatchStat
    assert back.note == "demo"
    assert box.unbox() is back.get_raw_value()
    replaced = box.replace_boxed(jnp.zeros(3))
    assert (replaced.var_type, dict(replaced.metadata)) == (box.var_type, dict(box.metadata))
    assert replaced.value.shape == (3,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.value = 1


def test_a_box_is_a_pytree_whose_kind_and_metadata_are_static():
    """B10: also hashable, as jit needs it."""
    box = box_of(plait.Param(jnp.ones(2), note="demo"))
    doubled = jax.jit(lambda box: jax.tree.map(lambda x: x * 2, box))(box)
    assert doubled.value.tolist() == [2.0, 2.0]
    assert doubled.metadata["note"] == "demo"
    assert doubled != box
    assert box == box_of(plait.Param(jnp.ones(2), note="demo"))
    other = box_of(plait.Param(jnp.ones(2), note="other"))
    assert jax.tree.structure(box) != jax.tree.structure(other)
    assert hash(jax.tree.structure(box)) == hash(jax.tree.structure(doubled))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (plait.Param(jnp.ones(2), note="demo"), True),
        (plait.BatchStat(jnp.ones(2), note="demo"), False),
        (plait.Param(jnp.ones(2), note="other"), False),
        (plait.Param(jnp.zeros(2), note="demo"), False),
        (plait.BatchStat(jnp.ones(2), note="other"), False),
    ],
    ids=["a copy", "another kind", "other metadata", "another value", "the value alone"],
)
def test_equal_boxes_have_the_same_kind_metadata_and_value(other, same):
    """B10: whichever part differs, and whether the value is an array or a pytree."""
    assert (box_of(plait.Param(jnp.ones(2), note="demo")) == box_of(other)) is same
    nested = plait.Param({"w": jnp.ones(2)}, note="demo")
    assert (box_of(nested) == box_of(other.copy({"w": other[...]}))) is same
    assert box_of(other) != other[...].tolist()


def test_axes_follow_and_the_box_itself_stays():
    """B10, M2, V40: with the axis hooks of the variable."""
    seen = []

    class Hooked(plait.Param):
        def on_add_axis(self, index, name):
            seen.append(("add", index, name))

        def on_remove_axis(self, index, name):
            seen.append(("remove", index, name))

    box = box_of(Hooked(jnp.ones((2, 3)), out_sharding=("in", "out")))
    deep = box.add_axis(0, NAMED)
    assert deep.metadata["out_sharding"] == ("layers", "in", "out")
    assert box.metadata["out_sharding"] == ("in", "out")
    assert deep.remove_axis(0, NAMED) == box
    assert seen == [("add", 0, "layers"), ("remove", 0, "layers")]
    with pytest.raises(AxisNameMismatchError, match="layers"):
        box.remove_axis(0, NAMED)


def test_an_axis_without_a_name_still_takes_its_place():
    """B10: as plait's own vmap does, so that names and rank agree."""
    deep = box_of(plait.Param(jnp.ones((2, 3)), out_sharding=("in", "out"))).add_axis(1, {})
    assert deep.metadata["out_sharding"] == ("in", None, "out")
    assert deep.remove_axis(1, {}).metadata["out_sharding"] == ("in", "out")


def test_a_box_without_axis_metadata_stays_as_it_is():
    """B10."""
    box = box_of(plait.Param(jnp.ones(2), note="demo"))
    assert box.add_axis(0, NAMED) is box
    assert box.remove_axis(0, NAMED) is box


def test_the_spec_is_that_of_the_variable():
    """B10, M26."""
    variable = plait.Param(jnp.ones((2, 3)), out_sharding=("in", None))
    assert box_of(variable).get_partition_spec() == P("in", None)
    with plait.logical_axis_rules([("in", "x")]):
        assert meta.get_partition_spec({"w": box_of(variable)}) == {"w": P("x", None)}


def test_create_hooks_do_not_run_again():
    """B10: the value has been through them."""

    class Doubled(plait.Param):
        def create_value(self, value):
            return value * 2

    variable = Doubled(jnp.ones(2), note="demo")
    assert box_of(variable).to_nnx_variable()[...].tolist() == [2.0, 2.0]


def test_a_reference_comes_back_as_a_new_reference():
    """B10, B12: ref=True is metadata that a bare value would lose."""
    variable = plait.Param(jnp.ones(2), ref=True)
    box = box_of(variable)
    back = box.to_nnx_variable()
    back[...] = jnp.zeros(2)
    assert variable[...].tolist() == [1.0, 1.0]
    assert back.get_metadata("ref") is True


def test_a_box_made_by_hand_needs_no_flags():
    """B10."""
    box = bridge.NNXMeta(plait.Param, jnp.ones(2), {"out_sharding": ("a",)})
    assert box.add_axis(0, NAMED).metadata == {"out_sharding": ("layers", "a")}
    assert box.add_axis(0, NAMED).remove_axis(0, NAMED) == box
    assert box.get_partition_spec() == P("a")
    assert box.to_nnx_variable().get_metadata("ref") is False
