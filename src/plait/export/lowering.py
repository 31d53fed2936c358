"""Lower ``(weights, x) -> y`` once, for several platforms and with free sizes.

The weights are arguments of the lowered function, not constants in it, so a file stores them once and beside the
program. The result is a ``jax.export.Exported``: StableHLO plus its calling convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ..errors import ExportError
from .input_spec import InputSpec
from .weights import NamedFunction

PLATFORMS = ("cpu", "cuda", "tpu")


def lower(
    apply: NamedFunction, weights: dict[str, np.ndarray], input_spec: InputSpec, platforms: Sequence[str] = PLATFORMS
) -> jax.export.Exported:
    """Trace ``apply`` on abstract weights and on the input of ``input_spec``.

    Raises:
        ExportError: the function returns something other than one array, or is laid out over several devices.
    """
    shapes = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in weights.items()}
    exported = jax.export.export(jax.jit(apply), platforms=tuple(platforms))(shapes, input_spec.abstract())
    if not jax.tree_util.treedef_is_leaf(exported.out_tree):
        raise ExportError(
            "an exported function returns one array",
            found=f"an output of structure {exported.out_tree}",
            expected="one array, y",
            do="export a function that picks the array to be served: lambda params, x: f(params, x)['logits']",
        )
    if exported.nr_devices != 1:
        raise ExportError(
            "the function was traced for several devices",
            found=f"{exported.nr_devices} devices",
            expected="a function for one device",
            do="leave sharding constraints and meshes out of the exported function",
        )
    return exported


def open_shape(aval: Any) -> tuple[int | None, ...]:
    """The shape of an input or output, with ``None`` for every size that is not fixed."""
    return tuple(size if isinstance(size, int) else None for size in aval.shape)
