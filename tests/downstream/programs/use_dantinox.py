"""dantinox: its transformer with shared embeddings, remat, rotary positions and a cache; LoRA beside it."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from dantinox.core.config import ModelConfig
from dantinox.core.lora import LoRAParam
from dantinox.core.model import Transformer
from flax import nnx
from results import hand_over, stored, train

config = ModelConfig(
    dim=32, n_heads=4, head_size=8, num_blocks=2, vocab_size=40, max_context=16, attention="gqa", kv_heads=2,
    dropout=0.1,
)  # fmt: skip


def make():
    return Transformer(config, rngs=nnx.Rngs(0))


def loss(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


tokens = jax.random.randint(jax.random.key(1), (2, 13), 0, 40)
model = make()
losses = train(model, loss, tokens)
new = stored(model, make, nnx.Param)
empty = tuple((None, None) for _ in range(config.num_blocks))
prompt = model(tokens[:, :8], caches=empty, deterministic=True)
step = model(tokens[:, 8:9], caches=prompt.kv_caches, cache_index=8, deterministic=True)
lora = Transformer(dataclasses.replace(config, use_lora=True, lora_rank=2), rngs=nnx.Rngs(3))
hand_over(
    losses=losses,
    logits=model(tokens[:, :12], deterministic=True).logits,
    restored=new(tokens[:, :12], deterministic=True).logits,
    prompt=prompt.logits,
    step=step.logits,
    lora=train(lora, loss, tokens, wrt=LoRAParam),
    parameters=jnp.array([leaf.size for leaf in jax.tree.leaves(nnx.state(lora, LoRAParam))]),
)
