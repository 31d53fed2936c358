"""A run of any number of processes that survives its cluster: what slurm.sh, jobset.yaml and tpu_pod.sh start.

    plait launch --processes 2 --devices 2 -- python examples/clusters/run.py --folder runs/counted --steps 200

It resumes from the newest checkpoint in the folder. If a signal ended the run, the exit status says so (143: SIGTERM),
by which the files beside this one know that it is to go on. Replace the model, the data and the step with your own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.checkpoint import Checkpoints, Keep
from plait.partitioning import connect_processes, create_sharded
from plait.training import JsonLines, fit

BATCH, FEATURES = 64, 16


def objects() -> dict[str, object]:
    rngs = plait.Rngs(0)
    model = plait.Sequential(plait.Linear(FEATURES, 64, rngs=rngs), plait.relu, plait.Linear(64, 1, rngs=rngs))
    return {"model": model, "optimizer": plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)}


@plait.jit(donate=True)
def train(model: plait.Module, optimizer: plait.Optimizer, x: jax.Array) -> jax.Array:
    def loss_of(model: plait.Module) -> jax.Array:
        return ((model(x) - x.sum(-1, keepdims=True)) ** 2).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def batches(epoch: int):
    """The same rows in all processes, of which each device takes its own."""
    rows = np.random.default_rng(epoch)
    sharding = NamedSharding(jax.sharding.get_mesh(), PartitionSpec("data"))
    for _ in range(100):
        x = rows.normal(size=(BATCH, FEATURES)).astype(np.float32)
        yield jax.make_array_from_callback(x.shape, sharding, lambda place, x=x: x[place])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints; all processes see it")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--save-every", type=int, default=1_000)
    options = parser.parse_args()
    connect_processes()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh), Checkpoints(options.folder, keep=Keep(last=2)) as checkpoints:
        fitted = fit(
            train, create_sharded(objects), batches, steps=options.steps, checkpoints=checkpoints,
            save_every=options.save_every, loggers=[JsonLines(options.folder / "metrics.jsonl")],
        )  # fmt: skip
    print(f"step {fitted.step}: {fitted.reason}", flush=True)
    return fitted.exit_status


if __name__ == "__main__":
    raise SystemExit(main())
