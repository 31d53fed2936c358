"""How far the sequences of a batch have come, as arrays that a compiled loop carries.

The caches of a decoder hold all tokens of a sequence but the last: each turn of the loop passes that one on, and draws
what follows. So nothing of the logits is carried between turns, or between programs.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..typing import Array


class Progress(NamedTuple):
    """The sequences of a batch, prompts and what follows.

    Attributes:
        tokens: ``(batch, capacity)``, int32; after the end of a sequence, the values are arbitrary.
        lengths: ``(batch,)``, int32: how many tokens each sequence has.
        limits: ``(batch,)``, int32: how many it may have.
        done: ``(batch,)``: whether it has ended.
        stop: ``(count,)``, int32: the tokens that end a sequence.
        keys: ``(batch,)``: the random key of each sequence; ``None`` if nothing is drawn.
    """

    tokens: Array
    lengths: Array
    limits: Array
    done: Array
    stop: Array
    keys: Array | None

    def last(self) -> Array:
        """The last token of each sequence, ``(batch, 1)``."""
        return jnp.take_along_axis(self.tokens, self.lengths[:, None] - 1, axis=1)

    def keys_of_step(self) -> Array | None:
        """A key for what follows each sequence: it depends on the sequence's own key, and on its length."""
        return None if self.keys is None else folded(self.keys, self.lengths)

    def with_token(self, new: Array) -> Progress:
        """The sequences that have not ended, each continued by its token of ``new``, ``(batch,)``."""
        outside = self.tokens.shape[1]
        columns = jnp.where(self.done, outside, self.lengths)
        tokens = self.tokens.at[jnp.arange(new.shape[0]), columns].set(new, mode="drop")
        lengths = self.lengths + jnp.where(self.done, 0, 1)
        is_stopped = jnp.any(new[:, None] == self.stop[None], axis=1)
        done = self.done | is_stopped | (lengths >= self.limits)
        return self._replace(tokens=tokens, lengths=lengths, done=done)


def folded(keys: Array, number: Array | int) -> Array:
    """Each key with a number of its own, or the same for all, folded in."""
    numbers = jnp.broadcast_to(jnp.asarray(number, jnp.uint32), keys.shape)
    return jax.vmap(jax.random.fold_in)(keys, numbers)
