"""dantinox: its transformer with shared embeddings, remat, rotary positions and a cache; LoRA beside it."""

import dataclasses

import jax
import jax.numpy as jnp
import optax
from core.config import Config
from core.lora import LoRAParam
from core.model import Transformer
from flax import nnx
from results import hand_over, stored, train

config = Config(
    dim=32, n_heads=4, head_size=8, num_blocks=2, vocab_size=40, max_context=16, kv_heads=2, dropout_rate=0.1
)


def make():
    return Transformer(config, rngs=nnx.Rngs(0))


def loss(model, tokens):
    logits = model(tokens[:, :-1], False, None, 0).logits
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


tokens = jax.random.randint(jax.random.key(1), (2, 13), 0, 40)
model = make()
losses = train(model, loss, tokens)
new = stored(model, make, nnx.Param)
prompt = model(tokens[:, :8], True, None, 0, deterministic=True)
lora = Transformer(dataclasses.replace(config, use_lora=True, lora_rank=2), rngs=nnx.Rngs(3))
hand_over(
    losses=losses,
    logits=model(tokens[:, :12], False, None, 0, deterministic=True).logits,
    restored=new(tokens[:, :12], False, None, 0, deterministic=True).logits,
    prompt=prompt.logits,
    lora=train(lora, loss, tokens, wrt=LoRAParam),
    parameters=jnp.array([leaf.size for leaf in jax.tree.leaves(nnx.state(lora, LoRAParam))]),
)
