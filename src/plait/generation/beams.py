"""Beam search: the most likely continuations, among those whose beginnings are among the most likely as well.

Reference: Wu et al., "Google's Neural Machine Translation System", 2016, arXiv:1609.08144, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError
from ..transforms.jit.function import jit
from ..transforms.loops import while_loop
from ..typing import Array
from .continuation import check_lengths, fill
from .decoder import bucket, decoder_for, logits_of, set_positions, take_sequences
from .prompts import resolve_prompts


class Beams(NamedTuple):
    """Continuations of each prompt, the best first. For one prompt without a batch axis, nothing has one.

    Attributes:
        tokens: ``(batch, beams, max_new_tokens)``, int32; ``pad`` after the end of a sequence.
        lengths: ``(batch, beams)``, int32: how many tokens each has, with the stop token.
        scores: ``(batch, beams)``, float32: the sum of the log probabilities over ``length ** length_penalty``.
    """

    tokens: Array
    lengths: Array
    scores: Array


class _Search(NamedTuple):
    """The beams of a batch, all after the same number of steps.

    Attributes:
        tokens: ``(batch, beams, max_new_tokens)``, int32.
        last: ``(batch, beams)``, int32: the token after which the next comes.
        lengths: ``(batch, beams)``, int32: how many new tokens there are.
        sums: ``(batch, beams)``: the sums of their log probabilities.
        done: ``(batch, beams)``.
        step: ``()``, int32.
        starts: ``(batch,)``, int32: the lengths of the prompts.
        stop: ``(count,)``, int32.
        penalty: ``()``, float32.
    """

    tokens: Array
    last: Array
    lengths: Array
    sums: Array
    done: Array
    step: Array
    starts: Array
    stop: Array
    penalty: Array


def beam_search(
    model: Any,
    prompt: Any,
    max_new_tokens: int,
    *,
    beams: int = 4,
    length_penalty: float = 0.0,
    stop: int | Sequence[int] = (),
    pad: int = 0,
    mask: Any = None,
    max_length: int | None = None,
) -> Beams:
    """The most likely continuations of prompts that a beam search finds.

    In each step, of all continuations of the beams by one token, those with the best scores are the next beams. A beam
    with a stop token has ended, and stays as long as its score is good enough. One beam is greedy decoding.

    Args:
        model, prompt, max_new_tokens, stop, mask, max_length: as in ``plait.generate``.
        beams: how many continuations to keep of each prompt.
        length_penalty: the sum of the log probabilities is divided by ``length ** length_penalty``: the larger it is,
            the longer the sequences.
        pad: the token in the result after the end of a sequence.

    Raises:
        ArgumentError, ArgumentTypeError, ShapeError: as in ``plait.generate``; or ``beams`` is not positive.

    Example:
        >>> class LM(plait.Module):
        ...     def __init__(self, *, rngs):
        ...         self.embed = plait.Embed(11, 8, rngs=rngs)
        ...         self.attention = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        ...     def __call__(self, tokens):
        ...         return self.embed.attend(self.attention(self.embed(tokens), is_causal=True))
        >>> found = plait.generation.beam_search(LM(rngs=plait.Rngs(0)), [3, 1, 4], 5, beams=3)
        >>> found.tokens.shape, bool(found.scores[0] >= found.scores[1])
        ((3, 5), True)
    """
    if beams < 1:
        raise ArgumentError("there is no beam", found=f"beams={beams}", expected="1 or more", do="omit beams")
    prompts = resolve_prompts(prompt, mask)
    batch, longest = prompts.tokens.shape
    check_lengths(longest + max_new_tokens, max_new_tokens, max_length)
    tokens = np.zeros((batch, bucket(longest, max_length)), np.int32)
    tokens[:, :longest] = prompts.tokens
    last = prompts.tokens[np.arange(batch), prompts.lengths - 1]
    search = _Search(
        tokens=jnp.full((batch, beams, max_new_tokens), pad, jnp.int32),
        last=jnp.broadcast_to(jnp.asarray(last)[:, None], (batch, beams)),
        lengths=jnp.zeros((batch, beams), jnp.int32),
        sums=jnp.broadcast_to(jnp.where(jnp.arange(beams) == 0, 0.0, -jnp.inf), (batch, beams)),  # equal at first
        done=jnp.zeros((batch, beams), bool),
        step=jnp.int32(0),
        starts=jnp.asarray(prompts.lengths),
        stop=jnp.asarray(np.atleast_1d(np.asarray(stop, np.int32))),
        penalty=jnp.float32(length_penalty),
    )
    with decoder_for(model, batch * beams, bucket(longest + max_new_tokens, max_length)) as decoder:
        fill(decoder, jnp.asarray(np.repeat(tokens, beams, axis=0)))
        search = _searched(decoder, search)
    found = Beams(search.tokens, search.lengths, _scores(search.sums, search.lengths, search.penalty))
    return Beams(*(each[0] for each in found)) if prompts.is_single else found


@jit(donate=Cache, graph=True, graph_updates=True)
def _searched(decoder: Any, search: _Search) -> _Search:
    def goes_on(carry: tuple[Any, _Search]) -> Array:
        return (carry[1].step < carry[1].tokens.shape[2]) & ~jnp.all(carry[1].done)

    return while_loop(
        goes_on, lambda carry: (carry[0], _step(*carry)), (decoder, search), graph=True, graph_updates=True
    )[1]


def _step(decoder: Any, search: _Search) -> _Search:
    """The best continuations of the beams by one token, and the caches of the sequences that they continue."""
    batch, beams, _ = search.tokens.shape
    positions = search.starts[:, None] - 1 + jnp.broadcast_to(search.step, search.lengths.shape)
    set_positions(decoder, positions.reshape(-1))
    logits = logits_of(decoder, search.last.reshape(-1, 1))
    chances = jax.nn.log_softmax(logits).reshape(batch, beams, -1)
    vocabulary = chances.shape[-1]
    # A beam that has ended is continued once, by nothing.
    nothing = jnp.where(jnp.arange(vocabulary) == 0, 0, -jnp.inf).astype(chances.dtype)
    sums = search.sums[..., None] + jnp.where(search.done[..., None], nothing[None, None], chances)
    lengths = search.lengths + jnp.where(search.done, 0, 1)
    scores = _scores(sums, lengths[..., None], search.penalty).reshape(batch, -1)
    _, places = jax.lax.top_k(scores, beams)
    parents, drawn = places // vocabulary, (places % vocabulary).astype(jnp.int32)
    take_sequences(decoder, (parents + jnp.arange(batch)[:, None] * beams).reshape(-1))
    done = jnp.take_along_axis(search.done, parents, axis=1)
    tokens = jnp.take_along_axis(search.tokens, parents[..., None], axis=1)
    written = jnp.where(done[..., None], tokens, tokens.at[:, :, search.step].set(drawn))
    return search._replace(
        tokens=written,
        last=drawn,
        lengths=jnp.take_along_axis(lengths, parents, axis=1),
        sums=jnp.take_along_axis(sums.reshape(batch, -1), places, axis=1),
        done=done | jnp.any(drawn[..., None] == search.stop[None, None], axis=-1),
        step=search.step + 1,
    )


def _scores(sums: Array, lengths: Array, penalty: Array) -> Array:
    return sums / lengths.astype(sums.dtype) ** penalty.astype(sums.dtype)
