"""avitai-artifex: its transformer encoder, which drops out and attends with masks."""

import jax
from artifex.generative_models.core.layers import TransformerEncoder
from flax import nnx
from results import hand_over, stored, train


def make():
    return TransformerEncoder(2, 16, 2, dropout_rate=0.1, max_len=8, rngs=nnx.Rngs(0, dropout=1))


x = jax.random.normal(jax.random.key(1), (2, 6, 16))
model = make()
losses = train(model, lambda m, x: ((m(x, deterministic=False) - x) ** 2).mean(), x)
new = stored(model, make, nnx.Param)
hand_over(losses=losses, after=model(x, deterministic=True), restored=new(x, deterministic=True))
