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
print(sorted(".".join(path) for path in dict(params.flat_state())))
print(sorted(".".join(path) for path in dict(stats.flat_state())))


@jax.jit
def forward(params, stats, x):
    model = nnx.merge(graphdef, params, stats)
    y = model(x)
    return y, nnx.split(model, nnx.Param, ...)[2]


y, stats = forward(params, stats, jnp.arange(12.0).reshape(4, 3))
nnx.update(model, stats)
print(float(y.sum()), model.norm.mean.value.tolist())

doubled = jax.tree.map(lambda a: 2 * a, params)
other = nnx.merge(graphdef, nnx.State.merge(doubled, stats))
print(other.tied is other.linear, float(other.linear.kernel.value.sum() / model.linear.kernel.value.sum()))
pure = doubled.to_pure_dict() if hasattr(doubled, "to_pure_dict") else nnx.to_pure_dict(doubled)
print(sorted(pure), pure["norm"]["scale"].tolist())
copy = nnx.clone(model)
copy.linear.bias.value = jnp.ones(3)
print(model.linear.bias.value.tolist(), copy.linear.bias.value.tolist())
