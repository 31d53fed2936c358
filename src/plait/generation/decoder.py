"""The decoding view of a model: its own caches beside the model's variables, with a position for each sequence.

A decoder is called with the next tokens of each sequence. The caches called ``cache_index`` say how many positions each
sequence has behind it. To write them is all that is needed after a padded prompt: entries of a cache from its index on
are ignored, and then overwritten.

A decoder that has been used is kept beside its model, without the arrays of its caches, for the next call with the same
sizes: making it takes milliseconds. It is as long as the structure of the model stands, and the shapes and dtypes of
its values. What ``set_view`` of a user's layer does may depend on more, so a model with one gets a new decoder in each
call.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.graph.walks import CachedWalk, find_walk
from ..core.nodes.nodes import iter_graph_nodes, iter_variables
from ..core.variables.variable_kinds import Cache
from ..edit.views import view
from ..errors import ArgumentError, ShapeError
from ..typing import Array
from ..util.jax_versions import on_all_devices, trace_settings
from ..util.paths import describe_path, layers_of
from ..util.words import describe_type

INDEX = "cache_index"
SMALLEST = 32  # positions


# The decoders that are not in use, of each walk over a model, by their sizes and those of the model's values.
_idle: weakref.WeakKeyDictionary[CachedWalk, dict[Any, _Kept]] = weakref.WeakKeyDictionary()
_MOST = 16  # of one walk, the latest
_NO_VALUE = jnp.zeros(())  # in the caches of a decoder that is not in use


@contextlib.contextmanager
def decoder_for(model: Any, batch: int, length: int) -> Iterator[Any]:
    """Inside ``with``, a decoder with empty caches: a new one, or one that a call like this has used.

    Afterwards the model has the values that it had.

    Raises:
        ArgumentError: as ``decoder_of``.
    """
    walk = find_walk((model,))
    before = walk.raw_values()
    kinds = tuple((np.shape(value), getattr(value, "dtype", None)) for value in before)
    key = batch, length, kinds, trace_settings()
    kept = _idle.get(walk, {}).pop(key, None)
    if kept is None:
        decoder = decoder_of(model, batch, length)
        kept = _Kept.of(decoder, walk)
    else:
        decoder = kept.decoder
        kept.fill()
    try:
        yield decoder
    finally:
        for cell, kind, value in zip(walk.cells, walk.types, before, strict=True):
            if cell.raw is not value and not (kind and issubclass(kind, Cache)):  # a cache was donated
                cell.raw = value
    if kept is not None and kept.is_as_made():
        kept.empty()
        idle = _idle.setdefault(walk, {})
        idle[key] = kept
        while len(idle) > _MOST:
            idle.pop(next(iter(idle)), None)


class _Kept:
    """A decoder that can be used again.

    Args:
        decoder: its caches have the values of an empty cache.
        walk: over the decoder.
        caches: the variables of its caches.
    """

    def __init__(self, decoder: Any, walk: CachedWalk, caches: Sequence[Any]) -> None:
        self.decoder, self.walk, self.caches = decoder, walk, caches
        self.shapes = tuple((cache.shape, cache.dtype) for cache in caches)

    @classmethod
    def of(cls, decoder: Any, of_model: CachedWalk) -> _Kept | None:
        """``None`` if a call may leave more in the decoder than in its caches, or its view was not made by plait's own
        layers, whose caches begin with zeros."""
        walk, known = find_walk((decoder,)), set(map(id, of_model.cells))
        if not walk.only_variables or not all(_is_ours(node) for _, node in iter_graph_nodes(decoder)):
            return None
        return cls(decoder, walk, [cache for _, _, cache in _caches(decoder) if id(cache._cell) not in known])

    def is_as_made(self) -> bool:
        """Whether nothing but values has changed."""
        return find_walk((self.decoder,)) is self.walk

    def fill(self) -> None:
        """Give each cache its zeros."""
        for cache, zeros in zip(self.caches, _zeros(self.shapes), strict=True):
            cache.set_raw_value(zeros)

    def empty(self) -> None:
        """Let the arrays of the caches go."""
        for cache in self.caches:
            cache.set_raw_value(_NO_VALUE)


def _is_ours(node: Any) -> bool:
    """Whether the view of a node, if it has one, is made by plait's own code."""
    methods = [getattr(type(node), name, None) for name in ("set_view", "init_cache")]
    own = __name__.partition(".")[0]
    return all(f is None or f.__module__.partition(".")[0] == own for f in methods)


@functools.partial(jax.jit, static_argnums=0)
def _zeros(shapes: Any) -> list[Array]:
    return [jnp.zeros(shape, dtype) for shape, dtype in shapes]


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
    logits = on_all_devices(logits)  # tokens are drawn on each device
    return logits.astype(np.promote_types(logits.dtype, np.float32))  # JAX's raises with strict promotion


def bucket(length: int, longest: int | None) -> int:
    """4, 5, 6 or 7 times a power of two, from ``SMALLEST`` on, that holds a length: few lengths are compiled, and less
    than a quarter is wasted."""
    step = 1 << max(length - 1, SMALLEST - 1).bit_length() - 3
    size = max(SMALLEST, -(-length // step) * step)
    return size if longest is None else min(size, longest)


def _caches(decoder: Any) -> Iterator[tuple[Any, int, Any]]:
    """The path of each cache, its batch axis (after those of the stacks that it is in), and the variable."""
    for path, variable in iter_variables(decoder):
        if isinstance(variable, Cache):
            yield path, sum(layers_of(key) is not None for key in path), variable
