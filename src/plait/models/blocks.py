"""The blocks of a model: a ``Stack`` or a list of them, made and run alike by decoders and encoders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core.nodes.containers import List
from ..core.rngs import Rngs
from ..nn.stacks.stack import Stack
from ..transforms.remat import remat as recomputed
from ..typing import Array

STREAM = ("batch", "length", "features")
"""The logical axes of what goes from block to block."""

Remat = bool | Callable[..., bool]
"""What the backward pass recomputes, as of ``Stack``."""


def with_axes(*axes: str | None) -> dict[str, Any]:
    """The metadata of a variable with these logical axes."""
    return {"out_sharding": axes}


def make_blocks(
    makers: Sequence[Callable[..., Any]], layers: Sequence[Any], *, as_list: bool, remat: Remat, rngs: Rngs
) -> Stack | List[Any]:
    """A ``Stack`` of blocks, or a ``List`` if that is asked for, or if the layers do not repeat.

    Args:
        makers: make one block each: ``maker(rngs=rngs)``.
        layers: the settings of each.
    """
    count = len(layers)
    period = next(n for n in range(1, count + 1) if all(x == layers[i % n] for i, x in enumerate(layers)))
    if as_list or (period > 1 and 2 * period > count):
        return List([make(rngs=rngs) for make in makers])
    return Stack(makers[:period], count, rngs=rngs, axis="layers", remat=remat)


def run_blocks(blocks: Stack | List[Any], remat: Remat, x: Array, *inputs: Any) -> Array:
    """``x`` through all blocks, each of which gets the other inputs too."""
    if isinstance(blocks, Stack):
        return blocks(x, *inputs)
    for block in blocks:
        call = type(block).__call__
        if remat is not False:
            call = recomputed(call, policy=None if remat is True else remat)
        x = call(block, x, *inputs)
    return x
