"""Converts one variable to a Linen leaf, and one Linen leaf to a variable. (rules B11 to B15)"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from jax.tree_util import DictKey

from ....core.variables.cells import REQUIRED_METADATA
from ....core.variables.variable_metadata import HOOKS
from ....core.variables.variables import Variable
from ....errors import ArgumentError, CollectionTypeError
from ....partitioning.boxes import AxisMetadata, Partitioned
from ....partitioning.initializers import with_partitioning as with_partitioning_metadata
from ....util.jax_versions import is_mutable_array
from .collection_types import variable_type, variable_type_name
from .nnx_meta import NNXMeta, new_variable


def is_vanilla_variable(v: Variable[Any]) -> bool:
    """Whether a variable's metadata has only the flags, the hooks of its class, and empty hooks.

    Example:
        >>> plait.bridge.is_vanilla_variable(plait.Param(1)), plait.bridge.is_vanilla_variable(plait.Param(1, note="x"))
        (True, False)
    """
    for name, value in v.get_metadata().items():
        if name in REQUIRED_METADATA:
            continue
        is_hook = name in HOOKS or name.endswith("_hooks")
        of_class = name in HOOKS and value == (getattr(type(v), name, None),)
        if not (is_hook and (of_class or not value)):
            return False
    return True


def raw_value(v: Variable[Any]) -> Any:
    """The stored value; for a variable with a reference, the reference's value."""
    raw = v.get_raw_value()
    return raw[...] if is_mutable_array(raw) else raw


def to_linen_var(v: Variable[Any]) -> Any:
    """A variable as a Linen leaf: the bare value, or a box if there is metadata.

    Returns:
        A box of the class in ``linen_meta_type``, if the variable has one; the value of a variable without metadata;
        otherwise an ``NNXMeta``. The value is the stored one: get hooks run when the variable is used, not here.

    Example:
        >>> plait.bridge.to_linen_var(plait.Param(jnp.ones(2))).tolist()
        [1.0, 1.0]
    """
    value = raw_value(v)
    metadata = v.get_metadata()
    box = metadata.get("linen_meta_type")
    if box is not None:
        fields = {name: entry for name, entry in metadata.items() if name not in _NO_FIELDS}
        if hasattr(box, "from_nnx_metadata"):
            return box.from_nnx_metadata({"value": value, **fields})
        return box(value=value, **fields)
    if is_vanilla_variable(v) and not metadata["ref"]:
        return value
    return NNXMeta(type(v), value, metadata)


_NO_FIELDS = REQUIRED_METADATA | {"linen_meta_type"}


def to_nnx_var(collection: str, x: Any) -> Variable[Any]:
    """A Linen leaf as a variable of its collection's class.

    Args:
        collection: the name; an unknown one gets a new class.
        x: a box, whose fields become metadata, or any value. It is not changed.

    Raises:
        CollectionTypeError: an ``NNXMeta`` has a different class, or another collection has the same class.
        ArgumentError: a box has no value.

    Example:
        >>> v = plait.bridge.to_nnx_var("params", plait.meta.Partitioned(jnp.ones(2), ("embed",)))
        >>> type(v).__name__, v.out_sharding
        ('Param', ('embed',))
    """
    cls = variable_type(collection)
    if variable_type_name(cls) != collection:
        raise CollectionTypeError(
            "two collections have the same variable class, so a variable could not be converted back",
            at=f"collection {collection!r}",
            found=f"{cls.__name__}, the class of collection {variable_type_name(cls)!r}",
            expected="a class for each collection",
            do=f"plait.register_variable_name({collection!r}, a subclass of {cls.__name__}, overwrite=True)",
        )
    if isinstance(x, NNXMeta):
        if x.var_type is not cls:
            raise CollectionTypeError(
                "the variable class of a box differs from that of its collection",
                at=f"collection {collection!r}",
                found=f"an NNXMeta of {x.var_type.__name__}",
                expected=f"{cls.__name__}, the collection's class",
                do=f"plait.register_variable_name({collection!r}, {x.var_type.__name__}, overwrite=True), "
                "or move the leaf to the collection of its class",
            )
        return x.to_nnx_variable()
    if not isinstance(x, AxisMetadata):
        return new_variable(cls, x, {})
    fields = _fields(x)
    if "value" not in fields:
        raise ArgumentError(
            "a box without a value cannot become a variable",
            at=f"collection {collection!r}",
            found=f"a {type(x).__name__} with {sorted(fields)}",
            expected="a field or metadata entry 'value'",
            do=f"let {type(x).__name__}.to_nnx_metadata() return {{'value': ..., **metadata}}",
        )
    value = fields.pop("value")
    return new_variable(cls, value, {**fields, "linen_meta_type": type(x)})


def _fields(box: Any) -> dict[str, Any]:
    if hasattr(box, "to_nnx_metadata"):
        # Copied, because Flax's LogicallyPartitioned.to_nnx_metadata renames the fields of the box itself.
        return dict(copy.copy(box).to_nnx_metadata())
    if dataclasses.is_dataclass(box):
        return {field.name: getattr(box, field.name) for field in dataclasses.fields(box)}
    return dict(vars(box))


def get_col_name(keypath: Sequence[Any]) -> str:
    """The collection of a leaf, from its key path in a dictionary of Linen variables.

    Raises:
        ArgumentError: the path does not begin with the key of a dictionary.

    Example:
        >>> path, _ = jax.tree_util.tree_leaves_with_path({"params": {"w": 1}})[0]
        >>> plait.flax.bridge.variables.get_col_name(path)
        'params'
    """
    if not keypath or not isinstance(keypath[0], DictKey):
        raise ArgumentError(
            "a leaf is not in a collection",
            found=f"the key path {tuple(keypath)!r}",
            expected="a path that begins with the key of a dictionary, such as 'params'",
            do="pass the paths of {collection: variables}",
        )
    return str(keypath[0].key)


def with_partitioning(fn: Callable[..., Any], names: tuple[Any, ...], mesh: Any = None) -> Callable[..., Any]:
    """A Linen-style initializer: its variable has axis names, and becomes a ``Partitioned`` in Linen.

    Example:
        >>> init = plait.bridge.with_partitioning(plait.initializers.ones_init(), ("embed",))
        >>> plait.bridge.to_linen_var(plait.Param(init(jax.random.key(0), (2,), jnp.float32))).names
        ('embed',)
    """
    return with_partitioning_metadata(fn, names, mesh, linen_meta_type=Partitioned)
