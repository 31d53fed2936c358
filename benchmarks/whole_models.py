"""Whole models: steady-state training steps of a conv net, a transformer and an LSTM, beside plain JAX and Flax.

All contenders do the same mathematics, with Adam from Optax, on equal parameters. A step is waited for, so what is
timed is the work of the devices and whatever of the host does not hide behind it. Rounds are interleaved; the figure is
the median of the ratios within a round.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .table import Table

BUDGET = 1.00
Step = Callable[[], Any]  # takes one step and returns what is to be waited for


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the three models are."""

    batch: int
    width: int
    length: int
    depth: int


FULL = Size(batch=32, width=128, length=64, depth=4)
WIDE = Size(batch=64, width=1024, length=128, depth=8)  # for a GPU
TINY = Size(batch=2, width=8, length=8, depth=1)
HEADS, CLASSES = 4, 10
TX = optax.adam(1e-4)


# Modules, for plait and for Flax --------------------------------------------------------------------------


def conv_net(nnx: types.ModuleType, size: Size) -> Any:
    """Two convolutions with batch statistics and pooling, then two layers."""

    class ConvNet(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
            self.norm1 = nnx.BatchNorm(16, rngs=rngs)
            self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
            self.norm2 = nnx.BatchNorm(32, rngs=rngs)
            self.hidden = nnx.Linear(size.length // 4 * (size.length // 4) * 32, size.width, rngs=rngs)
            self.head = nnx.Linear(size.width, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
                x = nnx.max_pool(nnx.relu(norm(conv(x))), (2, 2), (2, 2))
            return self.head(nnx.relu(self.hidden(x.reshape(x.shape[0], -1))))

    return ConvNet(nnx.Rngs(0))


def transformer(nnx: types.ModuleType, size: Size) -> Any:
    """Blocks of attention and a perceptron, each after a normalisation."""

    class Block(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.norm1, self.norm2 = (nnx.LayerNorm(size.width, rngs=rngs) for _ in range(2))
            self.attention = nnx.MultiHeadAttention(HEADS, size.width, decode=False, rngs=rngs)
            self.up = nnx.Linear(size.width, 4 * size.width, rngs=rngs)
            self.down = nnx.Linear(4 * size.width, size.width, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nnx.gelu(self.up(self.norm2(x))))

    class Transformer(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.blocks = nnx.List([Block(rngs) for _ in range(size.depth)])
            self.head = nnx.Linear(size.width, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean(1))

    return Transformer(nnx.Rngs(0))


def lstm(nnx: types.ModuleType, size: Size) -> Any:
    """One recurrent layer over time; the classes are read from its last output."""

    class Classifier(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(size.width, size.width, rngs=rngs))
            self.head = nnx.Linear(size.width, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(self.rnn(x)[:, -1])

    return Classifier(nnx.Rngs(0))


def modules_step(nnx: types.ModuleType, make: Callable[..., Any], size: Size, x: Any, y: Any) -> Step:
    """A training step on objects."""
    model = make(nnx, size)
    optimizer = nnx.Optimizer(model, TX, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model, x, y: _loss(model(x), y))(model, x, y)
        optimizer.update(model, grads)
        return loss

    return lambda: step(model, optimizer, x, y)


# Plain functions of dicts ---------------------------------------------------------------------------------


def _loss(logits: Any, y: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def _linear(p: Any, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def _conv(p: Any, x: Any) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, p["kernel"], (1, 1), "SAME", dimension_numbers=layout) + p["bias"]


def _normalised(p: Any, x: Any, axes: Any, epsilon: float) -> tuple[Any, Any, Any]:
    square = (x * x).mean(axes, keepdims=True)
    mean = x.mean(axes, keepdims=True)
    var = jnp.maximum(square - mean * mean, 0)
    return (x - mean) * (jax.lax.rsqrt(var + epsilon) * p["scale"]) + p["bias"], mean, var


def _pool(x: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def plain_conv_net(params: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    new = {}
    for i in ("1", "2"):
        x, mean, var = _normalised(params[f"norm{i}"], _conv(params[f"conv{i}"], x), (0, 1, 2), 1e-5)
        old = stats[f"norm{i}"]
        now = {"mean": mean.reshape(-1), "var": var.reshape(-1)}
        new[f"norm{i}"] = {k: 0.99 * old[k] + 0.01 * jax.lax.stop_gradient(now[k]) for k in now}
        x = _pool(jax.nn.relu(x))
    x = jax.nn.relu(_linear(params["hidden"], x.reshape(x.shape[0], -1)))
    return _linear(params["head"], x), new


def plain_transformer(params: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    def project(p: Any, x: Any) -> Any:
        return jax.lax.dot_general(x, p["kernel"], (((2,), (0,)), ((), ()))) + p["bias"]

    for p in params["blocks"]:
        h, _, _ = _normalised(p["norm1"], x, -1, 1e-6)
        q, k, v = (project(p["attention"][name], h) for name in ("query", "key", "value"))
        out = p["attention"]["out"]
        h = jax.lax.dot_general(jax.nn.dot_product_attention(q, k, v), out["kernel"], (((2, 3), (0, 1)), ((), ())))
        x = x + (h + out["bias"])
        h, _, _ = _normalised(p["norm2"], x, -1, 1e-6)
        x = x + _linear(p["down"], jax.nn.gelu(_linear(p["up"], h)))
    return _linear(params["head"], x.mean(1)), stats


def plain_lstm(params: Any, stats: Any, x: Any) -> tuple[Any, Any]:
    inputs, hidden = params["rnn"]["cell"]["dense_i"], params["rnn"]["cell"]["dense_h"]

    def step(carry: Any, x: Any) -> Any:
        c, h = carry
        i, f, g, o = jnp.split(x @ inputs["kernel"] + (h @ hidden["kernel"] + hidden["bias"]), 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    zeros = jnp.zeros((x.shape[0], hidden["kernel"].shape[0]))
    _, outputs = jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(x, 0, 1))
    return _linear(params["head"], jnp.swapaxes(outputs, 0, 1)[:, -1]), stats


def plain_step(apply: Callable[..., Any], params: Any, stats: Any, x: Any, y: Any) -> Step:
    """A training step on dicts of arrays, as one writes it without a library."""
    state = (params, stats, TX.init(params))

    @jax.jit
    def step(state: Any, x: Any, y: Any) -> Any:
        params, stats, opt_state = state

        def loss(params: Any) -> Any:
            logits, new = apply(params, stats, x)
            return _loss(logits, y), new

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = TX.update(grads, opt_state, params)
        return value, (optax.apply_updates(params, updates), stats, opt_state)

    def one() -> Any:
        nonlocal state
        value, state = step(state, x, y)
        return value, state

    return one


# The table ------------------------------------------------------------------------------------------------

MODELS = {
    "conv net": (conv_net, plain_conv_net),
    "transformer": (transformer, plain_transformer),
    "LSTM": (lstm, plain_lstm),
}


def steps(name: str, size: Size) -> dict[str, Step]:
    """The contenders for one model, which start with equal parameters."""
    nnx = importlib.import_module("plait")
    make, apply = MODELS[name]
    shape = (size.length, size.length, 1) if name == "conv net" else (size.length, size.width)
    x = jax.random.normal(jax.random.key(0), (size.batch, *shape))
    y = jnp.arange(size.batch) % CLASSES
    model = make(nnx, size)
    params, stats = (_plain(nnx.to_pure_dict(nnx.state(model, kind))) for kind in (nnx.Param, nnx.BatchStat))
    found = {"plain JAX": plain_step(apply, params, stats, x, y), "plait": modules_step(nnx, make, size, x, y)}
    try:
        flax = importlib.import_module("flax.nnx")
    except ImportError:
        return found
    return {**found, "Flax": modules_step(flax, make, size, x, y)}


def _plain(tree: Any) -> Any:
    """Dicts with the keys 0, 1, … as lists."""
    if not isinstance(tree, dict):
        return tree
    inner = {key: _plain(value) for key, value in tree.items()}
    return list(inner.values()) if inner and all(isinstance(key, int) for key in inner) else inner


def run(*, quick: bool = False, wide: bool = False) -> Iterator[Table]:
    """One table: wall time of a training step, and its ratio to plain JAX."""
    table = Table(
        "whole models: wall time of a training step with Adam, each waited for; the ratio is to plain JAX",
        ["model", "contender", "ms", "ratio", "quartiles", "largest difference of the losses"],
        remarks=[f"Budget of plait: {BUDGET:.2f}, within noise."],
    )
    rounds = 3 if quick else 60
    for name in MODELS:
        contenders = steps(name, TINY if quick else WIDE if wide else FULL)
        losses = {key: [_value(step()) for _ in range(3)] for key, step in contenders.items()}
        times = _measured(contenders, rounds)
        first = times["plain JAX"]
        for key, own in times.items():
            ratios = [a / b for a, b in zip(own, first, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            apart = max(abs(a - b) for a, b in zip(losses[key], losses["plain JAX"], strict=True))
            table.rows.append(
                [
                    name,
                    key,
                    statistics.median(own),
                    statistics.median(ratios),
                    f"{low:.3f} to {high:.3f}",
                    f"{apart:.1e}",
                ]
            )
    yield table


def _value(result: Any) -> float:
    return float(result[0] if isinstance(result, tuple) else result)


def _measured(contenders: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step of each, in turns whose order changes from round to round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for number in range(rounds):
        for name in order[number % len(order) :] + order[: number % len(order)]:
            start = time.perf_counter()
            jax.block_until_ready(contenders[name]())
            times[name].append((time.perf_counter() - start) * 1_000)
    return times
