"""``generate`` and ``stream``: the continuation of prompts, token by token, by a model with a decoding view.

Two programs are compiled for each batch size and bucket of lengths: one passes the prompts on to the caches, one is a
loop that continues them until all have ended, or for some turns. ``generate`` runs the loop once, ``stream`` one turn
at a time. Nothing else differs, so both return the same tokens.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core.rngs import Rngs, RngStream, as_key
from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..transforms.jit.function import jit
from ..transforms.loops import while_loop
from ..typing import Array, ArrayLike
from ..util.words import describe_type
from .decoder import bucket, decoder_for, logits_of, set_positions
from .progress import Progress, folded
from .prompts import Prompts, resolve_prompts
from .sampling import Sampling, draw, log_probabilities, resolve_sampling, seen_in


class Generated(NamedTuple):
    """What was generated, without the prompts. For one prompt without a batch axis, nothing has one.

    Attributes:
        tokens: ``(batch, max_new_tokens)``, int32; ``pad`` after the end of a sequence.
        lengths: ``(batch,)``, int32: how many tokens each sequence has, with the stop token.
        steps: how often the model was called after the prompts.
    """

    tokens: Array
    lengths: Array
    steps: int

    def to_list(self) -> list[Any]:
        """The tokens without padding, one list for each prompt."""
        tokens, lengths = np.asarray(self.tokens), np.asarray(self.lengths)
        if tokens.ndim == 1:
            return tokens[:lengths].tolist()
        return [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]


def generate(model: Any, prompt: Any, max_new_tokens: int, *, pad: int = 0, **options: Any) -> Generated:
    """Continue prompts with the tokens that a model predicts.

    The model is called as ``decoder(tokens)``, integers ``(batch, length)`` → logits ``(batch, length, vocabulary)``,
    where ``decoder`` is ``plait.view(model, decode=True, batch_size=..., max_length=..., per_sequence=True)``, in
    evaluation mode; so any model whose layers with a cache are ``MultiHeadAttention`` will do. Its variables are
    shared, and it is unchanged.

    Without a temperature the most likely token is taken. Prompts of a batch do not influence each other: each gets the
    tokens that it gets alone, unless two logits are within rounding of each other.

    Args:
        model: the model.
        prompt: integers, ``(length,)`` or ``(batch, length)``, or a list of sequences of different lengths.
        max_new_tokens: how many tokens each sequence gets at most.
        pad: the token in the result after the end of a sequence.
        **options: those of ``plait.generation.stream``: ``mask``, ``temperature``, ``top_k``, ``top_p``, ``min_p``,
            ``repetition_penalty``, ``stop``, ``max_length`` and ``rngs``.

    Raises:
        ArgumentError: the model has no decoding view; a prompt is empty; a setting is outside of its range; the
            sequences are longer than ``max_length``; or something is to be drawn without ``rngs``.
        ArgumentTypeError: the prompts are not integers, or are traced.
        ShapeError: an argument has the wrong shape, or the model does not return logits.

    Example:
        >>> class LM(plait.Module):
        ...     def __init__(self, *, rngs):
        ...         self.embed = plait.Embed(11, 8, rngs=rngs)
        ...         self.attention = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        ...     def __call__(self, tokens):
        ...         return self.embed.attend(self.attention(self.embed(tokens), is_causal=True))
        >>> model = LM(rngs=plait.Rngs(0))
        >>> out = plait.generate(model, [[3, 1, 4], [1]], 5, temperature=0.8, top_k=3, rngs=plait.Rngs(0))
        >>> out.tokens.shape, out.lengths.tolist()
        ((2, 5), [5, 5])
    """
    with _running(model, prompt, max_new_tokens, **options) as run:
        steps = run.advance(max_new_tokens)
        tokens, lengths = _new_tokens(
            run.progress, run.starts, np.int32(pad), count=max_new_tokens, is_single=run.is_single
        )
        return Generated(tokens, lengths, int(steps))


def stream(
    model: Any,
    prompt: Any,
    max_new_tokens: int,
    *,
    mask: Any = None,
    temperature: ArrayLike = 0.0,
    top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
    repetition_penalty: ArrayLike | None = None,
    stop: int | Sequence[int] = (),
    max_length: int | None = None,
    rngs: Rngs | RngStream | Array | None = None,
    steps: int = 1,
) -> Iterator[list[Any]]:
    """``plait.generate``, with the tokens as they come.

    The settings of the draw are one number, or one for each prompt; their values cause no compilation.

    Args:
        model: as in ``plait.generate``.
        prompt: as in ``plait.generate``.
        max_new_tokens: as in ``plait.generate``.
        mask: which positions of ``prompt`` are tokens; padding is before or after them, or both.
        temperature: what the logits are divided by; 0 takes the most likely token.
        top_k: draw from the ``top_k`` most likely tokens alone.
        top_p: draw from the fewest of the most likely tokens whose probabilities sum to ``top_p``.
        min_p: draw from the tokens whose probability is at least ``min_p`` times that of the most likely.
        repetition_penalty: what the positive logits of tokens that the sequence already has are divided by, and the
            negative multiplied.
        stop: the tokens that end a sequence; they are part of it.
        max_length: how many positions the model has, if the number is limited, as by learned embeddings of positions;
            ``None`` means the model's own ``max_length``, if it has such an attribute.
        rngs: source of randomness: an ``Rngs``, of which the stream ``sample`` is used, a stream, one key, or one key
            for each prompt.
        steps: how many steps to run for each item of the iterator.

    Returns:
        An iterator over lists: the new tokens of each prompt, none for those that have ended. It ends when all have.
        The arguments are checked, and the prompts run, when the first item is requested.

    Example:
        >>> class LM(plait.Module):
        ...     def __init__(self, *, rngs):
        ...         self.embed = plait.Embed(11, 8, rngs=rngs)
        ...         self.attention = plait.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        ...     def __call__(self, tokens):
        ...         return self.embed.attend(self.attention(self.embed(tokens), is_causal=True))
        >>> for new in plait.generation.stream(LM(rngs=plait.Rngs(0)), [3, 1, 4], 3):
        ...     print(len(new))
        1
        1
        1
    """
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    options |= {"mask": mask, "repetition_penalty": repetition_penalty, "stop": stop, "max_length": max_length}
    with _running(model, prompt, max_new_tokens, rngs=rngs, **options) as run:
        shown = run.starts
        while not run.progress.done.all():
            run.advance(steps)
            tokens, lengths = np.asarray(run.progress.tokens), np.asarray(run.progress.lengths)
            rows = [row[start:end].tolist() for row, start, end in zip(tokens, shown, lengths, strict=True)]
            yield rows[0] if run.is_single else rows
            shown = lengths


@contextlib.contextmanager
def _running(
    model: Any,
    prompt: Any,
    max_new_tokens: int,
    *,
    mask: Any = None,
    stop: int | Sequence[int] = (),
    max_length: int | None = None,
    rngs: Rngs | RngStream | Array | None = None,
    **settings: Any,
) -> Iterator[_Run]:
    """Inside ``with``, a decoder has the prompts in its caches."""
    prompts = resolve_prompts(prompt, mask)
    batch, longest = prompts.tokens.shape
    max_length = getattr(model, "max_length", None) if max_length is None else max_length
    sampling = resolve_sampling(batch, **settings)
    needed = longest + max_new_tokens
    check_lengths(needed, max_new_tokens, max_length)
    capacity = bucket(needed, max_length)
    keys = None if sampling.temperature is None else _keys(rngs, batch)
    progress = _begun(prompts, capacity, max_new_tokens, stop, keys)
    with decoder_for(model, batch, capacity) as decoder:
        fill(decoder, progress.tokens[:, : bucket(longest, capacity)])
        yield _Run(prompts.is_single, prompts.lengths, sampling, progress, decoder)


@dataclasses.dataclass
class _Run:
    """One call: the decoder, and how far the sequences have come.

    Attributes:
        is_single: whether there is one prompt without a batch axis.
        starts: the lengths of the prompts.
    """

    is_single: bool
    starts: np.ndarray
    sampling: Sampling
    progress: Progress
    decoder: Any

    def advance(self, steps: int) -> Array:
        """Run some steps, and return how many there were."""
        self.progress, count = _continue(self.decoder, self.progress, self.sampling, np.int32(steps))
        return count


def _begun(prompts: Prompts, capacity: int, count: int, stop: int | Sequence[int], keys: Array | None) -> Progress:
    tokens: Any = np.zeros((len(prompts.tokens), capacity), np.int32)  # NumPy's arrays reach the device with the call
    tokens[:, : prompts.tokens.shape[1]] = prompts.tokens
    lengths: Any = prompts.lengths
    stops: Any = np.atleast_1d(np.asarray(stop, np.int32))
    done: Any = np.zeros(lengths.shape, bool)
    return Progress(tokens, lengths, lengths + np.int32(count), done, stops, keys)


@jit(donate=Cache, graph=True, graph_updates=True)
def fill(decoder: Any, tokens: Array) -> None:
    """Put the first tokens of each sequence into the caches of a decoder."""
    decoder(tokens)


@jit(donate=Cache, graph=True, graph_updates=True)
def _continue(decoder: Any, progress: Progress, sampling: Sampling, steps: ArrayLike) -> tuple[Progress, Array]:
    """Run steps until all sequences have ended; the sequences then, and how many steps there were."""

    def goes_on(carry: Any) -> Array:
        _, progress, _, count, steps = carry
        return (count < steps) & ~jnp.all(progress.done)

    def turn(carry: Any) -> Any:
        decoder, progress, sampling, count, steps = carry
        return decoder, _next_token(decoder, progress, sampling), sampling, count + 1, steps

    _, progress, _, count, _ = while_loop(
        goes_on, turn, (decoder, progress, sampling, jnp.int32(0), steps), graph=True, graph_updates=True
    )
    return progress, count


def _next_token(decoder: Any, progress: Progress, sampling: Sampling) -> Progress:
    """The sequences after one call of the model."""
    set_positions(decoder, progress.lengths - 1)
    logits = logits_of(decoder, progress.last())[:, 0]
    seen = None
    if sampling.repetition_penalty is not None:
        seen = seen_in(progress.tokens, progress.lengths, logits.shape[-1])
    return progress.with_token(draw(progress.keys_of_step(), log_probabilities(logits, sampling, seen)))


@functools.partial(jax.jit, static_argnames=("count", "is_single"))
def _new_tokens(progress: Progress, starts: Any, pad: ArrayLike, count: int, is_single: bool) -> tuple[Array, Array]:
    """What follows the prompts, ``(batch, count)``, and how much of it each sequence has; without a batch axis for a
    single one."""
    lengths = progress.lengths - starts
    places = jnp.arange(count, dtype=jnp.int32)[None]
    tokens = jnp.take_along_axis(progress.tokens, starts[:, None] + places, axis=1)
    tokens = jnp.where(places < lengths[:, None], tokens, pad)
    return (tokens[0], lengths[0]) if is_single else (tokens, lengths)


def _keys(rngs: Any, batch: int) -> Array:
    """A key for each sequence.

    Raises:
        ArgumentError: there is no source of randomness, or an array that is no key.
        ArgumentTypeError: the source has the wrong type.
        ShapeError: there are keys, but not one for each prompt.
    """
    if rngs is None:
        raise ArgumentError(
            "a temperature above 0 draws tokens, for which there is no random key",
            found="rngs=None",
            expected="an Rngs, a stream, or a key",
            do="pass rngs=plait.Rngs(0), or a temperature of 0",
        )
    key = rngs["sample"]() if isinstance(rngs, Rngs) else rngs() if isinstance(rngs, RngStream) else rngs
    if not isinstance(key, jax.Array):
        raise ArgumentTypeError(
            "a random key has the wrong type",
            found=describe_type(key),
            expected="an Rngs, a stream, or a key",
            do="pass rngs=plait.Rngs(0)",
        )
    key = as_key(key)
    if key.ndim == 0:
        return folded(jnp.broadcast_to(key, (batch,)), jnp.arange(batch))
    if key.shape != (batch,):
        raise ShapeError(
            "the random keys do not fit the prompts",
            found=f"keys of shape {key.shape} for {batch} prompts",
            expected=f"one key, or shape ({batch},)",
            do=f"for example jax.random.split(key, {batch})",
        )
    return key


def check_lengths(needed: int, new: int, longest: int | None) -> None:
    if new < 1:
        raise ArgumentError(
            "max_new_tokens is not positive", found=f"max_new_tokens={new}", expected="1 or more", do="pass 1"
        )
    if longest is not None and needed > longest:
        raise ArgumentError(
            "the sequences do not fit into the positions of the model",
            found=f"{needed} positions for the longest prompt and the new tokens",
            expected=f"at most max_length={longest}",
            do="generate fewer tokens, or shorten the prompts",
        )
