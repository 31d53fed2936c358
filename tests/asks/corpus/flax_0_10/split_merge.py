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
print(sorted(".".join(path) for path, leaf in params.flat_state() if isinstance(leaf, nnx.VariableState)))
print(sorted(".".join(path) for path, leaf in stats.flat_state() if issubclass(leaf.type, nnx.BatchStat)))


@jax.jit
def forward(params: nnx.State, stats: nnx.State, x):
    y, (_, state) = nnx.call((graphdef, nnx.State.merge(params, stats)))(x)
    return y, state.filter(nnx.BatchStat)


y, stats = forward(params, stats, jnp.arange(12.0).reshape(4, 3))
nnx.update(model, stats)
print(float(y.sum()), model.norm.mean.value.tolist())

doubled = jax.tree.map(lambda v: v.replace(2 * v.value), params, is_leaf=lambda v: isinstance(v, nnx.VariableState))
other = nnx.merge(graphdef, doubled, stats)
print(other.tied is other.linear, float(other.linear.kernel.value.sum() / model.linear.kernel.value.sum()))
pure = {key: {name: leaf.value for name, leaf in part.items()} for key, part in doubled.items()}
print(sorted(pure), pure["norm"]["scale"].tolist())
copy = nnx.clone(model)
copy.linear.bias.value = jnp.ones(3)
print(model.linear.bias.value.tolist(), copy.linear.bias.value.tolist())
