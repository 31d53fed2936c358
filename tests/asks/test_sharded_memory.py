"""Ask 12: big models are made, restored and described sharded, never whole."""

import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import transformer
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import plait
from plait.core.variables.variables import eager_sharding_hooks
from plait.partitioning import create_sharded
from plait.partitioning.creation import creation_program

ROOT = Path(__file__).parents[2]
CONFIG = transformer.Config(embed=256, mlp=1024, vocab=2048)
LAYOUTS = [{"data": 8}, {"fsdp": 8}, {"model": 8}, {"data": 2, "fsdp": 2, "model": 2}]

layouts = pytest.mark.parametrize("sizes", LAYOUTS, ids=lambda sizes: "x".join(sizes))


def make():
    return transformer.Transformer(CONFIG, plait.Rngs(0))


def held_by(device):
    """Bytes of all live arrays on a device; views of one buffer count once."""
    buffers = {}
    for array in jax.live_arrays():
        if not jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            for shard in array.addressable_shards:
                if shard.device == device:
                    buffers[shard.data.unsafe_buffer_pointer()] = shard.data.nbytes
    return sum(buffers.values())


@pytest.mark.slow
@layouts
def test_a_model_is_made_in_place(sizes):
    """Per device: the program's results and intermediate values are at most the final shards and one array.

    Random bits take three times the part that is made of them, which shows where nothing is cut.
    """
    with transformer.on_mesh(sizes):
        _, state = plait.get_abstract_model(make, jax.sharding.get_mesh())
        report = plait.inspect.sharding_report(state)
        _, program = creation_program(make, jax.sharding.get_mesh())
        found = program.lower().compile().memory_analysis()
    largest = max(row.bytes for row in report.variables)
    tables = 4096  # of pointers to the results, and small constants
    assert found.output_size_in_bytes <= report.bytes_per_device + tables
    room = 3 * largest if sizes == {"data": 8} else largest
    assert found.output_size_in_bytes + found.temp_size_in_bytes <= report.bytes_per_device + room + tables


@pytest.mark.long
@pytest.mark.slow
@layouts
def test_what_is_made_in_place_is_the_model_and_nothing_else(sizes):
    gc.collect()
    before = held_by(jax.devices()[0])
    with transformer.on_mesh(sizes):
        model = create_sharded(make)
        report = plait.inspect.sharding_report(model)
    gc.collect()
    assert held_by(jax.devices()[0]) - before == report.bytes_per_device
    whole = jax.tree.leaves(plait.as_pure(plait.state(make())))
    for mine, its in zip(jax.tree.leaves(plait.as_pure(plait.state(model))), whole, strict=True):
        assert jnp.allclose(jax.device_get(mine), its, atol=1e-6)


@pytest.mark.slow
def test_a_model_made_step_by_step_under_a_mesh_keeps_one_whole_array_at_a_time():
    """Without jit: each variable is computed whole, and cut before the next."""
    peaks = []
    place = eager_sharding_hooks

    def look(variable, value):
        peaks.append(held_by(jax.devices()[0]))
        return value

    gc.collect()
    before = held_by(jax.devices()[0])
    with transformer.on_mesh({"fsdp": 8}):
        place.append(look)
        try:
            model = make()
        finally:
            place.remove(look)
        report = plait.inspect.sharding_report(model)
    largest = max(row.bytes for row in report.variables)
    assert max(peaks) - before <= report.bytes_per_device + largest
    assert held_by(jax.devices()[0]) - before <= report.bytes_per_device + 64


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_shapes_allocate_nothing_and_carry_shardings(kind):
    gc.collect()
    before = {id(array) for array in jax.live_arrays()}
    with transformer.on_mesh({"fsdp": 4, "model": 2}, kind):
        mesh = jax.sharding.get_mesh()
        abstract = plait.eval_shape(make)
        _, state = plait.get_abstract_model(make, mesh)
    assert [array for array in jax.live_arrays() if id(array) not in before] == []
    expected = NamedSharding(mesh, P("fsdp", "model"))
    assert state["blocks"][0]["up"]["kernel"].get_raw_value().sharding == expected
    found = abstract.blocks[0].up.kernel.get_raw_value()
    assert isinstance(found, jax.ShapeDtypeStruct)
    assert found.sharding.spec == expected.spec


@pytest.mark.slow
@pytest.mark.long
def test_processes_hold_their_part_only_while_a_model_is_made_and_loaded(tmp_path):
    """Measured: the growth of each process's memory, of which CPU devices take theirs."""
    command = [sys.executable, "-m", "plait.cli.main", "launch", "--processes=4", "--devices=2", "--"]
    done = subprocess.run(
        [*command, sys.executable, str(ROOT / "tests" / "partitioning" / "peaks.py"), str(tmp_path)],
        capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip
    found = [json.loads(text) for text in re.findall(r"\{.*\}", done.stdout)]
    assert len(found) == 4
    for process in found:
        part, array = process["whole"] / 4, process["array"]
        compiler = 96  # what compiling leaves in memory, which is the same for models of any size
        assert process["loaded"] <= part + 2 * array + compiler
        assert process["made"] <= part + 2 * array + compiler
