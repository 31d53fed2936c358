import jax
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
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: nnx.Rngs):
            return Block(features, rngs=rngs)

        self.blocks = make(rngs)

    def __call__(self, x):
        graphdef, params = nnx.split(self.blocks)

        def forward(x, params):
            return nnx.merge(graphdef, params)(x), None

        return jax.lax.scan(forward, x, params)[0]


model = Stack(4, 3, rngs=nnx.Rngs(2))
x = jnp.arange(8.0).reshape(2, 4)
print(model.blocks.linear.kernel.value.shape, float(model(x).sum()))
grads: nnx.State = nnx.grad(lambda model: jnp.sum(model(x) ** 2))(model)
print(grads.blocks.norm.scale.value.shape, float(jnp.abs(grads["blocks"]["linear"]["kernel"].value).sum()))


@nnx.jit
def forward(model: Stack, x: jax.Array):
    return model(x)


print(float(forward(model, x).sum()))
