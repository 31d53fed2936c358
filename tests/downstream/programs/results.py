"""What each program shares: three steps of training, storing with Orbax, and handing over the numbers."""

import sys
import tempfile
from pathlib import Path

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx


def train(model, loss, *batch, wrt=nnx.Param, steps=3):
    """The losses of three steps of Adam."""
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=wrt)

    @nnx.jit
    def step(model, optimizer, *batch):
        value, grads = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, wrt))(model, *batch)
        optimizer.update(model, grads)
        return value

    return np.array([step(model, optimizer, *batch) for _ in range(steps)])


def stored(model, make, *kinds):
    """A new model with the values of another, by way of an Orbax checkpoint."""
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        state = nnx.to_pure_dict(nnx.state(model, *kinds))
        checkpointer.save(Path(folder) / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(Path(folder) / "state", jax.eval_shape(lambda: state))
    new = make()
    target = nnx.state(new, *kinds)
    nnx.replace_by_pure_dict(target, restored)
    nnx.update(new, target)
    return new


def hand_over(**numbers):
    """Write arrays to the file that the command line names."""
    np.savez(sys.argv[1], **{name: np.asarray(value) for name, value in numbers.items()})
