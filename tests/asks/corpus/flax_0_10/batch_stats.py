import jax.numpy as jnp
from flax import nnx


class Net(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x, *, rngs: nnx.Rngs | None = None):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
        return self.head(self.dropout(x.mean((1, 2)), rngs=rngs))


@nnx.jit
def forward(model: Net, x, rngs: nnx.Rngs | None = None):
    return model(x, rngs=rngs)


model = Net(rngs=nnx.Rngs(0))
streams = nnx.Dropout(0.5, rngs=nnx.Rngs(dropout=3)).rngs
x = jnp.arange(128.0).reshape(2, 8, 8, 1) / 64
model.train()
print([round(float(forward(model, x, streams).sum()), 4) for _ in range(3)])
print(model.norm.mean.value.round(4).tolist(), int(streams.count.value))
model.eval()
print([round(float(forward(model, x).sum()), 4) for _ in range(2)])
model.set_attributes(deterministic=True, use_running_average=True, raise_if_not_found=False)
print(model.norm.use_running_average and model.dropout.deterministic, int(streams.count.value))
