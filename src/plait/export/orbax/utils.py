"""The helpers of the SavedModel interface, under the module name of Orbax Export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...errors import ArgumentError
from ..program.checks import check_type
from ..program.weights import key_name
from ..tensorflow.names import variable_names


def get_param_names(params: Any) -> Any:
    """The name of each parameter's variable, in the structure of the parameters.

    Example:
        >>> plait.export.utils.get_param_names({"layers": [{"w": 1.0}], "~": 2.0})
        {'layers': [{'w': 'layers.0.w'}], '~': '_'}
    """
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(params), variable_names(params))


def get_variable_tree(var_treedef: Any, var_leaves: Sequence[Any]) -> Any:
    """The variables in the structure of the parameters."""
    return jax.tree_util.tree_unflatten(var_treedef, list(var_leaves))


def get_key_name(key: Any) -> int | str:
    """One entry of a key path: the position in a sequence, or a name.

    Raises:
        ArgumentError: it is not an entry of a key path.

    Example:
        >>> path, _ = jax.tree_util.tree_leaves_with_path({"layers": [1.0]})[0]
        >>> [plait.export.utils.get_key_name(key) for key in path]
        ['layers', 0]
    """
    named = (jax.tree_util.DictKey, jax.tree_util.GetAttrKey)
    kinds = (*named, jax.tree_util.SequenceKey, jax.tree_util.FlattenedIndexKey)
    expected = "an entry of a path of jax.tree_util.tree_leaves_with_path"
    advice = "get_key_name(jax.tree_util.DictKey('w'))"
    check_type("this is not an entry of a key path", key, kinds, expected, advice, kind=ArgumentError)
    return key_name(key) if isinstance(key, named) else int(key_name(key))


def to_bfloat16(tree: Any) -> Any:
    """The tree with every real floating-point array in bfloat16; shapes without values change their dtype too.

    Example:
        >>> tree = plait.export.utils.to_bfloat16({"w": jnp.ones(2), "steps": jnp.int32(3)})
        >>> tree["w"].dtype, tree["steps"].dtype
        (dtype(bfloat16), dtype('int32'))
    """

    def convert(leaf: Any) -> Any:
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            return leaf
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf.update(dtype=jnp.bfloat16)
        return jnp.asarray(leaf, jnp.bfloat16)

    return jax.tree_util.tree_map(convert, tree)


def get_lowering_platforms(kwargs: Mapping[str, Any]) -> Sequence[str] | None:
    """``native_serialization_platforms`` of some ``jax2tf_kwargs``, or ``None``."""
    return kwargs.get("native_serialization_platforms")
