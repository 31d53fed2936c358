"""Dropout: sets random entries to zero during training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..core.nodes.module import Module
from ..core.rngs import Rngs, RngStream
from ..errors import ArgumentError
from ..typing import Array
from ..util.jax_versions import explicit_sharding
from .checks import missing_stream, resolve_switch, wrong_rngs


class Dropout(Module):
    """Set each entry to zero with probability ``rate`` and scale the rest by ``1 / (1 − rate)``.

    The scaling preserves the expected value, so nothing else changes when dropout is switched off.

    Shapes:
        inputs, y: any shape.

    Variables:
        rngs: a ``RngStream``, a fork of the given stream; ``None`` if none was given.

    Args:
        rate: probability of zero. 0 returns the input unchanged, 1 returns zeros; neither draws a key.
        broadcast_dims: axes along which all entries share one mask.
        deterministic: whether to return the input unchanged; ``None`` leaves it to each call.
        rng_collection: name of the stream to draw from.
        rngs: an ``Rngs``, whose stream ``rng_collection`` is forked, or one stream. Without it, pass one in each call.

    Raises:
        ArgumentError: ``deterministic`` is ``None`` here and in the call.
        StreamError: neither the layer nor the call has a stream.
        ArgumentTypeError: ``rngs`` has the wrong type.

    Example:
        >>> dropout = plait.Dropout(0.5, rngs=plait.Rngs(0))
        >>> y = dropout(jnp.ones(1000))
        >>> sorted(set(y.tolist())), dropout(y, deterministic=True) is y
        ([0.0, 2.0], True)

    Reference: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014, JMLR 15.
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool | None = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ) -> None:
        if not 0 <= rate <= 1:
            raise ArgumentError(
                "the rate of a Dropout is a probability",
                found=f"rate={rate!r}",
                expected="a number from 0 to 1",
                do="pass the fraction of entries that become zero, such as 0.1",
            )
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic: bool | None = deterministic
        self.rng_collection = rng_collection
        if isinstance(rngs, Rngs):
            rngs = rngs[rng_collection]
        if rngs is not None and not isinstance(rngs, RngStream):
            raise wrong_rngs(rngs, self, "an Rngs, a RngStream or None")
        self.rngs = None if rngs is None else rngs.fork()

    def __call__(
        self,
        inputs: Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | Array | None = None,
    ) -> Array:
        deterministic = resolve_switch("deterministic", deterministic, self.deterministic, layer=self)
        if deterministic or self.rate == 0:
            return inputs  # type: ignore[return-value]
        inputs = jnp.asarray(inputs)
        if self.rate == 1:
            return jnp.zeros_like(inputs)
        shape = list(inputs.shape)
        for axis in self.broadcast_dims:
            shape[axis] = 1
        keep = 1 - self.rate
        key = draw_key(self.rngs if rngs is None else rngs, self.rng_collection, layer=self, use="its masks")
        layout = _mask_layout(inputs, shape)
        mask = jax.random.bernoulli(key, keep, tuple(shape), out_sharding=layout)
        kept = inputs / keep
        out = None if layout is None else jax.typeof(inputs).sharding
        return jnp.where(jnp.broadcast_to(mask, inputs.shape, out_sharding=out), kept, jnp.zeros_like(kept))

    def set_view(self, deterministic: bool | None = None) -> None:
        """Change the mode; ``None`` leaves it unchanged.

        Args:
            deterministic: whether to return the input unchanged.
        """
        if deterministic is not None:
            self.deterministic = deterministic


def _mask_layout(x: Array, shape: Sequence[int]) -> NamedSharding | None:
    """The sharding of the mask on a mesh with explicit axes: that of the input. ``None`` without such a mesh."""
    sharding = explicit_sharding(x)
    if sharding is None:
        return None
    spec = [
        entry if size == x.shape[axis] else None
        for axis, (size, entry) in enumerate(zip(shape, sharding.spec, strict=False))
    ]
    return NamedSharding(sharding.mesh, PartitionSpec(*spec))


def draw_key(rngs: Any, stream: str, *, layer: Module, use: str) -> Array:
    """A key from an ``Rngs``, from one stream, or the key itself.

    Raises:
        StreamError: there is no source.
        ArgumentTypeError: the source has the wrong type.
    """
    if rngs is None:
        raise missing_stream(layer, stream, use)
    if isinstance(rngs, Rngs):
        return rngs[stream]()
    if isinstance(rngs, RngStream):
        return rngs()
    if isinstance(rngs, jax.Array):
        return rngs
    raise wrong_rngs(rngs, layer, "an Rngs, a RngStream or a key")
