import jax
import jax.numpy as jnp
import optax
from flax import nnx


class MLP(nnx.Module):
    def __init__(self, din, dmid, dout, *, rngs: nnx.Rngs):
        self.layers = [nnx.Linear(din, dmid, rngs=rngs), nnx.Linear(dmid, dout, rngs=rngs)]
        self.calls = nnx.Variable(0)

    def __call__(self, x):
        self.calls.value += 1
        return self.layers[1](nnx.relu(self.layers[0](x)))


model = MLP(1, 8, 1, rngs=nnx.Rngs(0))
graphdef, params, rest = nnx.split(model, nnx.Param, ...)
tx = optax.adam(1e-2)
opt_state = tx.init(params)


@jax.jit
def train_step(params, rest, opt_state, x, y):
    def loss_fn(params, rest):
        model = nnx.merge(graphdef, params, rest)
        loss = jnp.mean((model(x) - y) ** 2)
        return loss, nnx.state(model, nnx.Not(nnx.Param))

    (loss, rest), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, rest)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), rest, opt_state, loss


x = jnp.linspace(-1, 1, 16)[:, None]
for step in range(5):
    params, rest, opt_state, loss = train_step(params, rest, opt_state, x, x**2)
    print(step, float(loss))
nnx.update(model, params, rest)
print(int(model.calls.value), float(model.layers[0].kernel.value.sum()))
