"""datarax: a pipeline that shuffles and adds noise trains a model in its scan; it goes on where a stored one was."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from datarax.operators import ElementOperator, ElementOperatorConfig
from datarax.pipeline import Pipeline
from datarax.sources import MemorySource, MemorySourceConfig
from flax import nnx
from results import hand_over, stored

DATA = {"x": np.arange(24.0, dtype=np.float32).reshape(12, 2) / 24, "y": np.arange(12.0, dtype=np.float32) / 12}


def noisy(element, key):
    x = element.data["x"]
    return element.replace(data={**element.data, "x": x + 0.1 * jax.random.normal(key, x.shape)})


class Scale(nnx.Module):
    """A stage that is trained."""

    def __init__(self):
        self.factor = nnx.Param(jnp.ones(2))

    def __call__(self, batch):
        return {**batch, "x": batch["x"] * self.factor}


def make():
    rngs = nnx.Rngs(0, shuffle=1, augment=2)
    source = MemorySource(MemorySourceConfig(shuffle=True), DATA, rngs=rngs)
    noise = ElementOperator(ElementOperatorConfig(stochastic=True, stream_name="augment"), fn=noisy, rngs=rngs)
    return Pipeline(source=source, stages=[noise, Scale()], batch_size=3, rngs=rngs)


def step(model, optimizer, batch):
    def loss(model):
        return ((model(batch["x"])[:, 0] - batch["y"]) ** 2).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


pipeline, model = make(), nnx.Linear(2, 1, rngs=nnx.Rngs(3))
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
losses = pipeline.scan(step, length=3, modules=(model, optimizer))
new = stored(pipeline, make)
batches = [pipeline.step() for _ in range(2)]
others = [new.step() for _ in range(2)]
hand_over(
    losses=losses,
    kernel=model.kernel[...],
    after=np.stack([batch["x"] for batch in batches]),
    restored=np.stack([batch["x"] for batch in others]),
    order=np.stack([batch["y"] for batch in batches]),
)
