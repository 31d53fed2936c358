"""The helpers of the SavedModel interface, under the name that Orbax Export gives their module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from .signatures import (
    CallableSignatures as CallableSignatures,
    TensorSpecWithDefault as TensorSpecWithDefault,
    make_auto_batching_function as make_auto_batching_function,
    remove_signature_defaults as remove_signature_defaults,
    with_default_args as with_default_args,
)
from .variable_names import variable_names


def get_param_names(params: Any) -> Any:
    """The name of each parameter's variable, in a tree like the parameters.

    Example:
        >>> plait.export.utils.get_param_names({"layers": [{"w": 1.0}], "~": 2.0})
        {'layers': [{'w': 'layers.0.w'}], '~': '_'}
    """
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(params), variable_names(params))


def get_variable_tree(var_treedef: Any, var_leaves: Sequence[Any]) -> Any:
    """The variables in the structure of the parameters."""
    return jax.tree_util.tree_unflatten(var_treedef, list(var_leaves))


def get_lowering_platforms(kwargs: Mapping[str, Any]) -> Sequence[str] | None:
    """``native_serialization_platforms`` of some ``jax2tf_kwargs``, or ``None``."""
    return kwargs.get("native_serialization_platforms")


def make_e2e_inference_fn(model_fn: Any, serving_config: Any) -> Any:
    """The traced ``tf.function`` of a signature; see ``plait.export.export_manager``."""
    manager: Any = importlib.import_module(f"{__package__}.export_manager")
    return manager.make_e2e_inference_fn(model_fn, serving_config)
