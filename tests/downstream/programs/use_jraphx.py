"""jraphx: a graph network with attention, normalisation and pooling."""

import jax
import jax.numpy as jnp
from flax import nnx
from jraphx.data import Batch, Data
from jraphx.nn.conv import GATv2Conv, GCNConv, SAGEConv
from jraphx.nn.models import GIN
from jraphx.nn.norm import BatchNorm, LayerNorm
from jraphx.nn.pool import TopKPooling, global_mean_pool
from results import hand_over, stored, train


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first = GCNConv(8, 16, rngs=rngs)
        self.norms = nnx.List([BatchNorm(16, rngs=rngs), LayerNorm(16, rngs=rngs)])
        self.second = GATv2Conv(16, 4, heads=4, rngs=rngs)
        self.third = SAGEConv(16, 16, rngs=rngs)
        self.last = GIN(in_features=16, hidden_features=16, num_layers=2, out_features=3, rngs=rngs)

    def __call__(self, x, edges, batch):
        x = self.norms[0](nnx.relu(self.first(x, edges)))
        x = self.norms[1](nnx.relu(self.second(x, edges)))
        x = nnx.relu(self.third(x, edges))
        return global_mean_pool(self.last(x, edges), batch, size=2)


def make():
    return Net(nnx.Rngs(0))


data = Data(
    x=jax.random.normal(jax.random.key(1), (6, 8)),
    edge_index=jnp.array([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]]),
)
both = Batch.from_data_list([data, data])
target = jnp.eye(3)[:2]
model = make()
losses = train(model, lambda m, x, e, b: ((m(x, e, b) - target) ** 2).mean(), both.x, both.edge_index, both.batch)
model.eval()
new = stored(model, make)
new.eval()
hand_over(
    losses=losses,
    after=model(both.x, both.edge_index, both.batch),
    restored=new(both.x, both.edge_index, both.batch),
    pooled=TopKPooling(8, ratio=0.5, rngs=nnx.Rngs(2))(data.x, data.edge_index)[0],
)
