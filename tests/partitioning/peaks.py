"""What making and restoring a sharded model adds to the memory of a process. Not a test: prints JSON, in megabytes.

The devices are of the CPU, so their memory is that of the process.
"""

import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import plait

ARRAYS, WIDTH = 12, 2048  # of 16 MB each


class Layers(plait.Module):
    def __init__(self, rngs):
        self.layers = [
            plait.Linear(WIDTH, WIDTH, use_bias=False, kernel_metadata={"out_sharding": ("embed", "mlp")}, rngs=rngs)
            for _ in range(ARRAYS)
        ]


def peak_of(act):
    """The highest resident size while ``act`` runs, above that before."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = resident("VmRSS")
    result = act()
    jax.block_until_ready(plait.state(result))
    return result, resident("VmHWM") - before


def resident(line):
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def main(folder):
    plait.partitioning.connect_processes()
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh), plait.logical_axis_rules(plait.partitioning.rules_for()):
        plait.partitioning.create_sharded(lambda: {"small": plait.Param(jnp.ones(8))})  # warms up
        model, made = peak_of(lambda: plait.partitioning.create_sharded(lambda: Layers(plait.Rngs(0))))
        plait.checkpoint.save(f"{folder}/saved", model)
        del model
        graphdef, state = plait.get_abstract_model(lambda: Layers(plait.Rngs(0)), mesh)

        def load():
            plait.checkpoint.restore(f"{folder}/saved", state)
            return plait.merge(graphdef, state)

        _, loaded = peak_of(load)
    size = WIDTH * WIDTH * 4 / 2**20
    print(json.dumps({"whole": ARRAYS * size, "array": size, "made": made, "loaded": loaded}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
