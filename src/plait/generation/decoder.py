"""The decoding view of a model: its own caches beside the model's variables, with a position for each sequence.

A decoder is called with the next tokens of each sequence. The caches called ``cache_index`` say how many positions each
sequence has behind it. To write them is all that is needed after a padded prompt: entries of a cache from its index on
are ignored, and then overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from ..core.nodes.nodes import iter_variables
from ..core.variables.variable_kinds import Cache
from ..edit.views import view
from ..errors import ArgumentError, ShapeError
from ..typing import Array
from ..util.paths import describe_path, layers_of
from ..util.words import describe_type

INDEX = "cache_index"
SMALLEST = 32  # positions


def decoder_of(model: Any, batch: int, length: int) -> Any:
    """A view that decodes ``batch`` sequences of up to ``length`` positions, in evaluation mode.

    Raises:
        ArgumentError: the model has no decoding view, or one whose sequences share a position.
    """
    modes = {"deterministic": True, "use_running_average": True}
    sizes = {"batch_size": batch, "max_length": length, "per_sequence": True}
    decoder = view(model, decode=True, raise_if_not_found=False, graph=True, **sizes, **modes)
    found = [(path, variable) for path, _, variable in _caches(decoder) if path[-1] == INDEX]
    if not found:
        raise ArgumentError(
            "this model cannot generate: it has no decoding view",
            at=describe_type(model),
            found=f"no Cache called {INDEX} in plait.view(model, decode=True, batch_size=..., max_length=...)",
            expected="a model with MultiHeadAttention, or layers of your own with such a set_view",
            do="use plait.MultiHeadAttention, or write set_view(decode, batch_size, max_length, per_sequence)",
        )
    for path, variable in found:
        if variable.shape[-1:] != (batch,):
            raise ArgumentError(
                "the sequences of a batch share one position in a cache",
                at=describe_path(path),
                found=f"shape {variable.shape}",
                expected=f"shape ({batch},): one position for each sequence",
                do="let set_view take per_sequence, and give the index the batch axis",
            )
    return decoder


def set_positions(decoder: Any, positions: Array) -> None:
    """Write how many positions each sequence has behind it, ``(batch,)``."""
    for path, _, variable in _caches(decoder):
        if path[-1] == INDEX:
            variable.value = jnp.broadcast_to(positions, variable.shape).astype(variable.dtype)


def take_sequences(decoder: Any, rows: Array) -> None:
    """Replace the sequences of the caches by these rows of them, ``(batch,)``."""
    for _, axis, variable in _caches(decoder):
        variable.value = jnp.take(variable.value, rows, axis=axis)


def logits_of(decoder: Any, tokens: Array) -> Array:
    """The logits after each of the next tokens: ``(batch, length, vocabulary)``, float32 or wider.

    Raises:
        ShapeError: the model returned something else.
    """
    logits = decoder(tokens)
    if getattr(logits, "shape", ())[:-1] != tokens.shape:
        raise ShapeError(
            "a model that generates returns logits",
            at=describe_type(decoder),
            found=f"{describe_type(logits)} of shape {getattr(logits, 'shape', None)} for tokens {tokens.shape}",
            expected="one array, (batch, length, vocabulary)",
            do="wrap it in a module whose __call__(tokens) returns the logits",
        )
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def bucket(length: int, longest: int | None) -> int:
    """The power of two, from ``SMALLEST`` on, that holds a length, so that few lengths are compiled."""
    size = max(SMALLEST, 1 << (length - 1).bit_length())
    return size if longest is None else min(size, longest)


def _caches(decoder: Any) -> Iterator[tuple[Any, int, Any]]:
    """The path of each cache, its batch axis (after those of the stacks that it is in), and the variable."""
    for path, variable in iter_variables(decoder):
        if isinstance(variable, Cache):
            yield path, sum(layers_of(key) is not None for key in path), variable
