"""Batches laid out on devices: the same way for those that are read ahead and for those that are not."""

import itertools
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec, SingleDeviceSharding

import plait
from plait.errors import ArgumentError
from plait.training import Batches, fit, prefetch

DATA = [{"x": np.arange(16, dtype=np.float32).reshape(8, 2) + 100 * i, "epoch": i} for i in range(5)]
WAYS = {
    "in the loop": lambda data, **laid_out: Batches(data, epochs=1, **laid_out),
    "ahead": lambda data, **laid_out: prefetch(Batches(data, epochs=1), **laid_out),
    "laid out and ahead": lambda data, **laid_out: prefetch(Batches(data, epochs=1, **laid_out)),
    "laid out twice": lambda data, **laid_out: prefetch(Batches(data, epochs=1, **laid_out), **laid_out),
}
MESHES = [
    {"data": 8},
    {"fsdp": 4, "model": 2},
    {"data": 2, "fsdp": 4},
    {"data": 2, "fsdp": 2, "model": 2},
    {"model": 8},
]

ways = pytest.mark.parametrize("way", WAYS)


def mesh_of(axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


@ways
@pytest.mark.parametrize("axes", MESHES, ids=lambda axes: " × ".join(axes))
def test_a_mesh_divides_the_rows_along_its_axes_for_batches(way, axes):
    """FD1, FD2: each device has the rows that the recipe gives it, and scalars are on all."""
    mesh = mesh_of(axes)
    rows = dict(plait.partitioning.rules_for(mesh))["batch"]
    for batch, given in zip(WAYS[way](DATA, sharding=mesh), DATA, strict=True):
        assert batch["x"].sharding == NamedSharding(mesh, PartitionSpec(rows))
        for shard in batch["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, given["x"][shard.index])
        assert batch["epoch"].sharding.is_fully_replicated
        assert int(batch["epoch"]) == given["epoch"]


@ways
@pytest.mark.parametrize("axes", [MESHES[0], None], ids=["rows divided", "one device"])
def test_a_source_may_fill_one_array_with_every_batch(way, axes):
    """FD1: what was put on the devices stays. The memory is aligned so that JAX shares it on a CPU."""

    class Source:
        def __iter__(self):
            memory = np.zeros(64 * 4 + 64, np.uint8)
            begin = -memory.ctypes.data % 64
            rows = memory[begin : begin + 64 * 4].view(np.float32).reshape(8, 8)
            for number in range(5):
                rows[:] = number
                yield {"x": rows}

    sharding = mesh_of(axes) if axes else SingleDeviceSharding(jax.devices()[0])
    found = list(WAYS[way](Source(), sharding=sharding))
    assert [float(batch["x"].max()) for batch in found] == [0, 1, 2, 3, 4]


@ways
@pytest.mark.parametrize("axes", [MESHES[0], None], ids=["rows divided", "one device"])
def test_a_mask_is_refused_as_by_jax(way, axes):
    """It was dropped without a word."""
    masked = np.ma.array(np.ones((8, 2), np.float32), mask=np.eye(8, 2, dtype=bool))
    sharding = mesh_of(axes) if axes else SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ValueError, match="masked"):
        next(iter(WAYS[way]([masked], sharding=sharding)))


@ways
def test_a_sharding_is_that_of_every_array(way):
    """FD1"""
    sharding = NamedSharding(mesh_of({"data": 4, "model": 2}), PartitionSpec("data", "model"))
    for batch, given in zip(WAYS[way]([each["x"] for each in DATA], sharding=sharding), DATA, strict=True):
        assert batch.sharding == sharding
        np.testing.assert_array_equal(batch, given["x"])


@ways
def test_rows_that_the_devices_cannot_divide_are_an_error_again_and_again(way):
    """FD1: it names the array, and no batch is passed over."""
    data = [DATA[0], {"x": np.ones((6, 2))}, DATA[2]]
    batches = WAYS[way](data, sharding=mesh_of({"data": 4, "model": 2}))
    next(batches)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"batch\['x'\]\n.*length 6"):
            next(batches)
        assert batches.get_state() == {"epoch": 0, "index": 1}


@ways
def test_the_position_is_that_of_the_batches_taken(way):
    """FD3"""
    mesh = mesh_of({"data": 8})
    begun = WAYS[way](DATA, sharding=mesh)
    for _ in itertools.repeat(None, 2):
        next(begun)
    again = WAYS[way](DATA, sharding=mesh)
    again.set_state(begun.get_state())
    assert [int(each["epoch"]) for each in again] == [2, 3, 4]


def test_a_batch_that_is_laid_out_as_asked_is_not_copied():
    mesh = mesh_of({"data": 8})
    placed = next(Batches([np.ones(8, np.float32)], sharding=mesh))
    assert next(prefetch([placed], sharding=mesh)) is placed
    assert next(prefetch([placed])) is placed


def test_without_a_sharding_batches_are_what_the_source_yields():
    """FD1"""
    assert next(Batches(DATA)) is DATA[0]


@ways
def test_a_run_with_divided_batches_is_that_of_one_device(way):
    """FD1: what a step computes of them is what it computes of the whole batches."""

    @plait.jit
    def step(model, optimizer, batch):
        def loss_of(model):
            return ((model(batch["x"] / 100) - batch["x"].sum(1, keepdims=True) / 100) ** 2).mean()

        loss, grads = plait.value_and_grad(loss_of)(model)
        optimizer.update(model, grads)
        return loss

    def trained(data):
        model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        objects = {"model": model, "optimizer": plait.Optimizer(model, optax.sgd(1e-3), wrt=plait.Param)}
        return fit(step, objects, data, steps=5, show=False).values["loss"], model.kernel[...]

    data = [{"x": each["x"]} for each in DATA]
    found, expected = trained(WAYS[way](data, sharding=mesh_of({"data": 8}))), trained(Batches(data))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


ROWS = """
import jax, numpy as np, plait
from plait.training import Batches, prefetch
plait.partitioning.connect_processes()
mesh = jax.make_mesh((4,), ("data",))
wholes = [np.arange(16.0, dtype=np.float32).reshape(8, 2) + 100 * i for i in range(3)]
mine = slice(4 * jax.process_index(), 4 * jax.process_index() + 4)
for given, whole in ((wholes, True), ([each[mine] for each in wholes], False)):
    laid_out = Batches(given, epochs=1, sharding=mesh, whole=whole)
    also = Batches(given, epochs=1, sharding=mesh, whole=whole)
    for batches in (laid_out, prefetch(also), prefetch(Batches(given, epochs=1), sharding=mesh, whole=whole)):
        for each, batch in zip(wholes, batches, strict=True):
            assert batch.shape == (8, 2), batch.shape
            assert {shard.index[0].start // 4 for shard in batch.addressable_shards} == {jax.process_index()}
            for shard in batch.addressable_shards:
                assert (np.asarray(shard.data) == each[shard.index]).all()
print("rows are right")
"""


@pytest.mark.slow
def test_each_process_has_its_rows_of_its_own_data_and_of_whole_batches():
    """FD2"""
    command = [sys.executable, "-m", "plait.cli.main", "launch", "--processes=2", "--devices=2", "--"]
    done = subprocess.run([*command, sys.executable, "-c", ROWS], capture_output=True, text=True)
    assert done.stdout.count("rows are right") == 2, done.stderr[-3000:]
