"""Blocks of which the tests make lists and stacks."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

import plait

FEATURES = 4


class Block(plait.Module):
    """Parameters, statistics, a random stream and a value that is sown."""

    def __init__(self, *, rngs: plait.Rngs) -> None:
        self.norm = plait.BatchNorm(FEATURES, rngs=rngs)
        self.linear = plait.Linear(FEATURES, FEATURES, rngs=rngs)
        self.dropout = plait.Dropout(0.3, rngs=rngs)

    def __call__(self, x: Any, scale: Any = 1.0) -> Any:
        y = self.dropout(jnp.tanh(self.linear(self.norm(x)))) * scale
        if "_pytree__sown" in vars(self):
            self.sow(plait.Intermediate, "inner", y)
        return x + 0.5 * y


class Wider(Block):
    """Another class, with other parameters."""

    def __init__(self, *, rngs: plait.Rngs) -> None:
        super().__init__(rngs=rngs)
        self.out = plait.Linear(FEATURES, FEATURES, use_bias=False, rngs=rngs)

    def __call__(self, x: Any, scale: Any = 1.0) -> Any:
        return super().__call__(x, scale) + 0.1 * self.out(x)


class Third(Block):
    """A third."""


KINDS = (Block, Wider, Third)


def blocks_of(depth: int, period: int = 1, seed: int = 0) -> list[Any]:
    """A list of blocks, made from one source of keys."""
    rngs = plait.Rngs(seed, dropout=seed + 1)
    return [KINDS[i % period](rngs=rngs) for i in range(depth)]


class Net(plait.Module):
    """A model that calls its blocks one after the other, or their stack."""

    def __init__(self, blocks: Any) -> None:
        self.blocks = blocks

    def __call__(self, x: Any, scale: Any = 1.0) -> Any:
        if isinstance(self.blocks, plait.Stack):
            return self.blocks(x, scale)
        for block in self.blocks:
            x = block(x, scale)
        return x


def pair(depth: int, period: int = 1, **options: Any) -> tuple[Net, Net]:
    """A model with a list, and the same with a stack."""
    stack = plait.Stack(blocks_of(depth, period), period=period if depth >= period else depth, **options)
    return Net(plait.List(blocks_of(depth, period))), Net(stack)
