"""``NNXMeta``: the box that carries a variable with its metadata through Linen. (rule B10)"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec
from jax.tree_util import GetAttrKey

from ....core.graph.axes import drop_axis, has_axis_metadata, put_axis
from ....core.variables.cells import PLAIN_METADATA, as_stored
from ....core.variables.variable_metadata import HOOKS
from ....core.variables.variables import Variable, make_variable
from ....partitioning.boxes import AxisMetadata, same_value
from ....partitioning.specs import get_var_pspec
from ....util.jax_versions import current_trace
from ....util.static_values import HashableMapping

A = TypeVar("A")


def new_variable(var_type: type[Variable[Any]], value: Any, metadata: Mapping[str, Any]) -> Variable[Any]:
    """A variable with a converted value: no hook changes the value, and no array moves to a device.

    The metadata includes the hooks of the class, as if its constructor had run; ``ref=True`` makes a new reference.
    """
    own = {name: (getattr(var_type, name),) for name in HOOKS if hasattr(var_type, name) and not metadata.get(name)}
    entries = {**PLAIN_METADATA, **metadata, **own}
    if entries == PLAIN_METADATA:
        entries = PLAIN_METADATA
    return make_variable(var_type, as_stored(value, entries), entries, current_trace())


@dataclasses.dataclass(frozen=True, eq=False)
class NNXMeta(AxisMetadata[A]):
    """A value with the class and the metadata of its original variable.

    Args:
        var_type: the class of the variable.
        value: its value, an array or a pytree.
        metadata: its metadata.

    Example:
        >>> box = plait.bridge.to_linen_var(plait.Param(jnp.ones(2), note="demo"))
        >>> type(box).__name__, box.var_type.__name__, box.to_nnx_variable().note
        ('NNXMeta', 'Param', 'demo')
    """

    var_type: type[Variable[Any]]
    value: Any
    metadata: Mapping[str, Any]

    def unbox(self) -> Any:
        """The value."""
        return self.value

    def replace_boxed(self, val: Any) -> NNXMeta[Any]:
        """A box with the same class and metadata, and the value ``val``."""
        return self.replace(value=val)

    def replace(self, **fields: Any) -> NNXMeta[Any]:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **fields)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta[A]:
        """A box whose metadata has an added axis at ``index``; the box itself if it has no axis metadata.

        Args:
            params: ``{PARTITION_NAME: name}``; without it, the axis is unnamed.
        """
        return self._with_axes(put_axis, index, params)

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta[A]:
        """A box whose metadata lacks the axis at ``index``; the box itself if it has no axis metadata."""
        return self._with_axes(drop_axis, index, params)

    def _with_axes(self, change: Any, index: int, params: Mapping[Any, Any]) -> NNXMeta[A]:
        variable = new_variable(self.var_type, self.value, self.metadata)
        if not has_axis_metadata(variable, params):
            return self
        implied = variable.get_metadata().keys() - self.metadata.keys()
        change(variable, index, params)
        metadata = {name: entry for name, entry in variable.get_metadata().items() if name not in implied}
        return dataclasses.replace(self, metadata=metadata)

    def get_partition_spec(self) -> PartitionSpec | None:
        """The spec of the variable."""
        return get_var_pspec(self.to_nnx_variable())

    def to_nnx_variable(self) -> Variable[A]:
        """The variable, with the value unchanged: create hooks have already run."""
        return new_variable(self.var_type, self.value, self.metadata)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NNXMeta):
            return NotImplemented
        same = self.var_type is other.var_type and dict(self.metadata) == dict(other.metadata)
        return same and same_value(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


def _flatten_with_keys(box: NNXMeta[Any]) -> Any:
    return ((GetAttrKey("value"), box.value),), (box.var_type, HashableMapping(box.metadata))


def _flatten(box: NNXMeta[Any]) -> Any:
    return (box.value,), (box.var_type, HashableMapping(box.metadata))


def _unflatten(static: Any, children: Any) -> NNXMeta[Any]:
    var_type, metadata = static
    return NNXMeta(var_type, children[0], dict(metadata))


jax.tree_util.register_pytree_with_keys(NNXMeta, _flatten_with_keys, _unflatten, _flatten)
