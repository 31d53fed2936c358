import jax
import jax.numpy as jnp
from flax import nnx


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.tied = self.linear

    def __call__(self, x):
        return self.tied(self.norm(self.linear(x)))


model = Block(nnx.Rngs(1))
graphdef, params, stats = nnx.split(model, nnx.Param, nnx.BatchStat)
print(sorted(".".join(path) for path, _ in nnx.to_flat_state(params)))
print(sorted(".".join(path) for path, _ in nnx.to_flat_state(stats)))


@jax.jit
def forward(params, stats, x):
    model = nnx.merge(graphdef, params, stats)
    y = model(x)
    return y, nnx.state(model, nnx.BatchStat)


y, stats = forward(params, stats, jnp.arange(12.0).reshape(4, 3))
nnx.update(model, stats)
print(float(y.sum()), model.norm.mean[...].tolist())

doubled = jax.tree.map(lambda a: 2 * a, params)
other = nnx.merge(graphdef, doubled, stats)
print(other.tied is other.linear, float(other.linear.kernel[...].sum() / model.linear.kernel[...].sum()))
pure = nnx.to_pure_dict(doubled)
print(sorted(pure), pure["norm"]["scale"].tolist())
copy = nnx.clone(model)
copy.linear.bias[...] = jnp.ones(3)
print(model.linear.bias[...].tolist(), copy.linear.bias[...].tolist())
