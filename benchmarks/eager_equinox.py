"""The models of ``eager`` in Equinox: the same architectures, of one example, mapped over the batch as one does there.

Its layers draw their parameters in their own way, so only the time of a call can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from .whole_models import CLASSES, HEADS, Size


class ConvNet(eqx.Module):
    """Two convolutions with batch statistics and pooling, then two layers."""

    convs: list[eqx.nn.Conv2d]
    norms: list[eqx.nn.BatchNorm]
    pool: eqx.nn.MaxPool2d
    hidden: eqx.nn.Linear
    head: eqx.nn.Linear

    def __init__(self, size: Size, key: Any) -> None:
        keys = jax.random.split(key, 4)
        self.convs = [
            eqx.nn.Conv2d(inputs, outputs, 3, padding="SAME", key=k)
            for inputs, outputs, k in ((1, 16, keys[0]), (16, 32, keys[1]))
        ]
        self.norms = [eqx.nn.BatchNorm(channels, axis_name="batch", mode="batch") for channels in (16, 32)]
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.hidden = eqx.nn.Linear((size.length // 4) ** 2 * 32, size.width, key=keys[2])
        self.head = eqx.nn.Linear(size.width, CLASSES, key=keys[3])

    def __call__(self, x: Any, state: Any) -> tuple[Any, Any]:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x, state = norm(conv(x), state)
            x = self.pool(jax.nn.relu(x))
        return self.head(jax.nn.relu(self.hidden(x.reshape(-1)))), state


class Block(eqx.Module):
    """Attention and a perceptron, each after a normalisation."""

    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.norm1, self.norm2 = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
        self.attention = eqx.nn.MultiheadAttention(HEADS, width, key=keys[0], **biases)
        self.up = eqx.nn.Linear(width, 4 * width, key=keys[1])
        self.down = eqx.nn.Linear(4 * width, width, key=keys[2])

    def __call__(self, x: Any) -> Any:
        h = jax.vmap(self.norm1)(x)
        x = x + self.attention(h, h, h)
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norm2)(x))))


class Transformer(eqx.Module):
    """Blocks, a mean over the length, and a layer."""

    blocks: list[Block]
    head: eqx.nn.Linear

    def __init__(self, size: Size, key: Any) -> None:
        *keys, last = jax.random.split(key, size.depth + 1)
        self.blocks = [Block(size.width, k) for k in keys]
        self.head = eqx.nn.Linear(size.width, CLASSES, key=last)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(0))


class Recurrent(eqx.Module):
    """One LSTM over time; the classes are read from its last output."""

    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __init__(self, size: Size, key: Any) -> None:
        keys = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(size.width, size.width, key=keys[0])
        self.head = eqx.nn.Linear(size.width, CLASSES, key=keys[1])

    def __call__(self, x: Any) -> Any:
        def step(carry: Any, row: Any) -> Any:
            return self.cell(row, carry), None

        zeros = jnp.zeros(self.cell.hidden_size)
        (hidden, _), _ = jax.lax.scan(step, (zeros, zeros), x)
        return self.head(hidden)


def calls(name: str, size: Size, x: Any) -> dict[str, Callable[[], Any]]:
    """By name, one call of the model for a batch; of a linear layer also one for a single row."""
    key = jax.random.key(0)
    if name == "conv net":
        model, state = eqx.nn.make_with_state(ConvNet)(size, key)
        model = eqx.nn.inference_mode(model)
        batch = jax.vmap(model, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
        images = jnp.moveaxis(x, -1, 1)  # channels first
        return {"Equinox": lambda: batch(images, state)[0]}
    if name == "Linear + relu":
        layer, row = eqx.nn.Linear(size.width, size.width, key=key), x[0, 0]
        rows = jax.vmap(jax.vmap(layer))
        return {"Equinox": lambda: jax.nn.relu(rows(x)), "Equinox, one row": lambda: jax.nn.relu(layer(row))}
    model = {"transformer": Transformer, "LSTM": Recurrent}[name](size, key)
    return {"Equinox": lambda: jax.vmap(model)(x)}
