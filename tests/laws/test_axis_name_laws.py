"""Ask 8: axis names follow the axes, through any composition of vmap and scan, by position from either end."""

import jax
import jax.numpy as jnp
import optax
import pytest
from hypothesis import given, strategies as st

import plait
from plait.errors import AxisNameMismatchError

NAMES = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=3).map(tuple)
SIZE = 2


class Net(plait.Module):
    """Variables of several ranks, one of which names its axes by a spec, one of which has no names."""

    def __init__(self, names):
        self.named = plait.Param(jnp.ones((SIZE,) * len(names)), out_sharding=names)
        self.scalar = plait.BatchStat(jnp.zeros(()), out_sharding=())
        self.spec = plait.Param(jnp.ones((SIZE, SIZE)), out_sharding=jax.sharding.PartitionSpec("x", None))
        self.bare = plait.Param(jnp.ones(SIZE))


def named_variables(model):
    return [leaf for _, leaf in plait.to_flat_state(plait.state(model)) if leaf.get_metadata().get("out_sharding")]


def check_names(model):
    for variable in named_variables(model):
        assert len(variable.out_sharding) == variable.ndim


# A layer of stacking: which transform, the name of its axis (or none given), where the axis goes.
LAYERS = st.lists(
    st.tuples(
        st.sampled_from(["vmap", "scan"]), st.sampled_from(["layers", "depth", None, "unnamed"]), st.integers(-1, 0)
    ),
    max_size=3,
)


def stack(make, kind, name, axis):
    """``make`` as a function that makes ``SIZE`` of them at once."""
    metadata = {} if name == "unnamed" else {plait.PARTITION_NAME: name}
    if kind == "vmap":
        return lambda: plait.vmap(
            lambda _: make(), in_axes=0, out_axes=axis, transform_metadata=metadata
        )(jnp.arange(SIZE))  # fmt: skip
    return lambda: plait.scan(lambda _: make(), in_axes=(0,), out_axes=0, transform_metadata=metadata)(jnp.arange(SIZE))


@pytest.mark.slow
@given(NAMES, LAYERS)
def test_every_variable_has_a_name_for_each_axis(names, layers):
    make = lambda: Net(names)
    expected = list(names)
    for kind, name, axis in layers:
        make = stack(make, kind, name, axis)
        place = len(expected) if kind == "vmap" and axis == -1 else 0
        expected.insert(place, None if name == "unnamed" else name)
    model = make()
    check_names(model)
    if names or layers:
        assert list(model.named.out_sharding) == expected
    check_unstacked(model, layers, names)
    optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)
    check_names(optimizer)
    mirrored = [v.out_sharding for v in named_variables(optimizer)]
    assert sorted(map(str, mirrored)) == sorted(
        2 * [str(v.out_sharding) for v in named_variables(model) if isinstance(v, plait.Param)]
    )


def check_unstacked(model, layers, names):
    """Mapping over the axes again, from the outermost on, takes the names away; afterwards they are back."""
    before = [(v.out_sharding, v.shape) for v in named_variables(model)]
    seen = []

    def look(model):
        check_names(model)
        seen.append(tuple(model.named.get_metadata().get("out_sharding") or ()))
        return model.bare[...]

    run = look
    for kind, name, axis in layers:
        run = unstack(run, kind, name, axis)
    run(model)
    assert set(seen) == {tuple(names)}
    assert [(v.out_sharding, v.shape) for v in named_variables(model)] == before


def unstack(f, kind, name, axis):
    metadata = {} if name == "unnamed" else {plait.PARTITION_NAME: name}
    if kind == "vmap":
        return plait.vmap(f, in_axes=axis, transform_metadata=metadata)
    return plait.scan(f, in_axes=(0,), out_axes=0, transform_metadata=metadata)


@given(NAMES.filter(bool), st.integers(-4, 4), st.sampled_from(["new", None]))
def test_adding_and_removing_are_inverse_from_either_end(names, index, name):
    variable = plait.Param(jnp.ones((SIZE,) * len(names)), out_sharding=names)
    rank = len(names) + 1
    if not -rank <= index < rank:
        index %= rank
    metadata = {plait.PARTITION_NAME: name}
    plait.spmd.add_axis(variable, index, metadata)
    assert len(variable.out_sharding) == rank
    assert variable.out_sharding[index] == name
    plait.spmd.remove_axis(variable, index, metadata)
    assert variable.out_sharding == names


@given(NAMES.filter(bool), st.integers(-3, 2))
def test_removing_a_name_that_is_not_there_raises_and_changes_nothing(names, index):
    variable = plait.Param(jnp.ones((SIZE,) * len(names)), out_sharding=names)
    with pytest.raises(AxisNameMismatchError, match="'absent'"):
        plait.spmd.remove_axis(variable, index, {plait.PARTITION_NAME: "absent"})
    assert variable.out_sharding == names


def test_factored_averages_of_an_optimizer_do_not_take_names_that_do_not_fit():
    model = plait.Dict(kernel=plait.Param(jnp.ones((256, 128)), out_sharding=("in", "out")))
    optimizer = plait.Optimizer(model, optax.adafactor(1e-3, min_dim_size_to_factor=8), wrt=plait.Param)
    check_names(optimizer)


def test_names_are_carried_through_split_clone_and_checkpoint(tmp_path):
    model = plait.vmap(lambda _: Net(("a", None)), in_axes=0, transform_metadata={plait.PARTITION_NAME: "layers"})(
        jnp.arange(SIZE)
    )
    names = [v.out_sharding for v in named_variables(model)]
    fresh = plait.clone(model)
    path = plait.checkpoint.save(tmp_path / "1", {"model": model})
    plait.checkpoint.restore(path, {"model": fresh})
    for other in (
        plait.merge(*plait.split(model)),
        plait.clone(model),
        fresh,
    ):
        assert [v.out_sharding for v in named_variables(other)] == names
