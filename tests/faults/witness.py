"""A training program whose own state says what it was trained on: run as ``python -m tests.faults.witness FOLDER``.

Each sample adds 1 to ``counts[id]`` and folds its id into a rolling 32-bit hash, both inside the trained state. So a
sample that was left out, or used twice, or in another order, is seen in the model itself, whatever the loss says. With
``--mesh`` each batch is sharded over all devices, those of other processes among them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import plait
from plait.checkpoint import Checkpoints, Keep
from plait.partitioning import connect_processes, create_sharded
from plait.training import Batches, JsonLines, fit

SAMPLES, BATCH, EPOCHS = 48, 4, 5
STEPS = SAMPLES // BATCH * EPOCHS


class Witness(plait.Module):
    """A small network with dropout and batch statistics, and what it has seen."""

    def __init__(self) -> None:
        rngs = plait.Rngs(0)
        self.first = plait.Linear(3, 16, rngs=rngs)
        self.norm = plait.BatchNorm(16, rngs=rngs)
        self.dropout = plait.Dropout(0.3, rngs=rngs)
        self.last = plait.Linear(16, 1, rngs=rngs)
        self.counts = plait.BatchStat(jnp.zeros(SAMPLES, jnp.int32))
        self.hash = plait.BatchStat(jnp.zeros((), jnp.uint32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(self.dropout(jax.nn.relu(self.norm(self.first(x)))))

    def see(self, ids: jax.Array) -> None:
        self.counts.value = self.counts.value.at[ids].add(1)
        self.hash.value = jax.lax.fori_loop(
            0, len(ids), lambda i, seen: seen * jnp.uint32(1_000_003) + ids[i].astype(jnp.uint32) + 1, self.hash.value
        )


def batches(epoch: int) -> np.ndarray:
    """The ids of the samples, in another order in each epoch."""
    return np.random.default_rng(epoch).permutation(SAMPLES).reshape(-1, BATCH).astype(np.int32)


@plait.jit(donate=True)
def train(model: Witness, optimizer: plait.Optimizer, ids: jax.Array) -> jax.Array:
    x = jnp.sin(ids[:, None].astype(jnp.float32) * jnp.arange(1.0, 4.0)[None])

    def loss_of(model: Witness) -> jax.Array:
        return ((model(x) - x.sum(-1, keepdims=True)) ** 2).mean()

    loss, grads = plait.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    model.see(ids)
    return loss


def objects() -> dict[str, object]:
    model = Witness()
    return {"model": model, "optimizer": plait.Optimizer(model, optax.adam(1e-2), wrt=plait.Param)}


def train_on_mesh(model: Witness, optimizer: plait.Optimizer, ids: np.ndarray) -> jax.Array:
    sharding = NamedSharding(jax.sharding.get_mesh(), PartitionSpec("data"))
    return train(model, optimizer, jax.make_array_from_callback(ids.shape, sharding, lambda place: ids[place]))


def main(folder: Path, *, on_mesh: bool) -> None:
    connect_processes()
    with contextlib.ExitStack() as held:
        if on_mesh:
            held.enter_context(
                jax.set_mesh(jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,)))
            )
        checkpoints = held.enter_context(Checkpoints(folder / "checkpoints", keep=Keep(last=2)))
        fitted = fit(
            train_on_mesh if on_mesh else train,
            create_sharded(objects) if on_mesh else objects(),
            Batches(batches),
            steps=STEPS,
            checkpoints=checkpoints,
            save_every=2,
            log_every=1,
            loggers=[JsonLines(folder / "log.jsonl")] if jax.process_index() == 0 else [],
            show=False,
        )
    print(json.dumps({"step": fitted.step, "reason": fitted.reason}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mesh", action="store_true")
    options = parser.parse_args()
    main(options.folder, on_mesh=options.mesh)
