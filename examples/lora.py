"""Fine-tune the GPT of ``gpt.py`` on other text with LoRA: train two small matrices beside each frozen weight.

    python examples/lora.py --steps 600 --tune 300

It is trained on Python, and fine-tuned on the English of Python's own manual. Only the adapters, a few percent of the
model, are fine-tuned and need to be saved.

Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv:2106.09685.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from gpt import GPT, corpus, evaluate, loss_of, sample_batch, train

import plait

WEIGHTS = plait.All(plait.Param, plait.Not(plait.LoRAParam))  # adapters are Params too


def manual() -> np.ndarray:
    """The manual's topics, as bytes."""
    return np.frombuffer("".join(topics.values()).encode(), np.uint8).astype(np.int32)


@plait.jit
def tune_step(model: GPT, optimizer: plait.Optimizer, text: jax.Array) -> jax.Array:
    adapters = plait.DiffState(0, plait.LoRAParam)
    loss, grads = plait.value_and_grad(loss_of, argnums=adapters)(model, text)
    optimizer.update(model, grads)
    return loss


def count(model: GPT, which: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(plait.state(model, which)))


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Train and fine-tune; return bits per byte of the manual before and after, and the share of trained weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="steps of training on Python")
    parser.add_argument("--tune", type=int, default=200, help="steps of tuning on the manual")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rank", type=int, default=4)
    options = parser.parse_args(argv)

    sizes = {"batch": 16, "length": options.length}
    model = train(options.width, 4, 2, text=corpus(1_000_000), steps=options.steps, **sizes)
    known, unknown = np.split(manual(), [len(manual()) * 9 // 10])
    held_out = sample_batch(unknown, 32, options.length, np.random.default_rng(1))
    before = float(evaluate(model, held_out))

    plait.add_lora(plait.select(model, plait.Linear), options.rank, rngs=plait.Rngs(1))
    weights = [jnp.copy(leaf) for leaf in jax.tree.leaves(plait.state(model, WEIGHTS))]
    optimizer = plait.Optimizer(model, optax.adam(1e-2), wrt=plait.LoRAParam)
    random = np.random.default_rng(0)
    for _ in range(options.tune):
        tune_step(model, optimizer, sample_batch(known, 16, options.length, random))

    now = jax.tree.leaves(plait.state(model, WEIGHTS))
    assert all(jnp.array_equal(old, new) for old, new in zip(weights, now, strict=True)), "the weights stay"
    found = {
        "before": before,
        "after": float(evaluate(model, held_out)),
        "share": count(model, plait.LoRAParam) / count(model, WEIGHTS),
    }
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
