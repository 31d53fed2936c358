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
import numpy as np
import optax
from gpt import GPT, corpus, evaluate, loss_of, sample_batch, train

import plait


def manual() -> np.ndarray:
    """The manual's topics, as bytes."""
    return np.frombuffer("".join(topics.values()).encode(), np.uint8).astype(np.int32)


@plait.jit
def tune_step(model: GPT, optimizer: plait.Optimizer, text: jax.Array) -> jax.Array:
    loss, grads = plait.value_and_grad(loss_of, argnums=plait.DiffState(0, optimizer.wrt))(model, text)
    optimizer.update(model, grads)
    return loss


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

    linears = plait.select(model, plait.Linear)
    plait.add_lora(linears, options.rank, alpha=2 * options.rank, rngs=plait.Rngs(1))
    # A higher rate for the second factor, which starts at zero (arXiv:2402.12354), and the weights frozen.
    groups = {"**.lora_b": optax.adam(2e-2), plait.LoRAParam: optax.adam(5e-3), ...: None}
    optimizer = plait.Optimizer(model, [optax.clip_by_global_norm(1.0), groups], wrt=plait.Param)
    random = np.random.default_rng(0)
    for _ in range(options.tune):
        tune_step(model, optimizer, sample_batch(known, 16, options.length, random))

    adapters, weights = (plait.state(model, which) for which in (plait.LoRAParam, plait.Param))
    size, whole = (sum(leaf.size for leaf in jax.tree.leaves(state)) for state in (adapters, weights))
    found = {"before": before, "after": float(evaluate(model, held_out)), "share": size / (whole - size)}
    plait.use_lora(model, None)
    assert abs(float(evaluate(model, held_out)) - before) < 1e-3, "the weights stay"
    plait.use_lora(model, "default")
    plait.merge_lora(model)  # for use: it costs what the model cost before
    found["merged"] = float(evaluate(model, held_out))
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
