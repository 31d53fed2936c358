"""What the TensorFlow variable of a parameter is called: its key path joined by dots, with ``_`` for each ``~``."""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax

from ...errors import ArgumentError
from ..program.weights import key_name

_SAVABLE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
SAVABLE_IN_WORDS = "a letter, digit or dot first, then letters, digits and any of _ . / > -"


def variable_names(params: Any) -> list[str]:
    """The name of each leaf's variable, in the order of the leaves.

    A tree with a node that gives no key paths has no names to offer: all leaves are then numbered, with a warning.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    if any(isinstance(entry, jax.tree_util.FlattenedIndexKey) for path in paths for entry in path):
        warnings.warn(
            "the parameters have a node without key paths, so their variables are named jax_param_0, jax_param_1, …; "
            "register the node's class with jax.tree_util.register_pytree_with_keys to have them named",
            stacklevel=3,
        )
        return [f"jax_param_{index}" for index in range(len(paths))]
    # A tree that is one bare leaf has a path of no entries.
    return [".".join(key_name(entry) for entry in path).replace("~", "_") or "jax_param_0" for path in paths]


def is_savable(name: str) -> bool:
    """Whether TensorFlow can save a variable of this name; it would refuse only after all the work is done."""
    return _SAVABLE.fullmatch(name) is not None


def check_savable(names: list[str], params: Any) -> None:
    """Refuse the names that TensorFlow cannot save.

    Raises:
        ArgumentError: with the path of the first such parameter.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    for name, path in zip(names, paths, strict=True):
        if not is_savable(name):
            raise ArgumentError(
                "TensorFlow cannot save a variable of this name",
                at=f"params{jax.tree_util.keystr(path)}",
                found=f"the variable name {name!r}",
                expected=SAVABLE_IN_WORDS,
                do="rename the parameter in the tree that is given to JaxModule",
            )
