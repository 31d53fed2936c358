"""Sampling: the distribution of the next token, and a draw from it.

Each setting narrows the distribution, in the order of the fields of ``Sampling``; the thresholds keep tokens of equal
probability together. All functions take one vocabulary in each row, and one value of a setting for each row.

References: Keskar et al., "CTRL", 2019, arXiv:1909.05858 (repetition penalty); Fan et al., "Hierarchical Neural Story
Generation", 2018, arXiv:1805.04833 (top-k); Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020,
arXiv:1904.09751 (top-p); Nguyen et al., "Min-p Sampling", 2024, arXiv:2407.01082.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..typing import Array


class Sampling(NamedTuple):
    """The settings of a draw, ``(batch,)`` each; ``None`` is off, and is not computed."""

    repetition_penalty: Array | None = None
    temperature: Array | None = None
    top_k: Array | None = None
    top_p: Array | None = None
    min_p: Array | None = None


_RULES: dict[str, tuple[Any, str]] = {
    "repetition_penalty": (lambda x: x > 0, "positive numbers; 1 changes nothing"),
    "temperature": (lambda x: x >= 0, "numbers from 0 on; 0 takes the most likely token"),
    "top_k": (lambda x: x >= 1, "integers from 1 on"),
    "top_p": (lambda x: (x > 0) & (x <= 1), "numbers above 0, up to 1"),
    "min_p": (lambda x: (x >= 0) & (x <= 1), "numbers from 0 to 1"),
}


def resolve_sampling(batch: int, **settings: Any) -> Sampling:
    """The settings, one value for each sequence of the batch; a temperature of 0 is off, and so are its filters.

    Raises:
        ArgumentError: a value is outside of its range.
        ShapeError: a setting is neither one number nor one for each sequence.
    """
    unknown = sorted(settings.keys() - _RULES.keys())
    if unknown:
        raise ArgumentTypeError(
            "there is no such setting",
            at=", ".join(unknown),
            found=f"{unknown[0]}={settings[unknown[0]]!r:.80}",
            expected=f"{', '.join(_RULES)}, or an argument of plait.generation.stream",
            do="correct the name; for beams, plait.generation.beam_search",
        )
    given = {name: np.asarray(value) for name, value in settings.items() if value is not None}
    for name, value in given.items():
        is_valid, expected = _RULES[name]
        if not np.all(is_valid(value)):
            message = f"{name} is outside of its range"
            raise ArgumentError(message, found=f"{name}={value!s}", expected=expected, do=f"choose another {name}")
        if value.shape not in ((), (batch,)):
            raise ShapeError(
                f"{name} has the wrong shape",
                found=f"shape {value.shape}",
                expected=f"one number, or one for each of the {batch} prompts",
                do=f"for example {name}={value.flat[0]}",
            )
    if not given.get("temperature", np.zeros(())).any():
        given = {name: value for name, value in given.items() if name == "repetition_penalty"}
    types = {name: jnp.int32 if name == "top_k" else jnp.float32 for name in given}
    return Sampling(**{name: jnp.broadcast_to(value.astype(types[name]), (batch,)) for name, value in given.items()})


def log_probabilities(logits: Array, sampling: Sampling, seen: Array | None) -> Array:
    """The distribution of the next token, ``(batch, vocabulary)``: logarithms, ``-inf`` for what is never drawn.

    Args:
        logits: ``(batch, vocabulary)``.
        seen: which tokens the sequence has, ``(batch, vocabulary)``; needed for the repetition penalty alone.
    """
    sampling = jax.tree.map(lambda setting: setting[:, None], sampling)
    if sampling.repetition_penalty is not None and seen is not None:
        logits = _repeated_less(logits, seen, sampling.repetition_penalty)
    if sampling.temperature is None:
        return _most_likely(logits)
    greedy, temperature = logits, sampling.temperature
    logits = logits / jnp.where(temperature > 0, temperature, 1)
    for narrow, setting in ((_top_k, sampling.top_k), (_top_p, sampling.top_p), (_min_p, sampling.min_p)):
        logits = logits if setting is None else narrow(logits, setting)
    return jnp.where(temperature > 0, jax.nn.log_softmax(logits), _most_likely(greedy))


def draw(keys: Array | None, log_probabilities: Array) -> Array:
    """One token for each row, each from its own key; without keys the most likely, ``(batch,)`` int32."""
    if keys is None:
        return jnp.argmax(log_probabilities, axis=-1).astype(jnp.int32)
    return jax.vmap(jax.random.categorical)(keys, log_probabilities).astype(jnp.int32)


def seen_in(tokens: Array, lengths: Array, vocabulary: int) -> Array:
    """Which tokens are among the first of each row: ``(batch, vocabulary)``, bool.

    Args:
        tokens: ``(batch, length)``.
        lengths: how many of each row count.
    """
    counts = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    rows = jnp.arange(tokens.shape[0])[:, None]
    return jnp.zeros((tokens.shape[0], vocabulary), bool).at[rows, tokens].max(counts)


def _repeated_less(logits: Array, seen: Array, penalty: Array) -> Array:
    return jnp.where(seen, jnp.where(logits < 0, logits * penalty, logits / penalty), logits)


def _most_likely(logits: Array) -> Array:
    best = jnp.argmax(logits, axis=-1, keepdims=True)
    return jnp.where(jnp.arange(logits.shape[-1])[None] == best, 0, -jnp.inf).astype(logits.dtype)


def _from(logits: Array, threshold: Array) -> Array:
    return jnp.where(logits >= threshold, logits, -jnp.inf)


def _top_k(logits: Array, k: Array) -> Array:
    """The ``k`` most likely."""
    falling = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    return _from(logits, jnp.take_along_axis(falling, jnp.minimum(k, logits.shape[-1]) - 1, axis=-1))


def _top_p(logits: Array, p: Array) -> Array:
    """The fewest of the most likely whose probabilities sum to ``p`` or more."""
    falling = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    probabilities = jax.nn.softmax(falling)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    last = jnp.maximum(jnp.sum(before < p, axis=-1, keepdims=True), 1) - 1
    return _from(logits, jnp.take_along_axis(falling, last, axis=-1))


def _min_p(logits: Array, p: Array) -> Array:
    """The tokens whose probability is at least ``p`` times the largest."""
    return _from(logits, jnp.max(logits, axis=-1, keepdims=True) + jnp.log(p))
