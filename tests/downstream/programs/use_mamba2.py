"""mamba2-jax: a language model with its cache, and a forecaster."""

import jax
import jax.numpy as jnp
from flax import nnx
from mamba2_jax import Mamba2Config, Mamba2ForCausalLM, count_parameters, create_random_forecaster
from results import hand_over, stored, train

config = Mamba2Config(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=16, head_dim=16, chunk_size=8)


def make():
    return Mamba2ForCausalLM(config, rngs=nnx.Rngs(0))


tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, 64)
model = make()
losses = train(model, lambda m, ids: m(ids, labels=ids)["loss"], tokens)
new = stored(model, make)
first = model(tokens[:, :8])
second = model(tokens[:, 8:9], cache=first["cache"])
forecaster = create_random_forecaster(input_dim=4, d_model=32, n_layers=2, output_dim=1, forecast_horizon=6)
hand_over(
    losses=losses,
    logits=model(tokens)["logits"],
    restored=new(tokens)["logits"],
    cached=second["logits"],
    forecast=forecaster(jnp.ones((2, 16, 4))),
    parameters=count_parameters(model),
)
