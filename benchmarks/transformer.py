"""One block of a transformer: plain functions of dicts of arrays, and the same as a module of plait or Flax."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp

WIDTH, HEADS, LENGTH = 32, 4, 8


def attend(q: Any, k: Any, v: Any) -> Any:
    """Attention of several heads, without their projections."""

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:-1], HEADS, WIDTH // HEADS)

    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", heads(q), heads(k)) / 8.0)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, heads(v)).reshape(q.shape)


def _norm(p: Any, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    square = (x * x).mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.maximum(square - mean * mean, 0.0) + 1e-6) * p["scale"]
    return (x - mean) * scale + p["bias"]


def _linear(p: Any, x: Any) -> Any:
    return jax.lax.dot_general(x, p["kernel"], (((x.ndim - 1,), (0,)), ((), ()))) + p["bias"]


def block(p: Any, x: Any) -> Any:
    """The block, on its arrays."""
    h = _norm(p["norm1"], x)
    x = x + _linear(p["out"], attend(_linear(p["q"], h), _linear(p["k"], h), _linear(p["v"], h)))
    h = _norm(p["norm2"], x)
    return x + _linear(p["down"], jax.nn.gelu(_linear(p["up"], h)))


def parameters() -> Any:
    """The arrays of one block."""

    def linear(i: int, o: int) -> Any:
        return {"kernel": jnp.ones((i, o)), "bias": jnp.zeros(o)}

    def norm() -> Any:
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    square = {name: linear(WIDTH, WIDTH) for name in ("q", "k", "v", "out")}
    mlp = {"up": linear(WIDTH, 4 * WIDTH), "down": linear(4 * WIDTH, WIDTH)}
    return {**square, **mlp, "norm1": norm(), "norm2": norm()}


def block_class(nnx: types.ModuleType) -> type:
    """The block as a module of one library."""

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
            self.q, self.k, self.v, self.out = (nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(4))
            self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            h = self.norm1(x)
            x = x + self.out(attend(self.q(h), self.k(h), self.v(h)))
            return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))

    return Block
