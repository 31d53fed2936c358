import jax
import jax.numpy as jnp
from flax import nnx


@nnx.vmap(in_axes=0, out_axes=0)
def create(key):
    return nnx.Linear(2, 3, rngs=nnx.Rngs(params=key))


@nnx.split_rngs(splits=4)
@nnx.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0}),), out_axes=nnx.StateAxes({nnx.Param: 0, ...: None}))
def create_from_streams(rngs: nnx.Rngs):
    return nnx.Linear(2, 3, rngs=rngs)


@nnx.vmap(in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), None))
def forward(model, x):
    return model(x)


models = create_from_streams(nnx.Rngs(0))
x = jnp.arange(6.0).reshape(3, 2)
y = forward(models, x)
print(models.kernel.shape, y.shape, jnp.round(y.mean(), 4))
print(len({float(v) for v in models.kernel.value.sum((1, 2))}))


def loss(models, x):
    return jnp.mean(forward(models, x) ** 2)


grads = nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param))(models, x)
print(grads.kernel.value.shape, float(grads.kernel.value.sum()))
graphdef, state = nnx.split(models)
first = nnx.merge(graphdef, jax.tree.map(lambda a: a[0], state))
print(bool(jnp.allclose(first(x), y[0])))
