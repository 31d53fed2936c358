"""The moments of an optimizer of a stack, from those of the optimizer of a list.

A stack is converted as a list of its layers. The state of its optimizer is not a module, but a tree with the keys
of the stack: ``mu.blocks.0:3.kernel`` is stored as ``mu.blocks.0.kernel``, ``mu.blocks.1.kernel`` and
``mu.blocks.2.kernel``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import numpy as np

from ..checkpoint.stored import StoredArray
from ..util.paths import layers_of
from .matching import BOXED


def put_layers_together(arrays: dict[str, StoredArray], found: dict[str, list[str]], wanted: Iterable[str]) -> None:
    """Add the names with a range that are wanted, ``mu.blocks.0:3.kernel``, in place, if there is one for each layer.

    Args:
        arrays: the arrays of the checkpoint, by name; the stacked ones are added.
        found: names of the model, each with its names in the checkpoint.
        wanted: the names that the model has.
    """
    for name in wanted:
        parts = name.split(".")
        ranges = [(place, layers) for place, part in enumerate(parts) if (layers := layers_of(part)) is not None]
        if len(ranges) != 1 or name in found:
            continue
        ((place, layers),) = ranges
        each = [".".join([*parts[:place], str(layer), *parts[place + 1 :]]) for layer in layers]
        each = [layer if layer in found else layer + BOXED for layer in each]
        sources = [found.get(layer, []) for layer in each]
        stored = [arrays[source] for names in sources for source in names]
        if all(len(names) == 1 for names in sources) and len({(one.shape, one.dtype) for one in stored}) == 1:
            read = functools.partial(_stacked, stored)
            arrays[name] = StoredArray((len(stored), *stored[0].shape), stored[0].dtype, read)
            found[name] = [name]
            for layer in each:
                del found[layer]


def _stacked(layers: Sequence[StoredArray]) -> np.ndarray:
    return np.stack([layer.view() for layer in layers])
