"""Layouts in any form of a variable's ``out_sharding``: a tuple of names, a ``PartitionSpec``, a ``NamedSharding`` or a
``Format``. Public as part of ``plait.spmd``.
"""

# Rules V37 to V41, M25, M26, M30.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from .axis_rules import Rules, composite_rules, from_sharding_rules, get_logical_axis_rules
from .mesh import place_by_spec
from .specs import without_format


def map_sharding(f: Callable[[Any], Any], sharding: Any) -> Any:
    """A layout with ``f`` applied to the name of each axis; a tuple of names becomes a ``PartitionSpec``.

    Example:
        >>> plait.spmd.map_sharding(lambda name: name and name.upper(), ("x", None))
        P('X', None)
    """
    return _map_names(lambda names: tuple(map(f, names)), sharding)


def apply_rules(sharding: Any, sharding_rules: Rules) -> Any:
    """A layout with each name that has a rule replaced by its target.

    Example:
        >>> plait.spmd.apply_rules(("embed", "mlp"), [("mlp", "model")])
        P('embed', 'model')
    """
    return _map_names(lambda names: from_sharding_rules(names, sharding_rules), sharding)


def get_pspec(sharding: Any, sharding_rules: Rules | None = None) -> Any:
    """A layout with the rules of the thread, and those given, applied to its names; ``None`` for none.

    Raises:
        ArgumentError: the two sets of rules contradict each other.

    Example:
        >>> with plait.logical_axis_rules([("embed", "data")]):
        ...     plait.spmd.get_pspec(("embed", "mlp"), [("mlp", "model")])
        P('data', 'model')
    """
    return apply_rules(sharding, composite_rules(get_logical_axis_rules(), sharding_rules or ()))


def get_mesh(sharding: Any) -> Any:
    """The mesh of a layout; ``None`` for names and specs."""
    sharding = without_format(sharding)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None


def shard_value(value: Any, out_sharding: Any, sharding_rules: Rules | None, mesh: Any) -> Any:
    """A value laid out as a variable with this metadata would be.

    Args:
        value: an array.
        out_sharding: the layout; empty or ``None`` leaves the value unchanged.
        sharding_rules: rules of the variable, in addition to those of the thread.
        mesh: ``None`` means the mesh of the layout, or the current one; without a mesh the value is unchanged.

    Raises:
        ArgumentError: the layout does not fit the mesh or the value.
    """
    if not out_sharding:
        return value
    mesh = get_mesh(out_sharding) if mesh is None else mesh
    found = without_format(get_pspec(out_sharding, sharding_rules))
    if isinstance(found, Sharding) and not isinstance(found, NamedSharding):
        return jax.device_put(value, found)
    spec = found.spec if isinstance(found, NamedSharding) else found
    return place_by_spec(value, spec, mesh, "a value", names=out_sharding)


def _map_names(f: Callable[[Any], Any], sharding: Any) -> Any:
    if isinstance(sharding, (tuple, list, PartitionSpec)):
        return PartitionSpec(*f(tuple(sharding)))
    if isinstance(sharding, NamedSharding):
        return sharding.update(spec=PartitionSpec(*f(tuple(sharding.spec))))
    if hasattr(sharding, "layout"):
        return type(sharding)(sharding.layout, _map_names(f, sharding.sharding))
    return sharding
