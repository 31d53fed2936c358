"""Wrote the checkpoints beside it, with Flax 0.10.4, JAX 0.5.3 and Orbax 0.11.13: python write.py"""

from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint
from flax import nnx


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = [nnx.Linear(2, 3, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)]
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.norm(self.layers[1](nnx.relu(self.layers[0](x)))))


net = Net(nnx.Rngs(0))
state = nnx.state(net, nnx.Param)
for number, (_, leaf) in enumerate(sorted(state.flat_state())):
    leaf.value = number + jnp.arange(leaf.value.size).reshape(leaf.value.shape) / 8
nnx.update(net, state)
optimizer = nnx.Optimizer(net, optax.sgd(0.5, momentum=0.5))
optimizer.update(jax.tree.map(jnp.ones_like, nnx.state(net, nnx.Param)))  # subtracts 0.5; the trace is 1
net.norm.mean.value = jnp.array([1.0, 2.0, 3.0])
net.drop(jnp.ones(2))  # one draw
here = Path(__file__).resolve().parent
with orbax.checkpoint.StandardCheckpointer() as checkpointer:
    checkpointer.save(here / "state", nnx.state(optimizer))
with orbax.checkpoint.PyTreeCheckpointer() as checkpointer:
    checkpointer.save(here / "pure", nnx.to_pure_dict(nnx.state(net)))
