"""Boxes: names that follow the axes of a value. (rules M1 to M24)"""

import dataclasses
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from jax.sharding import NamedSharding, PartitionSpec as P

import plait
from plait import meta
from plait.errors import AxisNameMismatchError, PartitioningUnspecifiedError

NAMES = st.lists(st.sampled_from(["a", "b", None, ("c", "d")]), max_size=4).map(tuple)


def named(name):
    return {meta.PARTITION_NAME: name}


def test_an_abstract_box_cannot_be_made():
    """M1: the error names the missing methods."""

    class Half(meta.AxisMetadata):
        def unbox(self):
            return 1

    with pytest.raises(TypeError, match=r"add_axis.*remove_axis.*replace_boxed"):
        Half()


@given(NAMES, st.integers(-5, 5), st.sampled_from(["L", None]))
def test_adding_and_removing_an_axis_are_inverse(names, index, name):
    """M2, M12, M13: from either end, and neither changes the box."""
    index = max(index, -len(names) - 1)
    box = meta.Partitioned(jnp.ones(()), names)
    deep = box.add_axis(index, named(name))
    assert box.names == names
    assert deep.names[index] == name
    assert len(deep.names) == max(len(names), index) + 1
    if index < 0:
        assert deep.names == box.add_axis(len(names) + 1 + index, named(name)).names
    back = deep.remove_axis(index, named(name))
    assert back.names[: len(names)] == names
    assert set(back.names[len(names) :]) <= {None}
    if index <= len(names):
        assert back == box
    for i in range(-len(names), len(names)):
        assert box.remove_axis(i, named(names[i])).add_axis(i, named(names[i])) == box


def test_padding():
    """M12, the example of the rule."""
    box = meta.Partitioned(1.0, ("a", "b")).add_axis(4, named("L"))
    assert box.names == ("a", "b", None, None, "L")


def test_errors_of_axes():
    """Section 10."""
    box = meta.Partitioned(jnp.ones(2), ("a",))
    for call in (box.add_axis, box.remove_axis):
        with pytest.raises(PartitioningUnspecifiedError, match=r"(?s)partition_name.*\{'other': 1\}|\('a',\)"):
            call(0, {"other": 1})
    with pytest.raises(AxisNameMismatchError, match=r"(?s)axis 0.*\('a',\).*found +'a'.*expected +'b'") as caught:
        box.remove_axis(0, named("b"))
    assert isinstance(caught.value, AssertionError)
    for index in (1, 3, -2, -3):
        with pytest.raises(IndexError, match=rf"axis {index} .*\('a',\)"):
            box.remove_axis(index, named("a"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        box.names = ()


TREE = {"w": meta.Partitioned(jnp.arange(2.0), ("x",)), "b": jnp.zeros(3), "n": {"t": "text"}}


def test_trees_of_boxes():
    """M5 to M9."""
    assert [meta.is_axis_metadata(x) for x in (TREE["w"], TREE["b"])] == [True, False]
    deep = meta.add_axis(TREE, 0, named("L"))
    assert deep["w"].names == ("L", "x")
    assert deep["b"] is TREE["b"]
    assert meta.remove_axis(deep, 0, named("L"))["w"] == TREE["w"]
    bare = meta.unbox(TREE)
    assert bare["w"] is TREE["w"].value
    again = meta.replace_boxed(TREE, bare)
    assert again["w"] == TREE["w"]
    assert again["n"] == {"t": "text"}
    seen = []
    meta.map_axis_meta(lambda box: seen.append(box), TREE)
    assert seen == [TREE["w"]]
    with pytest.raises(ValueError, match=r"arity|structure|keys"):
        meta.replace_boxed(TREE, {"w": 1})


def test_a_repr_shows_value_and_names():
    """Not the mesh, nor the rules."""
    mesh = jax.make_mesh((8,), ("x",))
    assert repr(meta.Partitioned(1.0, ("a",), mesh)) == "Partitioned(value=1.0, names=('a',))"
    logical = meta.LogicallyPartitioned(1.0, ("a",), mesh, (("a", "x"),))
    assert repr(logical) == "LogicallyPartitioned(value=1.0, names=('a',))"


def test_boxes_in_boxes():
    """M1, M8, M9: a box unboxes one level, the function on trees all of them."""
    inner = meta.Partitioned(jnp.ones(2), ("in",))
    outer = meta.Partitioned(inner, ("out",))
    assert outer.unbox() is inner
    assert meta.unbox({"x": outer})["x"] is inner.value
    changed = meta.replace_boxed({"x": outer}, {"x": jnp.zeros(2)})["x"]
    assert (changed.names, changed.value.names) == (("out",), ("in",))
    np.testing.assert_array_equal(changed.value.value, 0)


def test_names_survive_the_transforms():
    """M4, M10: boxes are pytrees with one child."""
    box = meta.Partitioned(jnp.ones((2, 3)), ("a", None))
    for f in (lambda b: jax.tree.map(lambda x: x * 2, b), jax.jit(lambda b: b), jax.vmap(lambda b: b)):
        assert f(box).names == ("a", None)
    _, ys = jax.lax.scan(lambda c, b: (c, b), 0, box)
    assert ys.names == ("a", None)
    assert len(jax.tree.leaves(box)) == 1


def test_equality_never_raises():
    """M19."""
    box = meta.Partitioned(jnp.arange(3), ("x",))
    assert box == meta.Partitioned(jnp.arange(3), ("x",))
    assert box != meta.Partitioned(jnp.arange(1, 4), ("x",))
    assert box != meta.Partitioned(jnp.arange(4), ("x",))
    assert box != meta.Partitioned(jnp.arange(3), ("y",))
    assert box != "a box"
    x = jnp.arange(3)
    trees = [x, {"a": x}, {"b": x}, (x,), [x], (x, x), {"a": x + 1}, None, "text"]
    for i, first in enumerate(trees):
        for j, second in enumerate(trees):
            same = meta.Partitioned(first, ("x",)) == meta.Partitioned(jax.tree.map(lambda leaf: leaf, second), ("x",))
            assert same is (i == j)


def test_specs_and_shardings_of_a_tree():
    """M14, M22, M23, M24: also of abstract values."""
    mesh = jax.make_mesh((8,), ("x",))
    assert meta.get_partition_spec(TREE) == {"w": P("x"), "b": P(), "n": {"t": None}}
    shardings = meta.get_sharding(TREE, mesh)
    assert shardings == {"w": NamedSharding(mesh, P("x")), "b": NamedSharding(mesh, P()), "n": {"t": None}}
    boxed = meta.with_partitioning(jax.nn.initializers.ones, ("x", None))
    abstract = jax.eval_shape(lambda: {"w": boxed(jax.random.key(0), (8, 2))})
    assert meta.get_partition_spec(abstract) == {"w": P("x", None)}
    v = plait.Param(jnp.ones(2), out_sharding=("x",))
    assert meta.get_partition_spec({"v": v})["v"].get_raw_value() == P("x")


def test_unboxing_lays_out_on_a_known_mesh():
    """M15, M16."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    value = jnp.arange(16.0)
    bare, own = meta.Partitioned(value, ("x",)), meta.Partitioned(value, ("x",), mesh)
    assert not meta.global_mesh_defined()
    assert meta.get_global_mesh() is None
    assert bare.unbox() is value
    assert own.unbox().sharding.spec == P("x")
    assert own.unbox(apply_constraint=False) is value
    with jax.set_mesh(mesh):
        assert meta.global_mesh_defined()
        assert bare.unbox().sharding.spec == P("x")
        text = jax.jit(lambda b: b.unbox() * 2).lower(bare).as_text()
        assert "sharding_constraint" in text or "Sharding" in text


def logical(*fields, mesh=None):
    return meta.LogicallyPartitioned(*fields, mesh=mesh, rules=(("x", "x"),))


@pytest.mark.parametrize("make", [meta.Partitioned, logical], ids=["Partitioned", "LogicallyPartitioned"])
def test_unboxing_without_a_constraint_gives_the_value_as_it_is(make):
    """M15, M16: whatever meshes are known."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    value = jnp.arange(16.0)
    for box in (make(value, ("x",)), make(value, ("x",), mesh=mesh)):
        with jax.set_mesh(mesh):
            assert box.unbox(apply_constraint=False) is value
            assert box.unbox(True).sharding.spec == P("x")
        assert box.unbox(apply_constraint=False) is value


@pytest.mark.parametrize("make", [meta.Partitioned, logical], ids=["Partitioned", "LogicallyPartitioned"])
def test_every_array_of_a_box_is_laid_out(make):
    """M15, M16: where the value is a pytree. What is no array stays as it is."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    found = make({"a": jnp.arange(16.0), "b": [jnp.ones((8, 2)), 3.0]}, ("x",), mesh=mesh).unbox()
    assert found["a"].sharding.spec == P("x")
    assert found["b"][0].sharding.is_equivalent_to(NamedSharding(mesh, P("x")), 2)
    assert found["b"][1] == 3.0


def test_a_box_in_a_box_is_laid_out_by_its_own_names():
    """M1: a box unboxes one level."""
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    inner = meta.Partitioned(jnp.ones((8, 8)), (None, "x"))
    with jax.set_mesh(mesh):
        assert meta.Partitioned(inner, ("x",)).unbox() is inner
        assert meta.unbox({"w": meta.Partitioned(inner, ("x",))})["w"].sharding.spec == P(None, "x")


SAME = {
    "an array with NaN": jnp.array([1.0, jnp.nan]),
    "a tree with NaN": {"a": jnp.array([jnp.nan])},
    "an abstract array": jax.ShapeDtypeStruct((2,), jnp.float32),
    "what JAX cannot flatten": {1: jnp.ones(1), "a": jnp.ones(1)},
}


@pytest.mark.parametrize("name", SAME)
def test_boxes_of_the_same_value_are_equal(name):
    """M19: the same object is not compared with itself."""
    for kind in (meta.Partitioned, meta.LogicallyPartitioned):
        assert kind(SAME[name], ("x",)) == kind(SAME[name], ("x",))
        assert kind(SAME[name], ("x",)) != kind(SAME[name], ("y",))


def test_conversion_to_metadata_of_variables():
    """M17, M20, M34: there and back, without changing the argument."""
    box = meta.LogicallyPartitioned(jnp.ones(2), ("embed",), None, (("embed", "x"),))
    metadata = box.to_nnx_metadata()
    assert metadata["out_sharding"] == ("embed",)
    assert metadata["sharding_rules"] == (("embed", "x"),)
    assert meta.LogicallyPartitioned.from_nnx_metadata({**metadata, "more": 1}) == box
    assert "names" not in metadata
    assert meta.LogicallyPartitioned.from_nnx_metadata({"value": 1.0, "out_sharding": ("a",)}).rules is None
    assert meta.Partitioned(1.0, ("a",)).to_nnx_metadata() == {"value": 1.0, "out_sharding": ("a",), "mesh": None}


def test_wrapped_initializers_keep_their_names():
    """M18, M21."""

    def init(key, shape):
        """Makes ones."""
        return jnp.ones(shape)

    for wrap in (meta.with_partitioning, meta.with_logical_partitioning):
        wrapped = wrap(init, ("a",))
        assert (wrapped.__name__, wrapped.__doc__) == ("init", "Makes ones.")
        assert wrapped(None, (2,)).names == ("a",)


@pytest.mark.oracle
def test_boxes_of_linen_are_boxes_and_nothing_else_is():
    """B3; whatever was loaded first is in tests/flax/bridge/test_load_order.py."""
    linen = pytest.importorskip("flax.core.meta")

    class Own(linen.Partitioned):
        pass

    class Other(dict):
        pass

    x = jnp.ones(2)
    for cls in (linen.Partitioned, Own):
        assert issubclass(cls, meta.AxisMetadata)
        assert not issubclass(cls, meta.Partitioned)
        box = cls(x, ("a",))
        assert meta.is_axis_metadata(box)
        assert meta.unbox({"w": box})["w"] is x
    for value in (x, Other(), object(), ("a",), plait.Param(x)):
        assert not meta.is_axis_metadata(value)


class Plain(meta.AxisMetadata):
    """A box of one's own, which is neither of those that plait has."""

    def unbox(self):
        return 1

    def replace_boxed(self, val):
        return self

    def add_axis(self, index, params):
        return self

    def remove_axis(self, index, params):
        return self


@pytest.mark.oracle
def test_boxes_are_boxes_of_linen():
    """B3."""
    linen, spmd = pytest.importorskip("flax.core.meta"), pytest.importorskip("flax.linen.spmd")
    boxes = [Plain(), meta.Partitioned(1.0, ()), meta.LogicallyPartitioned(1.0, ())]
    kinds = [linen.AxisMetadata, linen.Partitioned, spmd.LogicallyPartitioned]
    assert [[isinstance(box, kind) for kind in kinds] for box in boxes] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert not any(isinstance(jnp.ones(1), kind) for kind in kinds)
    assert issubclass(linen.AxisMetadata, meta.AxisMetadata)
    assert issubclass(meta.AxisMetadata, linen.AxisMetadata)


@pytest.mark.oracle
@given(NAMES, st.integers(0, 5))
def test_flax_agrees(names, index):
    """M12, M17, M31: Flax Linen's boxes, run as an oracle."""
    spmd = pytest.importorskip("flax.linen.spmd")
    partitioned = pytest.importorskip("flax.core.meta").Partitioned
    ours, theirs = (cls(1.0, names).add_axis(index, named("L")) for cls in (meta.Partitioned, partitioned))
    assert ours.names == theirs.names
    assert ours.get_partition_spec() == theirs.get_partition_spec()
    rules = [("a", "x"), ("b", ("x", "y")), ("b", "y"), ("L", None)]
    flat = tuple(dict.fromkeys(n for n in names if n is None or isinstance(n, str)))
    assert meta.logical_to_mesh_axes(flat, rules) == spmd.logical_to_mesh_axes(flat, rules)


def test_b3_this_module_may_stand_in_the_place_of_linen_s(monkeypatch):
    """A program that aliases the module asks for its own class."""
    monkeypatch.setitem(sys.modules, "flax.core.meta", plait.meta)
    box = plait.meta.Partitioned(jnp.ones(2), ("x",))
    assert isinstance(box, plait.meta.AxisMetadata)
    assert not issubclass(int, plait.meta.AxisMetadata)
    assert plait.meta.unbox({"w": box})["w"].shape == (2,)
