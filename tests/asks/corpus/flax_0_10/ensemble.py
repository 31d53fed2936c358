from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx


@nnx.split_rngs(splits=4)
@partial(nnx.vmap, in_axes=0, out_axes=0)
def create(rngs: nnx.Rngs):
    return nnx.Linear(2, 3, rngs=rngs)


models = create(nnx.Rngs(0))
graphdef, params = nnx.split(models)


@partial(jax.vmap, in_axes=(0, None))
def forward(params, x):
    return nnx.merge(graphdef, params)(x)


x = jnp.arange(6.0).reshape(3, 2)
y = forward(params, x)
print(models.kernel.shape, y.shape, jnp.round(y.mean(), 4))
print(len({float(v) for v in models.kernel.value.sum((1, 2))}))


def loss(params, x):
    return jnp.mean(forward(params, x) ** 2)


grads = jax.grad(loss)(params, x)
print(grads.kernel.value.shape, float(grads["kernel"].value.sum()))
first = nnx.merge(graphdef, jax.tree.map(lambda a: a[0], params))
print(bool(jnp.allclose(first(x), y[0])))
