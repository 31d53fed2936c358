"""Eager calls: layers called without ``jit``, as in a notebook, beside plain ``jnp`` code of the same mathematics.

The models of ``whole_models`` in evaluation, small enough that the calls and not the arithmetic are measured, and one
linear layer with its activation. All contenders but Equinox have equal parameters.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from .measure import QUICK, Effort, Loop, compare
from .table import Table
from .whole_models import MODELS, Size, _conv, _linear, _plain, _pool, plain_transformer

BUDGET = 1.15
SIZE = Size(batch=4, width=32, length=16, depth=1)
FLOOR = "plain jnp"


def run(*, quick: bool = False) -> Iterator[Table]:
    """One table: the calling thread's time for one call, over that of the plain code."""
    table = Table(
        "eager: a call of a model without jit; host time over plain jnp code",
        ["model", "contender", "µs", "ratio", "quartiles"],
        remarks=[f"Budget of plait: {BUDGET:.2f}, 1.10 for Linear + relu."],
    )
    for name in ("Linear + relu", *MODELS):
        loops = {contender: _loop(call) for contender, call in contenders(name).items()}
        # Flax and Equinox make the body of their loop anew, so JAX compiles it in each call.
        slow = {each: loops.pop(each) for each in ("Flax", "Equinox") if name == "LSTM" and each in loops}
        timings = compare(loops, QUICK if quick else Effort(rounds=101, round_us=4_000.0))
        if slow:
            few = compare({FLOOR: loops[FLOOR], **slow}, Effort(rounds=3, round_us=1.0, fewest_calls=1))
            timings |= {each: few[each] for each in slow}
        for contender, timing in timings.items():
            low, _, high = timing.quartiles
            table.rows.append([name, contender, timing.us, timing.ratio, f"{low:.2f} to {high:.2f}"])
    yield table


def _loop(call: Callable[[], Any]) -> Loop:
    def loop(count: int) -> Any:
        return [call() for _ in range(count)]

    return loop


def contenders(name: str) -> dict[str, Callable[[], Any]]:
    """By name, one call; Flax and Equinox where they are installed."""
    shape = (SIZE.length, SIZE.length, 1) if name == "conv net" else (SIZE.length, SIZE.width)
    x = jax.random.normal(jax.random.key(0), (SIZE.batch, *shape))
    found = {FLOOR: lambda: None, FLOOR + " again": lambda: None}
    for library in ("plait", "flax.nnx"):
        try:
            nnx = importlib.import_module(library)
        except ImportError:
            continue
        model = _linear_relu(nnx) if name == "Linear + relu" else MODELS[name][0](nnx, SIZE)
        model.eval()
        if library == "plait":
            params, stats = (_plain(nnx.to_pure_dict(nnx.state(model, kind))) for kind in (nnx.Param, nnx.BatchStat))
            found[FLOOR] = found[FLOOR + " again"] = _plain_call(name, params, stats, x)
        found["plait" if library == "plait" else "Flax"] = lambda model=model: model(x)
    if importlib.util.find_spec("equinox"):
        found |= importlib.import_module(f"{__package__}.eager_equinox").calls(name, SIZE, x)
    return found


def _linear_relu(nnx: Any) -> Any:
    class LinearRelu(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(SIZE.width, SIZE.width, rngs=nnx.Rngs(0))

        def __call__(self, x: Any) -> Any:
            return nnx.relu(self.linear(x))

    return LinearRelu()


def _plain_call(name: str, params: Any, stats: Any, x: Any) -> Callable[[], Any]:
    applied: dict[str, Callable[[], Any]] = {
        "Linear + relu": lambda: jax.nn.relu(_linear(params["linear"], x)),
        "conv net": lambda: _conv_net(params, stats, x),
        "transformer": lambda: plain_transformer(params, stats, x)[0],
        "LSTM": lambda: _lstm(params, x),
    }
    return applied[name]


def _conv_net(params: Any, stats: Any, x: Any) -> Any:
    """``plain_conv_net`` with the running averages."""
    for i in ("1", "2"):
        norm, old = params[f"norm{i}"], stats[f"norm{i}"]
        factor = jax.lax.rsqrt(old["var"] + 1e-5) * norm["scale"]
        x = _pool(jax.nn.relu((_conv(params[f"conv{i}"], x) - old["mean"]) * factor + norm["bias"]))
    x = jax.nn.relu(_linear(params["hidden"], x.reshape(x.shape[0], -1)))
    return _linear(params["head"], x)


def _lstm(params: Any, x: Any) -> Any:
    cell = params["rnn"]["cell"]
    zeros = jnp.zeros((x.shape[0], SIZE.width))
    _, outputs = jax.lax.scan(_lstm_step, (zeros, zeros, cell), jnp.swapaxes(x, 0, 1))
    return _linear(params["head"], jnp.swapaxes(outputs, 0, 1)[:, -1])


def _lstm_step(carry: Any, x: Any) -> Any:
    """A step that JAX keeps from call to call, since it is one function; a closure would be compiled in each call."""
    c, h, cell = carry
    total = x @ cell["dense_i"]["kernel"] + (h @ cell["dense_h"]["kernel"] + cell["dense_h"]["bias"])
    i, f, g, o = jnp.split(total, 4, -1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h, cell), h
