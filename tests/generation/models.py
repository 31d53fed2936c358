"""Small language models of the tests, and the slow generation that the fast one is compared with."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

import plait

VOCABULARY = 13
PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5]]


class Block(plait.Module):
    """Attention and a hidden layer, with dropout, which generating turns off."""

    def __init__(self, *, rngs: plait.Rngs) -> None:
        rotary = functools.partial(plait.apply_rotary_embedding, interleaved=False)
        self.attention = plait.MultiHeadAttention(4, 8, num_kv_heads=2, decode=False, rotary_fn=rotary, rngs=rngs)
        self.mlp = plait.Linear(8, 8, rngs=rngs)
        self.dropout = plait.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(x, is_causal=True)
        return x + self.dropout(jnp.tanh(self.mlp(x)))


class LM(plait.Module):
    """A decoder with its blocks in a list or a stack."""

    def __init__(self, blocks: int = 2, *, stacked: bool = False, vocabulary: int = VOCABULARY, seed: int = 0) -> None:
        rngs = plait.Rngs(seed)
        self.embed = plait.Embed(vocabulary, 8, embedding_init=plait.initializers.normal(1.0), rngs=rngs)
        made = [Block(rngs=rngs) for _ in range(blocks)]
        self.blocks = plait.Stack(made) if stacked else made
        self.logits = plait.Linear(8, vocabulary, rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        if isinstance(self.blocks, plait.Stack):
            return self.logits(self.blocks(x))
        for block in self.blocks:
            x = block(x)
        return self.logits(x)


@functools.cache
def model_of(*, stacked: bool = False, seed: int = 0, blocks: int = 2) -> LM:
    return LM(blocks, stacked=stacked, seed=seed)


@plait.jit
def _logits(model: Any, tokens: Any) -> Any:
    return model(tokens)


def logits_after(model: Any, tokens: list[int], width: int = 24) -> np.ndarray:
    """The logits of the full forward pass after the last token, ``(vocabulary,)``; padding cannot reach them."""
    evaluated = plait.view(model, deterministic=True)
    padded = np.zeros((1, width), np.int32)
    padded[0, : len(tokens)] = tokens
    return np.asarray(_logits(evaluated, padded))[0, len(tokens) - 1]


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """What follows a prompt, by the full forward pass for each token."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(logits_after(model, tokens))))
    return tokens[len(prompt) :]
