"""Specs of variables, eager placement, abstract models. (rules V37 to V41, M25 to M28, M33 to M36; asks 12, 15)"""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait import spmd
from plait.errors import ArgumentError
from tests.sampling import slow_but


def mesh(kind=AxisType.Auto, shape=(4, 2), names=("data", "model")):
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape))


class Net(plait.Module):
    def __init__(self, rngs, **metadata):
        init = plait.with_partitioning(plait.initializers.lecun_normal(), (None, "model"), **metadata)
        self.linear = plait.Linear(4, 8, kernel_init=init, rngs=rngs)
        self.scale = plait.Param(jnp.ones(8), out_sharding=("model",))
        self.count = plait.BatchStat(jnp.zeros(()))

    def __call__(self, x):
        self.count += 1
        return self.linear(x) * self.scale[None]


def test_specs_of_a_state():
    """M25, M26: the result has the classes and metadata of the state, and jit takes it."""
    net = Net(plait.Rngs(0))
    state = plait.state(net)
    specs = plait.get_partition_spec(state)
    assert type(specs) is plait.State
    assert specs["linear"]["kernel"].get_raw_value() == P(None, "model")
    assert specs["scale"].get_raw_value() == P("model")
    assert specs["count"].get_raw_value() == P()
    assert type(specs["count"]) is plait.BatchStat
    shardings = plait.get_named_sharding(state, mesh())
    assert shardings["scale"].get_raw_value() == NamedSharding(mesh(), P("model"))
    placed = jax.jit(lambda s: s, out_shardings=shardings)(state)
    assert placed["scale"].get_raw_value().sharding.spec == P("model")


def test_specs_and_shardings_of_what_is_no_variable():
    """M22, M25: a box by its names, an array whole, anything else not at all."""
    tree = {"box": plait.meta.Partitioned(jnp.ones((2, 8)), (None, "model")), "array": jnp.ones(3), "text": "text"}
    specs = {"box": P(None, "model"), "array": P(), "text": None}
    assert plait.get_partition_spec(tree) == specs
    shardings = {name: spec if spec is None else NamedSharding(mesh(), spec) for name, spec in specs.items()}
    assert plait.get_named_sharding(tree, mesh()) == shardings


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (("embed", None), P("data", None)),
        (P("x", "y"), P("x", "y")),
        (NamedSharding(jax.make_mesh((8,), ("z",)), P("z")), P("z")),
        (None, P()),
        ((), P()),
    ],
)
def test_spec_of_one_variable(annotation, expected):
    """M26."""
    with plait.use_eager_sharding(False), plait.logical_axis_rules([("embed", "data")]):
        assert spmd.get_var_pspec(plait.Param(jnp.ones((8, 2)), out_sharding=annotation)) == expected


def test_rules_of_the_variable_and_of_the_context():
    """M26, M30, V38."""
    v = plait.Param(jnp.ones((2, 2)), out_sharding=("a", "b"), sharding_rules=(("a", "x"),))
    assert spmd.get_var_pspec(v) == P("x", "b")
    with plait.logical_axis_rules([("b", "y")]):
        assert spmd.get_var_pspec(v) == P("x", "y")
    with plait.logical_axis_rules([("a", "z")]), pytest.raises(ArgumentError, match="'a' -> 'z'"):
        spmd.get_var_pspec(v)
    assert spmd.get_var_pspec(plait.Variable("text")) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_but([AxisType.Explicit], [AxisType.Auto, AxisType.Explicit]))
def test_new_variables_are_placed_where_a_mesh_is_known(kind):
    """V39, ask 15: the same model runs without a mesh, on one device, and on eight, auto and explicit."""
    x = jnp.ones((8, 4))
    expected = Net(plait.Rngs(0))(x)
    for each in (mesh(kind), mesh(kind, (1, 1)), mesh(kind, (2, 4))):
        with jax.set_mesh(each):
            net = Net(plait.Rngs(0))
            assert net.linear.kernel.get_raw_value().sharding.spec == P(None, "model")
            assert net.scale.get_raw_value().sharding.mesh.shape == each.shape
            out = plait.jit(lambda net, x: net(x))(net, x)
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_mesh_of_the_variable_wins():
    """V38, V39."""
    own = mesh()
    v = plait.Param(jnp.ones((8, 2)), out_sharding=("data", None), mesh=own)
    assert v.get_raw_value().sharding == NamedSharding(own, P("data", None))
    w = plait.Param(jnp.ones((8, 2)), out_sharding=NamedSharding(own, P("model")))
    assert w.get_raw_value().sharding.spec == P("model")


def test_an_empty_mesh_counts_as_none():
    """M16, V39: such as ``jax.sharding.get_mesh()`` where none is set."""
    value, empty = jnp.ones((8, 2)), jax.sharding.get_mesh()
    assert plait.Param(value, out_sharding=("data", None), mesh=empty).get_raw_value() is value
    assert plait.with_sharding_constraint(value, ("data", None), empty) is value
    assert plait.meta.Partitioned(value, ("data", None), empty).unbox() is value
    assert spmd.shard_value(value, ("data", None), None, empty) is value


def test_an_abstract_mesh_has_no_devices_to_move_to():
    """V39: the value stays where it is, and the names are still checked."""
    value, own = jnp.ones((8, 2)), mesh().abstract_mesh
    assert plait.Param(value, out_sharding=("data", None), mesh=own).get_raw_value() is value
    with pytest.raises(ArgumentError, match="'unknown'"):
        plait.Param(value, out_sharding=("unknown", None), mesh=own)


def test_without_a_mesh_the_names_stay_metadata():
    """V39."""
    v = plait.Param(jnp.ones((8, 2)), out_sharding=("data", None))
    assert v.out_sharding == ("data", None)
    assert len(v.get_raw_value().devices()) == 1
    with jax.set_mesh(mesh()), plait.use_eager_sharding(False):
        w = plait.Param(jnp.ones((8, 2)), out_sharding=("data", None))
        assert w.get_raw_value().sharding.is_fully_replicated


def test_logical_names_are_translated():
    """V39, M29; ask 15: an unknown name raises with the rules in force."""
    with jax.set_mesh(mesh()), plait.logical_axis_rules([("embed", "model"), ("none", None)]):
        v = plait.Param(jnp.ones((4, 2)), out_sharding=("none", "embed"))
        assert v.get_raw_value().sharding.spec == P(None, "model")
        with pytest.raises(ArgumentError, match=r"(?s)Param.*'heads'.*\('embed', 'model'\).*\('data', 'model'\)"):
            plait.Param(jnp.ones((4, 2)), out_sharding=("heads", None))
        with pytest.raises(ArgumentError, match=r"(?s)more axis names.*\(4,\)"):
            plait.Param(jnp.ones(4), out_sharding=("embed", "none", "none"))


def test_mixed_axis_kinds_are_refused():
    """V39."""
    mixed = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Explicit))
    with jax.set_mesh(mixed), pytest.raises(ArgumentError, match=r"(?s)axis types.*Auto.*Explicit"):
        plait.Param(jnp.ones((4, 2)), out_sharding=("data", None))


def test_a_model_is_made_on_its_devices():
    """Ask 12: inside jit names become constraints, and no device holds a whole copy."""
    with jax.set_mesh(mesh()):
        net = plait.jit(lambda: Net(plait.Rngs(0)))()
    kernel = net.linear.kernel.get_raw_value()
    assert kernel.sharding.spec == P(None, "model")
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 4)}


def test_without_a_mesh_a_model_is_made_as_it_is():
    """Ask 12: the same program runs on one device."""
    made = Net(plait.Rngs(0))
    assert plait.partitioning.create_sharded(lambda: made) is made
    assert plait.partitioning.create_sharded(lambda: {"net": made, "step": 3}) == {"net": made, "step": 3}


@pytest.mark.slow
@pytest.mark.parametrize("is_given", [True, False])
def test_a_dict_of_objects_is_made_on_a_mesh(is_given):
    """Ask 12: on the mesh that is given, or in force; with the values that it has without one."""

    def make():
        net = Net(plait.Rngs(0))
        return {"net": net, "again": net, "rngs": plait.Rngs(1)}

    with contextlib.nullcontext() if is_given else jax.set_mesh(mesh()):
        made = plait.partitioning.create_sharded(make, mesh() if is_given else None)
    assert made["again"] is made["net"]
    assert made["net"].linear.kernel.get_raw_value().sharding == NamedSharding(mesh(), P(None, "model"))
    alone = make()
    np.testing.assert_allclose(made["net"].linear.kernel[...], alone["net"].linear.kernel[...], rtol=1e-6)
    assert made["rngs"].default() == alone["rngs"].default()


def test_abstract_models():
    """M35, M36, ask 12: nothing is allocated, every variable has a sharding."""
    own = mesh()
    before = len(jax.live_arrays())
    graphdef, state = plait.get_abstract_model(lambda: Net(plait.Rngs(0)), own)
    assert len(jax.live_arrays()) <= before + 2  # the keys of the streams
    assert state["linear"]["kernel"].get_raw_value().sharding == NamedSharding(own, P(None, "model"))
    assert state["count"].get_raw_value().sharding == NamedSharding(own, P())
    assert graphdef == plait.graphdef(Net(plait.Rngs(0)))
    v = plait.Param(jax.ShapeDtypeStruct((4, 2), jnp.float32), out_sharding=("data", None))
    assert plait.as_abstract(v) is v  # no mesh
    with jax.set_mesh(own):
        assert plait.as_abstract({"v": v})["v"].get_raw_value().sharding.spec == P("data", None)
    with pytest.warns(DeprecationWarning, match="as_abstract"):
        plait.abstract_with_sharding(v)


def test_the_mesh_of_an_abstract_model_is_in_force_while_it_is_made():
    """M35: also in place of another one, which is in force again afterwards."""
    seen = []

    def make():
        seen.append(jax.sharding.get_abstract_mesh())
        return Net(plait.Rngs(0))

    own, other = mesh(), mesh(names=("a", "b"))
    plait.get_abstract_model(make, own)
    with jax.set_mesh(other):
        plait.get_abstract_model(make, own)
        assert jax.sharding.get_abstract_mesh() == other.abstract_mesh
    assert seen == [own.abstract_mesh] * 2


SHAPE = jax.ShapeDtypeStruct((8, 2), jnp.float32)
PASSES = {
    "no names": lambda: plait.Param(SHAPE),
    "empty names": lambda: plait.Param(SHAPE, out_sharding=()),
    "a sharding of its own": lambda: plait.Param(
        SHAPE.update(sharding=NamedSharding(mesh(), P("model"))), out_sharding=("data", None)
    ),
    "values": lambda: plait.Param(jnp.ones((8, 2)), out_sharding=("data", None)),
    "no variable": lambda: SHAPE,
}


@pytest.mark.parametrize("case", PASSES)
def test_what_needs_no_sharding_passes(case):
    """M36."""
    with jax.set_mesh(mesh()):
        leaf = PASSES[case]()
        assert plait.as_abstract({"leaf": leaf})["leaf"] is leaf


def test_what_a_model_shares_is_shared_in_its_abstract_model():
    """M36: a tied variable, a part at two places, and a cycle; also between two models."""
    tied = plait.Param(SHAPE, out_sharding=("data", None))
    part = plait.Dict(w=tied)
    model = plait.Dict(first=part, second=part, w=tied)
    model.itself = model
    with jax.set_mesh(mesh()):
        (found, other) = plait.as_abstract([model, part])
    assert found.first is found.second is other
    assert found.first.w is found.w
    assert found.itself is found is not model
    assert found.w.get_raw_value().sharding.spec == P("data", None)


def test_inside_shard_map_names_stay_metadata():
    """V39: a function that sees one device's share makes its variables as they are."""
    seen = []

    def f(x):
        v = plait.Param(x, out_sharding=("data", None))
        seen.append(v.out_sharding)
        return v[...] * 2

    with jax.set_mesh(mesh()):
        out = plait.shard_map(f, mesh=None, in_specs=P("data"), out_specs=P("data"))(jnp.ones((8, 2)))
    np.testing.assert_array_equal(out, 2)
    assert seen == [("data", None)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", slow_but([AxisType.Explicit], [AxisType.Auto, AxisType.Explicit]), ids=lambda kind: kind.name
)
def test_variables_made_inside_of_vmap_are_laid_out(kind):
    """V39: also one whose initial value is a constant of the trace, such as a bias of zeros."""

    def make(rngs):
        names = {"kernel_metadata": {"out_sharding": ("embed", "mlp")}, "bias_metadata": {"out_sharding": ("mlp",)}}
        return plait.Linear(8, 16, rngs=rngs, **names)

    wide = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)
    rules = [("embed", None), ("mlp", "model"), ("layers", None)]
    with jax.set_mesh(wide), plait.logical_axis_rules(rules):
        lifted = plait.vmap(make, transform_metadata={plait.PARTITION_NAME: "layers"})
        stack = lifted(plait.Rngs(0).split(4))
    for variable, names in ((stack.kernel, ("layers", "embed", "mlp")), (stack.bias, ("layers", "mlp"))):
        assert variable.out_sharding == names
        value = variable.get_raw_value()
        assert value.sharding.shard_shape(value.shape)[-1] == 4


def test_a_format_lays_out_as_its_sharding():
    """V37"""
    wide = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    layout = Format(Layout((1, 0)), NamedSharding(wide, P("model")))
    v = plait.Param(jnp.ones((8, 4)), out_sharding=layout)
    assert v.get_raw_value().sharding.spec == P("model")
    assert plait.spmd.get_var_pspec(v) == P("model")
    assert plait.get_named_sharding({"v": v}, wide)["v"].get_raw_value() == layout.sharding


@pytest.mark.parametrize("value", ["text", {"w": jnp.ones((8, 4))}], ids=["no array", "a tree of arrays"])
def test_names_of_a_variable_without_a_shape_are_not_fitted(value):
    """M25, M27"""
    named = plait.get_named_sharding({"v": plait.Param(value, out_sharding=("data", "model"))}, mesh())
    assert named["v"].get_raw_value() == NamedSharding(mesh(), P("data", "model"))
    unnamed = plait.get_named_sharding({"v": plait.Param(value)}, mesh())
    assert unnamed["v"].get_raw_value() is None


def test_create_sharded_returns_a_dict_in_the_order_in_which_it_was_made():
    mesh = jax.make_mesh((2,), ("data",))
    made = plait.partitioning.create_sharded(
        lambda: {"b": plait.Param(jnp.ones(2)), "a": plait.Param(jnp.ones(2))}, mesh
    )
    assert list(made) == ["b", "a"]
