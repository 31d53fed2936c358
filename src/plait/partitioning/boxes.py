"""Boxes: values that carry the names of their axes, as in Linen. Public as ``plait.meta``.

A box is an immutable pytree around a value; ``jax.tree.map``, ``jit``, ``vmap`` and ``scan`` carry its names along.
"""

# Rules M1 to m24.

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..core.graph.axes import PARTITION_NAME as PARTITION_NAME
from ..errors import ArgumentError, AxisNameMismatchError, PartitioningUnspecifiedError as PartitioningUnspecifiedError
from .axis_rules import (
    Rules,
    RulesFallback as RulesFallback,
    get_logical_axis_rules,
    logical_to_mesh_axes as logical_to_mesh_axes,
)
from .mesh import get_global_mesh as get_global_mesh, global_mesh_defined as global_mesh_defined, place_by_spec
from .specs import get_partition_spec as get_partition_spec, is_spec_leaf, map_specs, spec_of

__all__ = [
    "AxisMetadata",
    "LogicallyPartitioned",
    "PARTITION_NAME",
    "Partitioned",
    "RulesFallback",
    "add_axis",
    "get_global_mesh",
    "get_partition_spec",
    "get_sharding",
    "global_mesh_defined",
    "is_axis_metadata",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "map_axis_meta",
    "remove_axis",
    "replace_boxed",
    "unbox",
    "with_logical_constraint",
    "with_logical_partitioning",
    "with_partitioning",
]
__dir__ = __all__.copy

A = TypeVar("A")


class AxisMetadata(abc.ABC, Generic[A]):
    """A value with metadata about its axes. Subclasses are pytrees whose leaves are those of the value.

    The boxes of Linen count as subclasses wherever Flax is loaded.
    """

    @classmethod
    def __subclasshook__(cls, subclass: type, /) -> Any:
        # There can be no Linen box before Linen's module is loaded, so nothing is imported here. A program may have put
        # this module in the place of Linen's: then there is no other class.
        foreign = getattr(sys.modules.get("flax.core.meta"), "AxisMetadata", None)
        if cls is not AxisMetadata or foreign in (None, AxisMetadata) or foreign not in subclass.__mro__:
            return NotImplemented
        # Python does not let two classes be subclasses of each other, so ours is registered with Linen's base first.
        return subclass is not foreign or issubclass(cls, foreign)

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        # ``isinstance`` reads this before it looks at the classes: a caller that passes a Linen class has loaded Linen,
        # so the answer is right whichever library was loaded first.
        _link_boxes()
        _make_serializable(type(self))
        return type(self)

    @abc.abstractmethod
    def unbox(self) -> Any:
        """The value directly inside, even if it is itself a box."""

    @abc.abstractmethod
    def replace_boxed(self, val: Any) -> AxisMetadata[Any]:
        """A box with the same metadata around ``val``."""

    @abc.abstractmethod
    def add_axis(self, index: int, params: Mapping[Any, Any]) -> AxisMetadata[A]:
        """A box with one more axis, at ``index``, around the same value."""

    @abc.abstractmethod
    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> AxisMetadata[A]:
        """A box without the axis at ``index``, around the same value."""


def _link_boxes() -> None:
    """Make every plait box an instance of Linen's class too, if Flax is loaded. (rule B3)

    The other direction needs no link: ``AxisMetadata`` knows Linen's base class by itself.
    """
    for ours, (module, name) in _LINEN_S.items():
        foreign = getattr(sys.modules.get(module), name, None)
        if foreign is not None and foreign not in _linked:
            foreign.register(globals()[ours])
            _linked.add(foreign)


# Our class, and the place of Linen's class with the same fields.
_LINEN_S = {
    "AxisMetadata": ("flax.core.meta", "AxisMetadata"),
    "Partitioned": ("flax.core.meta", "Partitioned"),
    "LogicallyPartitioned": ("flax.linen.spmd", "LogicallyPartitioned"),
}
_linked: set[type] = set()


def _make_serializable(cls: type) -> None:
    """Make Flax's serialization store the value of a box, as it does with its own boxes, if Flax is loaded."""
    if cls in _serializable:  # asked in each isinstance
        return
    flax = sys.modules.get("flax.serialization")
    register = getattr(flax, "register_serialization_state", None)
    if register is None:
        return
    _serializable.add(cls)
    if "value" in getattr(cls, "__dataclass_fields__", ()):
        with contextlib.suppress(ValueError):  # the class has registered itself
            register(cls, _state_of_box, _box_from_state)


_serializable: weakref.WeakSet[type] = weakref.WeakSet()


def _state_of_box(box: Any) -> dict[str, Any]:
    return {"value": sys.modules["flax.serialization"].to_state_dict(box.value)}


def _box_from_state(box: Any, state: Mapping[str, Any]) -> Any:
    if state.keys() != {"value"}:
        raise ArgumentError(
            "the stored state of a box does not fit",
            at=f"a {type(box).__name__}",
            found=f"the entries {sorted(map(str, state))}",
            expected="the entry 'value', as to_state_dict() returns it",
            do="restore it into variables with the same boxes, or unbox both: plait.meta.unbox(variables)",
        )
    value = sys.modules["flax.serialization"].from_state_dict(box.value, state["value"], name="value")
    return dataclasses.replace(box, value=value)


def is_axis_metadata(x: Any) -> bool:
    """Whether ``x`` is a box."""
    return isinstance(x, AxisMetadata)


def map_axis_meta(fn: Callable[[AxisMetadata[Any]], Any], tree: Any) -> Any:
    """``tree`` with ``fn`` applied to each outermost box; other leaves are unchanged."""
    return jax.tree_util.tree_map(lambda x: fn(x) if is_axis_metadata(x) else x, tree, is_leaf=is_axis_metadata)


def add_axis(tree: Any, index: int, params: Mapping[Any, Any]) -> Any:
    """A tree whose outermost boxes have one more axis, at ``index``."""
    return map_axis_meta(lambda box: box.add_axis(index, params), tree)


def remove_axis(tree: Any, index: int, params: Mapping[Any, Any]) -> Any:
    """A tree whose outermost boxes lack the axis at ``index``."""
    return map_axis_meta(lambda box: box.remove_axis(index, params), tree)


def unbox(tree: Any) -> Any:
    """A tree without its boxes, nested boxes included.

    Example:
        >>> plait.meta.unbox({"w": plait.meta.Partitioned(jnp.ones(2), ("x",)), "b": 1})
        {'b': 1, 'w': Array([1., 1.], dtype=float32)}
    """
    return map_axis_meta(lambda box: unbox(box.unbox()), tree)


def replace_boxed(tree: Any, updates: Any) -> Any:
    """``tree`` with new values in its boxes.

    Args:
        updates: a tree with the structure of ``unbox(tree)``.

    Raises:
        ValueError: the structure differs.
    """

    def replace(old: Any, new: Any) -> Any:
        return old.replace_boxed(replace_boxed(old.unbox(), new)) if is_axis_metadata(old) else new

    return jax.tree_util.tree_map(replace, tree, updates, is_leaf=is_axis_metadata)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["names", "mesh"])
@dataclasses.dataclass(frozen=True, eq=False)
class Partitioned(AxisMetadata[A]):
    """A value with a name for each of its axes.

    Args:
        value: an array, or a pytree of them.
        names: for each axis a name, a tuple of names, or ``None``.
        mesh: the mesh that the names belong to.

    Example:
        >>> box = plait.meta.Partitioned(jnp.ones((2, 3)), ("in", None))
        >>> box.add_axis(0, {plait.PARTITION_NAME: "layers"}).names, box.get_partition_spec()
        (('layers', 'in', None), P('in', None))
    """

    value: Any
    names: tuple[Any, ...]
    mesh: Any = dataclasses.field(default=None, repr=False)

    def unbox(self, apply_constraint: bool = True) -> Any:
        """The value, sharded by its names if there is a mesh."""
        if not apply_constraint or (self.mesh is None and get_global_mesh() is None):
            return self.value
        spec, what = self.get_partition_spec(), f"a {type(self).__name__}"
        # A box inside has its own names.
        return jax.tree_util.tree_map(
            lambda leaf: place_by_spec(leaf, spec, self.mesh, what), self.value, is_leaf=is_axis_metadata
        )

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def replace(self, **fields: Any) -> Any:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **fields)

    def _axis_name(self, params: Mapping[Any, Any]) -> Any:
        if PARTITION_NAME not in params:
            raise PartitioningUnspecifiedError(
                "an axis of a box is added or removed without its name",
                at=f"{type(self).__name__} with names {self.names}",
                found=f"{dict(params)!r}",
                expected=f"an entry {PARTITION_NAME!r}",
                do="pass metadata_params (or transform_metadata) {plait.PARTITION_NAME: name}",
            )
        return params[PARTITION_NAME]

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Any:
        name = self._axis_name(params)
        names = list(self.names)
        place = index if index >= 0 else len(names) + index + 1
        names += [None] * (place - len(names))
        names.insert(place, name)
        return self.replace(names=tuple(names))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Any:
        name = self._axis_name(params)
        if not -len(self.names) <= index < len(self.names):
            raise IndexError(f"there is no axis {index} to remove from a box with names {self.names}")
        names = list(self.names)
        found = names.pop(index)
        if found != name:
            raise AxisNameMismatchError(
                "the axis to remove has a different name",
                at=f"axis {index} of a {type(self).__name__} with names {self.names}",
                found=f"{found!r}",
                expected=f"{name!r}",
                do=f"name the axis as the box does: {{plait.PARTITION_NAME: {found!r}}}",
            )
        return self.replace(names=tuple(names))

    def get_partition_spec(self) -> PartitionSpec:
        """The names as a spec."""
        return PartitionSpec(*self.names)

    def get_sharding(self, mesh: Any) -> NamedSharding:
        """The names as a sharding on ``mesh``."""
        return NamedSharding(mesh, self.get_partition_spec())

    def to_nnx_metadata(self) -> dict[str, Any]:
        """All fields, the value included, under the names of a variable's metadata: ``names`` as ``out_sharding``."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {self._renamed().get(name, name): value for name, value in fields.items()}

    @classmethod
    def from_nnx_metadata(cls, metadata: Mapping[str, Any]) -> Any:
        """The box of such metadata; entries that are not fields are omitted."""
        names = {f.name: cls._renamed().get(f.name, f.name) for f in dataclasses.fields(cls)}
        return cls(**{field: metadata[key] for field, key in names.items() if key in metadata})

    @classmethod
    def _renamed(cls) -> dict[str, str]:
        return {"names": "out_sharding"}

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        mine, others = (
            [getattr(box, f.name) for f in dataclasses.fields(self) if f.name != "value"] for box in (self, other)
        )
        return mine == others and same_value(self.value, other.value)  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


def same_value(first: Any, second: Any) -> bool:
    """Whether two values are the same object, or trees of equal arrays. (rule M19)"""
    if first is second:
        return True
    leaves, tree = jax.tree_util.tree_flatten(first)
    others, other_tree = jax.tree_util.tree_flatten(second)
    if tree != other_tree:
        return False
    return all(
        x is y or (jnp.shape(x) == jnp.shape(y) and bool(jnp.all(jnp.equal(x, y))))
        for x, y in zip(leaves, others, strict=True)
    )


@functools.partial(jax.tree_util.register_dataclass, data_fields=["value"], meta_fields=["names", "mesh", "rules"])
@dataclasses.dataclass(frozen=True, eq=False)
class LogicallyPartitioned(Partitioned[A]):
    """A box whose names are logical: rules map them to mesh axes.

    Args:
        rules: pairs (logical name, mesh axis); default: those of ``logical_axis_rules``.
    """

    rules: Any = dataclasses.field(default=None, repr=False)

    def unbox(self, apply_constraint: bool = True) -> Any:
        """The value, sharded by its names and the rules if there is a mesh."""
        if not apply_constraint:
            return self.value
        return with_logical_constraint(self.value, self.names, rules=self.rules, mesh=self.mesh)

    @classmethod
    def _renamed(cls) -> dict[str, str]:
        return {"names": "out_sharding", "rules": "sharding_rules"}


def with_logical_constraint(
    x: Any,
    logical_axes: Any,
    rules: Rules | None = None,
    mesh: Any = None,
    fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED,
) -> Any:
    """Shard a value by the logical names of its axes.

    Args:
        x: an array, or a pytree of arrays.
        logical_axes: the names; for a pytree, a prefix tree of tuples of names.
        rules: default: those of the thread; without rules, names or mesh, ``x`` is returned unchanged.
        fallback: what to do with a name that no rule matches.

    Raises:
        ArgumentError: no rule matches and ``fallback`` says to raise.
    """
    rules = get_logical_axis_rules() if rules is None else rules
    if not rules or logical_axes is None:
        return x

    def constrain(value: Any, names: Any) -> Any:
        if not _are_names(names) and not jax.tree_util.all_leaves([value]):
            children, tree = jax.tree_util.tree_flatten(value, is_leaf=lambda other: other is not value)
            return tree.unflatten(map(constrain, children, tree.flatten_up_to(names)))
        spec = logical_to_mesh_axes(names, rules, fallback=fallback)
        if spec is None:
            return value
        what = f"an array with logical axes {names}"
        return jax.tree_util.tree_map(lambda leaf: place_by_spec(leaf, spec, mesh, what), value)

    return constrain(x, logical_axes)


def _are_names(x: Any) -> bool:
    """Whether these can only be names; a tuple of tuples of names may stand for a tuple of arrays."""
    return x is None or (
        isinstance(x, tuple) and all(e is None or e is PartitionSpec.UNCONSTRAINED or isinstance(e, str) for e in x)
    )


def logical_to_mesh(tree: Any, rules: Rules | None = None) -> Any:
    """A tree of specs with logical names as a tree of specs with mesh axes."""
    return map_specs(lambda spec: logical_to_mesh_axes(spec, rules) or PartitionSpec(), tree)


def logical_to_mesh_sharding(tree: Any, mesh: Any, rules: Rules | None = None) -> Any:
    """A tree of specs with logical names as a tree of shardings on ``mesh``."""
    return map_specs(lambda spec: NamedSharding(mesh, spec), logical_to_mesh(tree, rules))


def with_partitioning(fn: Callable[..., Any], names: tuple[Any, ...], mesh: Any = None) -> Callable[..., Any]:
    """An initializer whose result is a ``Partitioned``. (``plait.with_partitioning`` annotates a variable instead.)"""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return Partitioned(fn(*args, **kwargs), names, mesh)

    return wrapper


def with_logical_partitioning(
    fn: Callable[..., Any], names: tuple[Any, ...], mesh: Any = None, rules: Rules | None = None
) -> Callable[..., Any]:
    """An initializer whose result is a ``LogicallyPartitioned``."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return LogicallyPartitioned(fn(*args, **kwargs), names, mesh, rules)

    return wrapper


def get_sharding(tree: Any, mesh: Any) -> Any:
    """The sharding on ``mesh`` of each leaf; ``None`` for a leaf without a spec."""

    def convert(leaf: Any) -> Any:
        if hasattr(leaf, "get_sharding"):
            return leaf.get_sharding(mesh)
        return map_specs(lambda spec: NamedSharding(mesh, spec), spec_of(leaf))

    return jax.tree_util.tree_map(convert, tree, is_leaf=is_spec_leaf)
