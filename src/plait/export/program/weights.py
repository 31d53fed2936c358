"""The weights as a flat dictionary: each leaf of the parameters under the name it has in the file.

A name is the leaf's key path, joined by dots: ``{"encoder": {"kernel": k}}`` gives ``encoder.kernel``. The parameters
of a flat dictionary keep their keys. Names identify the weights in the file, so they must be unique.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ...core.nodes.nodes import jax_key_to_key
from ...errors import ExportError, PlaitError
from .checks import check_different
from .numbers import check_numbers

Function = Callable[..., Any]  # of the parameters and the inputs
NamedFunction = Callable[..., Any]  # of the parameters by name and the inputs

WHOLE = "weights"  # the name of parameters that are one bare array


def named_weights(params: Any) -> dict[str, np.ndarray]:
    """Every leaf of ``params`` on the host, by name, in the order of the leaves.

    Raises:
        ExportError: two leaves have the same name, or a leaf is not an array of numbers.
    """
    pairs = jax.tree_util.tree_flatten_with_path(params)[0]
    names = {jax.tree_util.keystr(path): ".".join(key_name(entry) for entry in path) or WHOLE for path, _ in pairs}
    check_distinct(names)
    return {name: on_host(leaf, name) for name, (_, leaf) in zip(names.values(), pairs, strict=True)}


def check_distinct(names: Mapping[Any, str], kind: type[PlaitError] = ExportError) -> None:
    """Raise for duplicate names, given by path.

    Raises:
        ExportError: or the given error type; has the name and both paths.
    """
    message = "two parameters would have the same name in the file"
    check_different(message, names.items(), "rename one of them; nested keys are joined by dots", kind)


def by_name(function: Function, params: Any) -> NamedFunction:
    """``function`` with its parameters given as the dictionary of ``named_weights(params)``."""
    treedef = jax.tree_util.tree_structure(params)
    names = list(named_weights(params))

    def apply(weights: dict[str, Any], *inputs: Any, **named: Any) -> Any:
        return function(jax.tree_util.tree_unflatten(treedef, [weights[name] for name in names]), *inputs, **named)

    apply.__name__ = getattr(function, "__name__", "apply")
    return apply


def key_name(entry: Any) -> str:
    """One entry of a key path as a string: a dictionary key, a position, or an attribute's name."""
    return str(jax_key_to_key(entry))


def on_host(leaf: Any, name: str) -> np.ndarray:
    """A copy of an array on the host, in the dtype with which JAX traces a function of it."""
    check_numbers(leaf, name)
    array = np.array(leaf, order="C")
    held = jax.dtypes.canonicalize_dtype(array.dtype)
    return array if held == array.dtype else array.astype(held)
