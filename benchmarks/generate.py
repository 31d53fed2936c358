"""Generating: ``plait.generate`` beside a decode loop written by hand, with the same weights and the same tokens."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

from .table import Table

HEAD = 16  # width of a head
VOCABULARY = 256
SIZES = ((2, 64, 1, 16, 64), (4, 128, 4, 16, 128), (4, 128, 4, 16, 64), (12, 256, 8, 32, 128))
TURNS = 21


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table: milliseconds of a call after the first, and the ratio within each turn."""
    table = Table(
        "generate: greedy tokens from a decoder with a static cache, relative to a loop over flat arrays",
        ["blocks, width, batch, prompt, new tokens", "by hand, ms", "plait, ms", "relative", "same tokens"],
    )
    for size in SIZES[:1] if quick else SIZES:
        table.rows.append([", ".join(map(str, size)), *_measured(*size, turns=3 if quick else TURNS)])
    yield table


def _measured(blocks: int, width: int, batch: int, length: int, count: int, turns: int) -> list[Any]:
    import jax
    import numpy as np

    import plait

    model = decoder_class()(blocks, width, plait.Rngs(0))
    prompt = np.asarray(jax.random.randint(jax.random.key(1), (batch, length), 0, VOCABULARY))
    arrays = plait.to_pure_dict(plait.state(model, plait.Param))
    by_hand = functools.partial(generate_by_hand, width // HEAD, count)

    def own() -> Any:
        return plait.generate(model, prompt, count).tokens

    same = bool((np.asarray(by_hand(arrays, prompt)) == np.asarray(own())).all())
    times = [(_timed(lambda: by_hand(arrays, prompt)), _timed(own)) for _ in range(turns)]
    hand, plaits = (sorted(each)[turns // 2] for each in zip(*times, strict=True))
    return [1e3 * hand, 1e3 * plaits, sorted(b / a for a, b in times)[turns // 2], str(same)]


def _timed(call: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    call().block_until_ready()
    return time.perf_counter() - begun


@functools.cache
def decoder_class() -> type:
    """A small decoder: attention and an MLP in each block, with norms before them."""
    import jax

    import plait

    class Block(plait.Module):
        def __init__(self, width: int, rngs: Any) -> None:
            self.norm1, self.norm2 = (plait.RMSNorm(width, rngs=rngs) for _ in range(2))
            self.attention = plait.MultiHeadAttention(width // HEAD, width, use_bias=False, decode=False, rngs=rngs)
            self.up = plait.Linear(width, 4 * width, use_bias=False, rngs=rngs)
            self.down = plait.Linear(4 * width, width, use_bias=False, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x), is_causal=True)
            return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))

    class Decoder(plait.Module):
        def __init__(self, blocks: int, width: int, rngs: Any) -> None:
            self.embed = plait.Embed(VOCABULARY, width, rngs=rngs)
            self.blocks = [Block(width, rngs) for _ in range(blocks)]
            self.norm = plait.RMSNorm(width, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.embed.attend(self.norm(x))

    return Decoder


def generate_by_hand(heads: int, count: int, arrays: Any, prompt: Any) -> Any:
    """What an engineer would write: one program for the whole call, with a cache of exactly the needed length."""
    return _by_hand(arrays, prompt, heads=heads, count=count)


def _by_hand_program() -> Any:
    import jax
    import jax.numpy as jnp

    def norm(scale: Any, x: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def step(arrays: Any, caches: Any, tokens: Any, at: Any) -> Any:
        """Logits of the last of these tokens, and the caches with all of them."""
        x, new = arrays["embed"]["embedding"][tokens], []
        for block, (keys, values) in zip(arrays["blocks"].values(), caches, strict=True):
            h, own = norm(block["norm1"]["scale"], x), block["attention"]
            q, k, v = (jnp.einsum("blw,whd->blhd", h, own[name]["kernel"]) for name in ("query", "key", "value"))
            keys = jax.lax.dynamic_update_slice_in_dim(keys, k, at, 1)
            values = jax.lax.dynamic_update_slice_in_dim(values, v, at, 1)
            seen = jnp.arange(keys.shape[1])[None] <= (at + jnp.arange(tokens.shape[1]))[:, None]
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, keys) / q.shape[-1] ** 0.5
            weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, values)
            x = x + jnp.einsum("bqhd,hdw->bqw", mixed, own["out"]["kernel"])
            h = norm(block["norm2"]["scale"], x)
            x = x + jax.nn.gelu(h @ block["up"]["kernel"]) @ block["down"]["kernel"]
            new.append((keys, values))
        return norm(arrays["norm"]["scale"], x[:, -1]) @ arrays["embed"]["embedding"].T, new

    @functools.partial(jax.jit, static_argnames=("heads", "count"))
    def generate(arrays: Any, prompt: Any, *, heads: int, count: int) -> Any:
        batch, length = prompt.shape
        shape = batch, length + count, heads, HEAD
        caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in arrays["blocks"]]
        logits, caches = step(arrays, caches, prompt, 0)

        def turn(carry: Any, at: Any) -> Any:
            token, caches = carry
            logits, caches = step(arrays, caches, token[:, None], at)
            return (jnp.argmax(logits, -1), caches), token

        first = jnp.argmax(logits, -1)
        _, tokens = jax.lax.scan(turn, (first, caches), length + jnp.arange(count))
        return tokens.T

    return generate


@functools.cache
def _compiled() -> Any:
    return _by_hand_program()


def _by_hand(arrays: Any, prompt: Any, **sizes: int) -> Any:
    return _compiled()(arrays, prompt, **sizes)
