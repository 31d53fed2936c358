"""A training program whose own state says what it was trained on: run as ``python -m tests.faults.witness FOLDER``.

Each sample adds 1 to ``counts[id]`` and folds its id into a rolling 32-bit hash, both inside the trained state. So a
sample that was left out, or used twice, or in another order, is seen in the model itself, whatever the loss says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import plait
from plait.checkpoint import Checkpoints, Keep
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


def main(folder: Path) -> None:
    with Checkpoints(folder / "checkpoints", keep=Keep(last=2)) as checkpoints:
        fitted = fit(
            train,
            objects(),
            Batches(batches),
            steps=STEPS,
            checkpoints=checkpoints,
            save_every=2,
            log_every=1,
            loggers=[JsonLines(folder / "log.jsonl")],
            show=False,
        )
    print(json.dumps({"step": fitted.step, "reason": fitted.reason}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
