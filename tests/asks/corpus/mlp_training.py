import jax.numpy as jnp
import optax
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, din, dmid, dout, *, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(din, dmid, rngs=rngs), nnx.Linear(dmid, dout, rngs=rngs)])
        self.calls = nnx.Variable(jnp.array(0))

    def __call__(self, x):
        self.calls[...] += 1
        return self.layers[1](nnx.relu(self.layers[0](x)))


model = MLP(1, 8, 1, rngs=nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss_fn(model):
        return jnp.mean((model(x) - y) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


x = jnp.linspace(-1, 1, 16)[:, None]
for step in range(5):
    print(step, float(train_step(model, optimizer, x, x**2)))
print(int(model.calls[...]), float(model.layers[0].kernel[...].sum()))
