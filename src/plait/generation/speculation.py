"""Speculative decoding: a small model proposes tokens, and the model checks all of them in one call.

A proposal is accepted with probability ``min(1, p / q)``, where ``p`` is what the model and ``q`` what the draft gives
it. At the first that is rejected, a token is drawn from ``max(p - q, 0)`` instead; if none is, one more from ``p``. So
each sequence grows by one token or more in each turn, and its tokens have the distribution of the model alone.

Reference: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, arXiv:2211.17192.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import ShapeError
from ..typing import Array
from .decoder import logits_of, set_positions
from .progress import Progress, folded
from .sampling import Sampling, draw, log_probabilities, seen_in


def speculate(decoder: Any, draft: Any, progress: Progress, sampling: Sampling, number: int) -> Progress:
    """One turn: up to ``number`` proposals of the draft, and one token of the model."""
    keys = progress.keys_of_step()
    proposals, guessed, seen = _proposals(draft, progress, sampling, number, keys)
    set_positions(decoder, progress.lengths - 1)
    logits = logits_of(decoder, jnp.concatenate([progress.last(), proposals], axis=1))
    _check_vocabulary(logits, guessed)
    known = jnp.stack([log_probabilities(logits[:, i], sampling, seen[i]) for i in range(number + 1)], axis=1)
    p, q = jnp.exp(known), jnp.exp(guessed)
    at = proposals[..., None]
    chances = (jnp.take_along_axis(each, at, axis=2)[..., 0] for each in (p[:, :-1], q))
    accepted = _accepted(*chances, keys=None if keys is None else folded(keys, number))
    there = accepted[:, None, None]
    p, q = (jnp.take_along_axis(each, there, axis=1)[:, 0] for each in (p, jnp.pad(q, ((0, 0), (0, 1), (0, 0)))))
    rest = jnp.maximum(p - q, 0)
    rest = jnp.where(jnp.any(rest > 0, axis=1, keepdims=True), rest, p)  # rounding alone can leave nothing
    extra = draw(None if keys is None else folded(keys, number + 1), jnp.log(rest))
    new = jnp.pad(proposals, ((0, 0), (0, 1))).at[jnp.arange(len(extra)), accepted].set(extra)
    return progress.with_tokens(new, accepted + 1)


def _proposals(
    draft: Any, progress: Progress, sampling: Sampling, number: int, keys: Array | None
) -> tuple[Array, Array, list[Array | None]]:
    """Tokens of the draft, ``(batch, number)``, their distributions, and what each sequence had before each of them."""
    token, tokens, distributions, seen = progress.last()[:, 0], [], [], []
    for i in range(number + 1):  # the last proposal is passed on as well, so that the draft's cache has all of them
        set_positions(draft, progress.lengths - 1 + i)
        logits = logits_of(draft, token[:, None])[:, 0]
        seen.append(_seen(progress, sampling, tokens, logits.shape[-1]))
        if i < number:
            distributions.append(log_probabilities(logits, sampling, seen[-1]))
            token = draw(None if keys is None else folded(keys, i), distributions[-1])
            tokens.append(token)
    return jnp.stack(tokens, axis=1), jnp.stack(distributions, axis=1), seen


def _seen(progress: Progress, sampling: Sampling, proposals: list[Array], vocabulary: int) -> Array | None:
    if sampling.repetition_penalty is None:
        return None
    seen = seen_in(progress.tokens, progress.lengths, vocabulary)
    for each in proposals:
        seen |= jax.nn.one_hot(each, vocabulary, dtype=bool)
    return seen


def _accepted(p: Array, q: Array, keys: Array | None) -> Array:
    """How many proposals are accepted, ``(batch,)``, by the probabilities that both models give them."""
    share: Any = 0 if keys is None else jax.vmap(lambda key: jax.random.uniform(key, p.shape[1:], p.dtype))(keys)
    return jnp.sum(jnp.cumprod((share * q < p).astype(jnp.int32), axis=1), axis=1)


def _check_vocabulary(logits: Array, guessed: Array) -> None:
    if logits.shape[-1] != guessed.shape[-1]:
        raise ShapeError(
            "the draft has another vocabulary than the model",
            found=f"{guessed.shape[-1]} logits of the draft, {logits.shape[-1]} of the model",
            expected="the same tokens in both",
            do="choose a draft that was trained with the same tokenizer",
        )
