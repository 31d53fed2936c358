"""Collection names and their variable classes, under Flax's function names. (rules B4 to B9)

The table is that of ``plait.register_variable_name``; unlike it, these functions register unknown names. Arrays and
numbers that are not in a variable ("bare") have collections named after their types. (rule B29)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....core.intermediates.variable_names import (
    _CLASSES,
    register_variable_name,
    variable_name_from_type,
    variable_type_from_name,
)
from ....core.variables.variables import Variable
from ....errors import ArgumentError
from ....util.jax_versions import is_mutable_array

# The table itself: collection name -> class.
VariableTypeCache: dict[str, type[Variable[Any]]] = _CLASSES

_ARRAYS, _KEYS = "ArrayImpl", "PRNGKeyArray"
_NUMBERS = (bool, int, float, complex)
# Flax names a collection after the type of the value, which in a compiled ``init`` is that of a tracer.
BARE_COLLECTIONS = (_ARRAYS, _KEYS, "ndarray", "DynamicJaxprTracer", *(each.__name__ for each in _NUMBERS))


def variable_type(name: str) -> type[Variable[Any]]:
    """The variable class of a collection name; an unknown name is registered with a new class.

    Example:
        >>> plait.bridge.variable_type("params").__name__, plait.bridge.variable_type("demo_counts").__name__
        ('Param', 'demo_counts')
    """
    return variable_type_from_name(name, allow_register=True)


def variable_type_name(cls: type[Variable[Any]]) -> str:
    """The collection name of a variable class; a class without one is registered under its class name.

    Raises:
        ArgumentError: the class has no collection name, and another class is registered under its class name.

    Example:
        >>> plait.bridge.variable_type_name(plait.BatchStat)
        'batch_stats'
    """
    taken = _CLASSES.get(cls.__name__)
    if taken is not None and taken is not cls and cls not in _CLASSES.values():
        raise ArgumentError(
            f"the collection name {cls.__name__!r} is already in use",
            found=f"{_dotted(cls)}, which would be registered under it",
            expected=f"{_dotted(taken)}, the class that has the name",
            do=f"give the class another name: plait.register_variable_name('a_name', {cls.__name__})",
        )
    return variable_name_from_type(cls, allow_register=True)


def is_bare(leaf: Any) -> bool:
    """Whether a leaf is an array or a number, not a variable."""
    return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic, *_NUMBERS))


def collection_of(leaf: Any) -> str:
    """The collection of a variable, an array or a number."""
    if isinstance(leaf, Variable):
        return variable_type_name(type(leaf))
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)) or is_mutable_array(leaf):
        return _KEYS if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else _ARRAYS
    return "ndarray" if isinstance(leaf, np.generic) else type(leaf).__name__


def register_variable_name_type_pair(name: str, cls: type[Variable[Any]], overwrite: bool = False) -> None:
    """Register a collection name for a variable class.

    Args:
        overwrite: whether to replace the class that has the name.

    Raises:
        ArgumentError: the name has a class already, and ``overwrite`` is not set.

    Example:
        >>> class DemoScale(plait.Variable):
        ...     pass
        >>> plait.bridge.register_variable_name_type_pair("demo_scales", DemoScale)
        >>> plait.bridge.variable_type("demo_scales").__name__
        'DemoScale'
    """
    register_variable_name(name, cls, overwrite=overwrite)


def sort_variable_types(types: Iterable[type]) -> list[type]:
    """Variable classes, the most derived first; classes of equal depth keep their order.

    As filters in this order, each class selects what its subclasses did not.

    Example:
        >>> types = plait.bridge.sort_variable_types([plait.Variable, plait.Param, plait.LoRAParam])
        >>> [each.__name__ for each in types]
        ['LoRAParam', 'Param', 'Variable']
    """
    return sorted(types, key=lambda cls: -sum(issubclass(base, Variable) for base in cls.__mro__))


def _dotted(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
