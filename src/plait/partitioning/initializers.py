"""Initializers whose values carry the metadata of their variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.variables.variable_metadata import VariableMetadata

F = TypeVar("F", bound=Callable[..., Any])


def with_metadata(
    initializer: F,
    on_set_value: Any = (),
    on_get_value: Any = (),
    on_create_value: Any = (),
    on_add_axis: Any = (),
    on_remove_axis: Any = (),
    **metadata: Any,
) -> F:
    """Wrap an initializer so that variables created from its result get these hooks and metadata.

    Args:
        initializer: any callable that returns a value.
        on_set_value: a callable or a sequence of callables, like the other hooks.
        **metadata: entries of the variable's metadata.

    Example:
        >>> init = plait.with_metadata(plait.initializers.ones_init(), note="demo")
        >>> plait.Param(init(jax.random.key(0), (2,), jnp.float32)).note
        'demo'
    """

    @functools.wraps(initializer)
    def wrapper(*args: Any, **kwargs: Any) -> VariableMetadata[Any]:
        value = initializer(*args, **kwargs)
        return VariableMetadata(
            value, on_set_value, on_get_value, on_create_value, on_add_axis, on_remove_axis, metadata
        )

    return wrapper  # type: ignore[return-value]


def with_partitioning(initializer: F, sharding: Any, mesh: Any = None, **metadata: Any) -> F:
    """Wrap an initializer so that variables created from its result have a sharding.

    Args:
        initializer: any callable that returns a value.
        sharding: a tuple of axis names, or any other value that ``out_sharding`` accepts.
        mesh: the mesh of the axis names; ``None`` means the current mesh when the variable is created.
        **metadata: more entries of the variable's metadata.

    Example:
        >>> init = plait.with_partitioning(plait.initializers.zeros_init(), (None, "model"))
        >>> plait.Param(init(jax.random.key(0), (2, 4), jnp.float32)).out_sharding
        (None, 'model')
    """
    return with_metadata(initializer, out_sharding=sharding, mesh=mesh, **metadata)
