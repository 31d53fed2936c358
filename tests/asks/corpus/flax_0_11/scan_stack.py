import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    def __init__(self, features, *, rngs):
        self.linear = nnx.Linear(features, features, rngs=rngs)
        self.norm = nnx.LayerNorm(features, rngs=rngs)

    def __call__(self, x):
        return x + nnx.tanh(self.linear(self.norm(x)))


class Stack(nnx.Module):
    def __init__(self, features, depth, *, rngs: nnx.Rngs):
        @nnx.split_rngs(splits=depth)
        @nnx.vmap(axis_size=depth)
        def make(rngs):
            return Block(features, rngs=rngs)

        self.blocks = make(rngs)
        self.depth = depth

    def __call__(self, x):
        state_axes = nnx.StateAxes({nnx.Param: 0, ...: None})

        @nnx.scan(in_axes=(state_axes, nnx.Carry), out_axes=nnx.Carry)
        def forward(block, x):
            return block(x)

        return forward(self.blocks, x)


model = Stack(4, 3, rngs=nnx.Rngs(2))
x = jnp.arange(8.0).reshape(2, 4)
print(model.blocks.linear.kernel.value.shape, float(model(x).sum()))
grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
print(grads.blocks.norm.scale.value.shape, float(jnp.abs(grads.blocks.linear.kernel.value).sum()))
print(float(nnx.jit(Stack.__call__)(model, x).sum()))
