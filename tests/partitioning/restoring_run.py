"""Two processes that save together, and restore: what each reads for the checksums, and what a damaged byte does."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental.multihost_utils import sync_global_devices
from jax.sharding import NamedSharding, PartitionSpec

import plait
from plait.checkpoint import Checkpoints, layout
from plait.errors import CheckpointError

plait.partitioning.connect_processes()
FOLDER = Path(sys.argv[1])
SHARDED = NamedSharding(jax.make_mesh((8,), ("x",)), PartitionSpec("x"))


def model(value):
    return plait.Dict(w=plait.Param(jax.device_put(jnp.full(4096, value, jnp.float32), SHARDED)))


def values(node):
    return sorted({float(shard.data.max()) for shard in node.w[...].addressable_shards})


read, checksum = [], layout._checksum
layout._checksum = lambda file, make: [read.append(file), checksum(file, make)][1]
with Checkpoints(FOLDER) as checkpoints:
    for step in (1, 2):
        checkpoints.save(step, model(step))
    checkpoints.wait()
    sync_global_devices("saved")
    read.clear()
    node = model(0)
    plait.checkpoint.restore(FOLDER / "step-00000002", node)
    print("read", *(file.relative_to(FOLDER / "step-00000002") for file in read), "values", *values(node))
    largest = max((FOLDER / "step-00000002").rglob("*/d/*"), key=lambda file: (file.stat().st_size, file.name))
    sync_global_devices("found")
    if jax.process_index() == 0:
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
    sync_global_devices("damaged")
    node = model(0)
    try:
        plait.checkpoint.restore(FOLDER / "step-00000002", node)
    except CheckpointError as error:
        print("refused", error.parts["found"], "values", *values(node))
    print("restored", checkpoints.restore(node).step, "values", *values(node))
