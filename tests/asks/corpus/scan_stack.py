import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    def __init__(self, features, *, rngs):
        self.linear = nnx.Linear(features, features, rngs=rngs)
        self.norm = nnx.LayerNorm(features, rngs=rngs)

    def __call__(self, x):
        return x + nnx.tanh(self.linear(self.norm(x)))


class Stack(nnx.Module):
    def __init__(self, features, depth, *, rngs):
        @nnx.split_rngs(splits=depth)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return Block(features, rngs=rngs)

        self.blocks = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def forward(x, block):
            return block(x)

        return forward(x, self.blocks)


model = Stack(4, 3, rngs=nnx.Rngs(2))
x = jnp.arange(8.0).reshape(2, 4)
print(model.blocks.linear.kernel.shape, float(model(x).sum()))
grads = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
print(grads["blocks"]["norm"]["scale"].shape, float(jnp.abs(grads["blocks"]["linear"]["kernel"][...]).sum()))
print(float(nnx.jit(lambda model, x: model(x))(model, x).sum()))
