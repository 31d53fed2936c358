import jax.numpy as jnp
from flax import nnx


class Net(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.conv = nnx.Conv(1, 4, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        x = nnx.avg_pool(x, (2, 2), strides=(2, 2))
        return self.head(self.dropout(x.mean((1, 2))))


model = Net(rngs=nnx.Rngs(0, dropout=3))
x = jnp.arange(128.0).reshape(2, 8, 8, 1) / 64
model.train()
forward = nnx.jit(lambda model, x: model(x))
print([round(float(forward(model, x).sum()), 4) for _ in range(3)])
print(model.norm.mean[...].round(4).tolist(), int(model.dropout.rngs.count[...]))
model.eval()
print([round(float(forward(model, x).sum()), 4) for _ in range(2)])
frozen = nnx.view(model, deterministic=False, use_running_average=True)
print(frozen.conv.kernel is model.conv.kernel, int(model.dropout.rngs.count[...]))
