"""plait.spmd: resolving one layout. (checklist 261 to 263; rules V37, M26, M30)"""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, SingleDeviceSharding

import plait
from plait import spmd
from plait.errors import ArgumentError

RULES = (("a", "x"), ("b", "y"))


def mesh():
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def layouts():
    named = NamedSharding(mesh(), P("x"))
    return {
        "names": ("a", None), "spec": P("a", "b"), "sharding": named, "format": Format(Layout((0, 1)), named),
        "none": None, "empty": (),
    }  # fmt: skip


def test_rules_go_into_any_layout():
    found = {name: spmd.apply_rules(layout, RULES) for name, layout in layouts().items()}
    same = {name: layouts()[name] for name in ("sharding", "format", "none")}
    assert found == {"names": P("x", None), "spec": P("x", "y"), "empty": P(), **same}
    sharding, in_memory = NamedSharding(mesh(), P("x")), Layout((0, 1))
    assert spmd.apply_rules(sharding, [("x", "y")]).spec == P("y")
    other = Format(in_memory, NamedSharding(mesh(), P("y")))
    assert spmd.apply_rules(Format(in_memory, sharding), [("x", "y")]) == other


def test_rules_of_the_thread_and_of_the_variable():
    with plait.logical_axis_rules([("a", "y")]):
        assert spmd.get_pspec(("a", "b")) == P("y", "b")
        assert spmd.get_pspec(("a", "b"), (("b", "x"),)) == P("y", "x")
        with pytest.raises(ArgumentError, match="'a' -> 'y'"):
            spmd.get_pspec(("a",), RULES)


def test_a_function_of_each_name():
    assert spmd.map_sharding(lambda name: (name, "z"), ("a", "b")) == P(("a", "z"), ("b", "z"))
    assert spmd.map_sharding(lambda name: "y", NamedSharding(mesh(), P("x"))).spec == P("y")
    assert spmd.map_sharding(lambda name: name, None) is None


def test_the_mesh_of_a_layout():
    found = {name: spmd.get_mesh(layout) for name, layout in layouts().items()}
    assert found == {**dict.fromkeys(layouts()), "sharding": mesh(), "format": mesh()}


@pytest.mark.parametrize("name", ["names", "spec", "sharding", "format"])
def test_a_value_is_laid_out(name):
    layout = layouts()[name]
    value = spmd.shard_value(jnp.ones((8, 2)), layout, RULES, mesh())
    assert value.sharding.spec[0] == "x"
    with jax.set_mesh(mesh()):
        assert spmd.shard_value(jnp.ones((8, 2)), layout, RULES, None).sharding == value.sharding


def test_a_value_without_layout_or_mesh_stays():
    value = jnp.ones((8, 2))
    for layout in (None, (), ("a", None)):
        assert spmd.shard_value(value, layout, RULES, None) is value
    device = jax.devices()[3]
    assert spmd.shard_value(value, SingleDeviceSharding(device), None, None).devices() == {device}
    for layout in (None, ()):
        assert spmd.shard_value(value, layout, RULES, mesh()) is value
    with pytest.raises(ArgumentError, match=r"(?s)at +a value\n.*'unknown'"):
        spmd.shard_value(value, ("unknown", None), RULES, mesh())
    with pytest.raises(ArgumentError, match=r"3 names, \('a', None, None\), for the shape \(8, 2\)"):
        spmd.shard_value(value, ("a", None, None), RULES, mesh())


@pytest.mark.oracle
@pytest.mark.parametrize("name", layouts())
def test_flax_agrees(name):
    core = pytest.importorskip("flax.core.spmd")
    layout = layouts()[name]
    assert spmd.apply_rules(layout, RULES) == core.apply_rules(layout, RULES)
    assert spmd.get_pspec(layout, RULES) == core.get_pspec(layout, RULES)
    assert spmd.get_mesh(layout) == core.get_mesh(layout)
    assert spmd.map_sharding(lambda x: x, layout) == core.map_sharding(lambda x: x, layout)


@pytest.mark.oracle
def test_every_name_of_flax_is_there():
    """Checklist G and 261 to 263, but for what is only imported there."""
    nnx_spmd = pytest.importorskip("flax.nnx.spmd")
    core = pytest.importorskip("flax.core.spmd")
    ours = {name for name in dir(spmd) if not name.startswith("_")}
    functions = {
        name for module in (nnx_spmd, core) for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", "").startswith("flax") and not name.startswith("_")
    }  # fmt: skip
    assert functions - ours - {"deprecated", "eval_shape"} == set()
