import jax
import jax.numpy as jnp
from flax import nnx


@nnx.split_rngs(splits=4)
@nnx.vmap(in_axes=(0,), out_axes=0)
def create(rngs):
    return nnx.Linear(2, 3, rngs=rngs)


@nnx.vmap(in_axes=(0, None))
def forward(model, x):
    return model(x)


models = create(nnx.Rngs(0))
x = jnp.arange(6.0).reshape(3, 2)
y = forward(models, x)
print(models.kernel.shape, y.shape, jnp.round(y.mean(), 4))
print(len({float(v) for v in models.kernel[...].sum((1, 2))}))


def loss(models, x):
    return jnp.mean(forward(models, x) ** 2)


grads = nnx.grad(loss)(models, x)
print(grads["kernel"].shape, float(grads["kernel"][...].sum()))
state = nnx.state(models)
first = nnx.merge(nnx.graphdef(models), jax.tree.map(lambda a: a[0], state))
print(bool(jnp.allclose(first(x), y[0])))
