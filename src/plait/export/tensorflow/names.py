"""Names of TensorFlow variables: a parameter's key path joined by dots, with ``_`` for ``~``, ``-`` for ``:``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax

from ...errors import ArgumentError, ExportError, PlaitError
from ...util.notices import warn
from ..program.weights import check_distinct, key_name

_SAVABLE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")


def variable_names(params: Any) -> list[str]:
    """The name of each leaf's variable, in the order of the leaves.

    If a node has no key paths, all leaves are numbered instead, with a warning.
    """
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    if any(isinstance(entry, jax.tree_util.FlattenedIndexKey) for path in paths for entry in path):
        warn(
            UserWarning,
            "the parameters have a node without key paths, so their variables are named jax_param_0, jax_param_1, …; "
            "register the node's class with jax.tree_util.register_pytree_with_keys to have them named",
        )
        return [f"jax_param_{index}" for index in range(len(paths))]
    # The path of a single bare leaf is empty.
    return [variable_name(".".join(map(key_name, path))) or "jax_param_0" for path in paths]


def variable_name(name: str) -> str:
    """The name of a parameter's variable; a stack's ``blocks.0:24`` has a colon, which TensorFlow does not save."""
    return name.replace("~", "_").replace(":", "-")


def is_savable(name: str) -> bool:
    """Whether TensorFlow can save a variable with this name; it would raise only at the end."""
    return _SAVABLE.fullmatch(name) is not None


def check_savable(names: Mapping[str, str], kind: type[PlaitError] = ExportError) -> None:
    """Raise for variable names that TensorFlow cannot save, and for duplicates.

    Args:
        names: the names, by the paths of the parameters.
        kind: the error type.

    Raises:
        ExportError: or the given error type; has the name and the paths.
    """
    check_distinct(names, kind)
    for path, name in names.items():
        if not is_savable(name):
            raise kind(
                "TensorFlow cannot save a variable with this name",
                at=path,
                found=f"the variable name {name!r}",
                expected="a letter, digit or dot first, then letters, digits and any of _ . / > -",
                do="rename the parameter",
            )


def check_names(params: Any, names: Any) -> None:
    """``check_savable`` of a pytree of parameters, and of the names of their variables.

    Raises:
        ArgumentError: with the path of the parameter.
    """
    paths = [f"params{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    check_savable(dict(zip(paths, jax.tree_util.tree_leaves(names), strict=True)), ArgumentError)
