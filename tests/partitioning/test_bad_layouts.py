"""Layouts that cannot be followed: each is an error that names the path and what there is. (issue E, bad input)"""

import re
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.errors import ArgumentError, AxisNameMismatchError, PartitioningUnspecifiedError, UnevenLayoutWarning
from plait.partitioning import check_rules, create_sharded, out_sharding, with_sharding_constraint

RULES = [("embed", None), ("mlp", "model"), ("heads", "model"), ("batch", "data")]


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)


class Net(plait.Module):
    """Its only variable has the path ``blocks[1].kernel``."""

    def __init__(self, shape, names, **metadata):
        self.blocks = [plait.Dict(), plait.Dict(kernel=plait.Param(jnp.ones(shape), out_sharding=names, **metadata))]


# shape, names, what the error says
WRONG = {
    "too many names": ((8, 4), ("embed", "mlp", None), r"names.*3 names, \('embed', 'mlp', None\), for .*\(8, 4\)"),
    "a name twice": ((8, 4), ("mlp", "mlp"), r"same mesh axis.*'model'.*dimensions 0 \('mlp'\) and 1 \('mlp'\)"),
    "two names on one axis": ((8, 4), ("mlp", "heads"), r"same mesh axis.*0 \('mlp'\) and 1 \('heads'\).*\('mlp', 'm"),
    "an axis in a tuple twice": ((8, 4), (("mlp", "heads"), None), r"same mesh axis.*'model'"),
    "an unknown axis": ((8, 4), ("embed", "experts"), r"'experts'.*\('mlp', 'model'\).*\('data', 'model'\)"),
}  # fmt: skip

wrong = pytest.mark.parametrize(("shape", "names", "says"), WRONG.values(), ids=WRONG)


@wrong
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
def test_a_model_that_is_to_be_made_sharded(shape, names, says, kind):
    with jax.set_mesh(mesh(kind)), plait.logical_axis_rules(RULES):
        for call in (create_sharded, lambda make: plait.get_abstract_model(make, mesh(kind))):
            with pytest.raises(ArgumentError, match=rf"(?s){says}") as caught:
                call(lambda: Net(shape, names))
            assert caught.value.parts["at"] == "blocks[1].kernel (a Param)"


@wrong
def test_shardings_of_a_model_that_is_there(shape, names, says):
    state = plait.state(Net(shape, names))
    with plait.logical_axis_rules(RULES):
        for call in (plait.get_named_sharding, check_rules, plait.inspect.sharding_report):
            with pytest.raises(ArgumentError, match=rf"(?s){says}") as caught:
                call(state, mesh())
            assert caught.value.parts["at"].startswith("blocks[1].kernel")


@wrong
def test_a_variable_that_is_made_where_a_mesh_is_in_force(shape, names, says):
    """It has no path yet; the error names the modules that are making it."""
    with jax.set_mesh(mesh()), plait.logical_axis_rules(RULES), pytest.raises(ArgumentError, match=rf"(?s){says}") as e:
        Net(shape, names)
    assert e.value.parts["at"] == f"a Param of shape {shape} with out_sharding={names!r}, made by Net"


@wrong
def test_shapes_that_are_to_get_shardings(shape, names, says):
    state = {"kernel": plait.Param(jax.ShapeDtypeStruct(shape, jnp.float32), out_sharding=names)}
    with jax.set_mesh(mesh()), plait.logical_axis_rules(RULES), pytest.raises(ArgumentError, match=rf"(?s){says}") as e:
        plait.as_abstract(state)
    assert e.value.parts["at"] == "kernel (a Param)"


@wrong
def test_an_activation(shape, names, says):
    with jax.set_mesh(mesh()), plait.logical_axis_rules(RULES), pytest.raises(ArgumentError, match=rf"(?s){says}") as e:
        jax.jit(lambda: with_sharding_constraint(jnp.ones(shape), names))()
    assert e.value.parts["at"].startswith("an activation")


# shape, names, the spec that it gets, what the warning says; ``None`` for no warning
UNEVEN = {
    "a dimension": ((8, 6), ("embed", "mlp"), P(), r"dimension 1.*length 6.*\(8, 6\).*of 4.*'model' of size 4"),
    "a product": ((12, 4), (("data", "mlp"), None), P(), r"dimension 0.*length 12.*of 8.*'data'.*and 'model'"),
    "one of two": ((8, 6), ("batch", "mlp"), P("data"), r"dimension 1.*length 6"),
    "length 1": ((8, 1), ("batch", "mlp"), P("data"), None),
    "length 1 of a spec": ((8, 1), P("data", "model"), P("data"), None),
}
uneven = pytest.mark.parametrize(("shape", "names", "spec", "says"), UNEVEN.values(), ids=UNEVEN)
MAKERS = {
    "made": lambda make: make(),
    "made in jit": lambda make: plait.jit(make)(),
    "made sharded": create_sharded,
    "shapes": lambda make: plait.merge(*plait.get_abstract_model(make, jax.sharding.get_mesh())),
}


@uneven
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore::plait.errors.UnevenLayoutWarning")
def test_a_dimension_that_the_mesh_does_not_divide_stays_whole(shape, names, spec, says, maker, kind):
    """Flax refuses it outside of jit, and leaves it whole inside."""
    with jax.set_mesh(mesh(kind)), plait.logical_axis_rules(RULES):
        value = MAKERS[maker](lambda: Net(shape, names)).blocks[1].kernel.get_raw_value()
    assert value.sharding.is_equivalent_to(NamedSharding(mesh(kind), spec), len(shape))


@uneven
def test_a_dimension_that_stays_whole_is_named(shape, names, spec, says):
    state = plait.state(Net(shape, names))
    with plait.logical_axis_rules(RULES), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shardings = plait.get_named_sharding(state, mesh())
        rows = plait.inspect.sharding_report(state, mesh()).variables
    found = shardings["blocks"][1]["kernel"].get_raw_value().spec
    assert (*found, None)[:1] == (*spec, None)[:1]
    assert [row.spec for row in rows] == [found]
    assert len(caught) == (0 if says is None else 2)
    for warning in caught:
        assert warning.category is UnevenLayoutWarning
        assert re.search(rf"(?s)replicated on every device.*at +blocks\[1\]\.kernel.*{says}", str(warning.message))


def test_the_output_of_a_layer_that_the_mesh_does_not_divide_stays_whole():
    with jax.set_mesh(mesh(AxisType.Explicit)), plait.logical_axis_rules(RULES):
        assert out_sharding("batch", "mlp", shape=(8, 8)) == P("data", "model")
        with pytest.warns(UnevenLayoutWarning, match=r"at +an activation with axes \('batch', 'mlp'\)"):
            assert out_sharding("batch", "mlp", shape=(8, 3)) == P("data", None)


@pytest.mark.slow
@pytest.mark.oracle
def test_what_flax_makes_in_jit_lies_the_same():
    from flax import nnx as flax

    def make(nnx):
        return nnx.Linear(4, 1, kernel_metadata={"out_sharding": (None, "model")}, rngs=nnx.Rngs(0))

    with jax.set_mesh(mesh()):
        theirs, ours = flax.jit(lambda: make(flax))().kernel[...], plait.jit(lambda: make(plait))().kernel[...]
    assert ours.sharding.is_equivalent_to(theirs.sharding, 2)


@pytest.mark.parametrize("names", [("data",), P("data"), ()], ids=str)
def test_names_may_stop_early(names):
    """As everywhere in JAX."""
    v = plait.Param(jnp.ones((8, 4)), out_sharding=names, mesh=mesh())
    assert getattr(v.get_raw_value().sharding, "spec", P()) == P(*names)
    if names:
        assert plait.get_named_sharding({"v": v}, mesh())["v"].get_raw_value().spec == P("data")
    layer = plait.LinearGeneral(2, (2, 4), kernel_metadata={"out_sharding": names}, rngs=plait.Rngs(0))
    with jax.set_mesh(mesh()):
        made = plait.partitioning.create_sharded(lambda: plait.clone(layer))
    assert made.kernel.get_raw_value().sharding.spec == P(*names)


def test_rules_that_contradict_each_other():
    """In the context, between context and variable: for a variable a name has one meaning."""
    state = plait.state(Net((8, 4), ("embed", "mlp")))
    with (
        plait.logical_axis_rules([*RULES, ("mlp", "data")]),
        pytest.raises(
            ArgumentError, match=r"(?s)at +blocks\[1\]\.kernel \(a Param\)\n.*'mlp' -> 'model' and 'mlp' -> 'data'"
        ),
    ):
        plait.get_partition_spec(state)
    own = plait.state(Net((8, 4), ("embed", "mlp"), sharding_rules=[("mlp", "data")]))
    with plait.logical_axis_rules(RULES), pytest.raises(ArgumentError, match=r"(?s)contradict.*'model'.*'data'"):
        plait.get_partition_spec(own)
    with plait.logical_axis_rules([*RULES, ("other", "model"), ("other", "data")]):
        plait.get_partition_spec(state)  # a name that the variable does not use


@pytest.mark.parametrize("entry", ["mlp", ("mlp", "batch"), ("batch", "mlp"), ["batch", "mlp"]], ids=repr)
def test_a_name_with_two_rules_is_found_wherever_it_stands(entry):
    """Alone, and among several names of one dimension."""
    with plait.logical_axis_rules([("mlp", "model"), ("batch", "data")]):
        state = plait.state(Net((8, 8), ("embed", entry)))
    contradicted = pytest.raises(ArgumentError, match=r"(?s)blocks\[1\]\.kernel.*'mlp' -> 'model' and 'mlp' -> None")
    with plait.logical_axis_rules([("mlp", "model"), ("batch", "data"), ("mlp", None)]), contradicted:
        plait.get_partition_spec(state)


def test_rules_that_nothing_uses():
    """A rule of the context, a rule of the variable; names of activations can be told."""
    with plait.logical_axis_rules(RULES):
        with pytest.raises(ArgumentError, match=r"(?s)used by no variable.*'heads' -> 'model', 'batch' -> 'data'"):
            check_rules(Net((8, 4), ("embed", "mlp")), mesh())
        check_rules(Net((8, 4), ("embed", "mlp")), mesh(), activations=("batch", "heads"))
    with pytest.raises(ArgumentError, match=r"(?s)at +blocks\[1\]\.kernel.*'typo' -> 'data'.*'model'"):
        check_rules(Net((8, 4), ("data", "model"), sharding_rules=[("typo", "data")]), mesh())


@pytest.mark.parametrize("names", [None, ("x", "y")])
def test_rules_are_looked_at_without_a_mesh_or_a_recipe_for_it(names):
    given = None if names is None else jax.make_mesh((2, 4), names, axis_types=(AxisType.Auto,) * 2)
    net = Net((8, 4), ("embed", "mlp"))
    with plait.logical_axis_rules([("embed", None), ("mlp", None)]):
        assert check_rules(net, given) is None
    expected = pytest.raises(ArgumentError, match=r"used by no variable\n +found +'typo' -> None\n.*'embed', 'mlp'")
    with plait.logical_axis_rules([("embed", None), ("mlp", None), ("typo", None)]), expected:
        check_rules(net, given)


def test_a_missing_or_wrong_name_under_vmap_and_scan():
    def make(key):
        return plait.Param(jnp.ones(4), out_sharding=("mlp",))

    stacked = plait.vmap(make, axis_size=3, in_axes=None, transform_metadata={plait.PARTITION_NAME: "layers"})(0)
    assert stacked.out_sharding == ("layers", "mlp")
    for lift in (plait.vmap, lambda f, **options: plait.scan(f, in_axes=(0,), out_axes=0, **options)):
        with pytest.raises(AxisNameMismatchError, match=r"(?s)at +net\.inner, axis 0.*'layers'.*'depth'"):
            lift(lambda net: net["inner"][...], transform_metadata={plait.PARTITION_NAME: "depth"})({"inner": stacked})
        with pytest.raises(PartitioningUnspecifiedError, match=r"(?s)'other': 1.*partition_name"):
            lift(lambda p: p[...], transform_metadata={"other": 1})(stacked)
    unnamed = plait.Param(jnp.ones((3, 4)), out_sharding=("mlp",))  # stacked by hand, without a name
    with pytest.raises(AxisNameMismatchError, match=r"(?s)axis 0.*'mlp'.*'layers'"):
        plait.vmap(lambda p: p[...], transform_metadata={plait.PARTITION_NAME: "layers"})(unnamed)
    with pytest.raises(PartitioningUnspecifiedError, match="partition_name"):
        plait.spmd.add_axis(stacked, 0, {"other": "layers"})


def test_a_checkpoint_that_the_mesh_cannot_divide(tmp_path):
    path = plait.checkpoint.save(tmp_path / "1", {"net": Net((6, 4), ("embed", "mlp"))})
    abstract = plait.state({"net": Net((6, 4), ("embed", "mlp"))})
    wanted = NamedSharding(mesh(), P("model"))
    shapes = jax.tree.map(lambda x: _shape_with(x, wanted), abstract)
    with pytest.raises(ArgumentError, match=r"(?s)dimension 0.*net\.blocks\[1\]\.kernel.*length 6.*'model' of size 4"):
        plait.checkpoint.restore(path, shapes)


def _shape_with(x, sharding):
    found = jax.ShapeDtypeStruct((8, 4), x.dtype, sharding=sharding)
    return found.update(shape=x.shape) if hasattr(found, "update") else found


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("model", r"a str: 'model'.*comma: \('model',\)"),
        ({"mlp": 0}, r"a dict: \{'mlp': 0\}"),
        ((0, None), "the entry 0"),
        ((("data", 1), None), r"the entry \('data', 1\)"),
    ],
)
def test_what_is_no_tuple_of_names(names, says):
    """V37: a name without its comma was taken letter by letter, or passed over."""
    message = rf"(?s)axis names are a tuple.*{says}"
    with pytest.raises(ArgumentError, match=message):
        plait.get_partition_spec({"w": plait.Param(jnp.ones((8, 4)), out_sharding=names)})
    with jax.set_mesh(mesh()):
        with pytest.raises(ArgumentError, match=message):
            plait.Param(jnp.ones((8, 4)), out_sharding=names)
        with pytest.raises(ArgumentError, match=message):
            with_sharding_constraint(jnp.ones((8, 4)), names)


@pytest.mark.parametrize("target", [3, ("model", None)])
def test_a_rule_whose_target_is_no_axis(target):
    """M29"""
    with pytest.raises(ArgumentError, match=r"(?s)rule for 'mlp'.*the entry"):
        plait.logical_axis_rules([("mlp", target)])


def test_creating_names_each_uneven_variable_once_by_its_path():
    """It used to be told again, without its path, when the values were made."""
    with jax.set_mesh(mesh()), plait.logical_axis_rules(RULES), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        create_sharded(lambda: Net((3, 6), ("embed", "mlp")))
    (told,) = caught
    assert told.category is UnevenLayoutWarning
    assert re.search(r"at +blocks\[1\]\.kernel", str(told.message))
