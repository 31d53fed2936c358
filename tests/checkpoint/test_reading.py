"""Values of a checkpoint are read in groups, so that memory holds few of them twice."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import plait
from plait.checkpoint import orbax, reading, restore, save

PLACED = jax.sharding.SingleDeviceSharding(jax.devices()[0])


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["host", "anywhere", "placed"])), max_size=12))
def test_each_array_is_in_one_group_and_groups_stay_small(sizes):
    """Arrays with a sharding go to their devices together; of the others a group has few bytes, or one array."""
    makers = {
        "host": lambda n: np.empty(n, np.int8),
        "anywhere": lambda n: jax.ShapeDtypeStruct((n,), jnp.int8),
        "placed": lambda n: jax.ShapeDtypeStruct((n,), jnp.int8, sharding=PLACED),
    }
    targets = {f"a{number}": makers[kind](size) for number, (size, kind) in enumerate(sizes)}
    with plait_group(5):
        groups = [*reading.groups(targets.items())]
    assert sorted(name for group in groups for name in group) == sorted(targets)
    placed = [name for name, (_, kind) in zip(targets, sizes, strict=True) if kind == "placed"]
    for group in groups:
        if set(group) & set(placed):
            assert list(group) == placed
        else:
            assert len(group) == 1 or sum(math.prod(target.shape) for target in group.values()) <= 5
    sizes = [[math.prod(target.shape) for target in group.values()] for group in groups if not {*group} & {*placed}]
    assert all(sum(group) + after[0] > 5 for group, after in itertools.pairwise(sizes)), "as large as may be"


class plait_group:
    """Another size of groups for a while."""

    def __init__(self, size):
        self.size = size

    def __enter__(self):
        self.before, reading.GROUP = reading.GROUP, self.size

    def __exit__(self, *_):
        reading.GROUP = self.before


def test_a_model_without_values_is_restored_group_by_group(tmp_path, monkeypatch):
    def make():
        return plait.Sequential(*(plait.Linear(4, 4, rngs=plait.Rngs(number)) for number in range(5)))

    model = make()
    path = save(tmp_path / "one", model)
    calls = []
    groups = reading.groups
    monkeypatch.setattr(reading, "GROUP", 100)  # bytes: one kernel, or some biases
    monkeypatch.setattr(reading, "groups", lambda targets: calls.extend(found := [*groups(targets)]) or found)
    abstract = plait.eval_shape(make)
    restore(path, abstract)
    assert len(calls) >= 5
    for (place, own), (other, read) in zip(
        plait.to_flat_state(plait.state(model)), plait.to_flat_state(plait.state(abstract)), strict=True
    ):
        assert place == other
        np.testing.assert_array_equal(own[...], read[...])
        assert not read[...].committed, "it can be combined with arrays on any device, as a new model's can"


def test_a_restored_model_without_values_has_run_no_initialiser(tmp_path):
    runs = []

    def zeros(key, shape, dtype):
        jax.debug.callback(lambda: runs.append(shape))
        return jnp.zeros(shape, dtype)

    def make():
        return plait.Linear(4, 3, kernel_init=zeros, rngs=plait.Rngs(0))

    path = save(tmp_path / "one", make())
    jax.effects_barrier()
    assert runs == [(4, 3)]
    model = plait.eval_shape(make)
    restore(path, model)
    jax.effects_barrier()
    assert runs == [(4, 3)]
    np.testing.assert_array_equal(model.kernel[...], jnp.zeros((4, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_array_may_be_larger_than_what_is_read_at_once(tmp_path, monkeypatch, dtype):
    """As an embedding of some gigabytes is: into a model with values, whole and sharded, and into another dtype."""
    monkeypatch.setattr(reading, "UNDER_WAY", 100)  # bytes
    values = jnp.arange(512.0).reshape(32, 16)
    path = save(tmp_path / "one", {"large": plait.Param(values), "small": plait.Param(jnp.ones(3))})
    mesh = jax.make_mesh((4,), ("x",), devices=jax.devices()[:4])
    places = [jax.sharding.PartitionSpec(*axes) for axes in ((), ("x",), (None, "x"))]
    for place in [PLACED, *(jax.sharding.NamedSharding(mesh, each) for each in places)]:
        large = plait.Param(jax.device_put(jnp.zeros((32, 16), dtype), place))
        restore(path, {"large": large, "small": plait.Param(jnp.zeros(3))}, cast=True)
        np.testing.assert_array_equal(large[...], values.astype(dtype))
        assert large[...].sharding == place


@pytest.mark.parametrize("guard", [reading.refused_if_damaged, orbax.written])
def test_ctrl_c_is_no_damage(tmp_path, guard):
    """Orbax's tasks make an exception of it."""
    with pytest.raises(KeyboardInterrupt), guard(tmp_path):
        try:
            raise KeyboardInterrupt
        except BaseException as error:
            raise Exception("Encountered error while reading array index") from error
