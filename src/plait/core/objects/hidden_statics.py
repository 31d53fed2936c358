"""Plain containers as JAX pytrees: elements that are not data are replaced by pytrees without leaves."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from ...ground.paths import format_path
from .attributes import contains_itself
from .bound_methods import is_bound
from .nodes import Kind, Static, kind_of, pytree_impl, unwrapped


@dataclasses.dataclass
class HiddenCall:
    """A method or partial of a node as a JAX pytree.

    Attributes:
        kind: its type.
        children: its owner, function and arguments.
    """

    kind: type
    children: dict[str, Any]


jax.tree_util.register_dataclass(HiddenCall, data_fields=["children"], meta_fields=["kind"])


def hide_static(value: Any, place: Any, above: tuple[int, ...] = ()) -> Any:
    """A container in which elements that are not data are replaced by pytrees without leaves.

    Args:
        place: the key of the outermost container in its owner.
        above: the ids of the containers that it is in.

    Raises:
        GraphError: a plain container contains itself.
    """
    kind = kind_of(value)
    if kind is Kind.STATIC:
        return Static(value)
    if kind is not Kind.PYTREE or value is None:
        return value
    if id(value) in above:
        raise contains_itself(value, format_path((place,)))
    above = (*above, id(value))
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    if is_bound(value):
        return HiddenCall(type(value), {key: hide_static(unwrapped(child), place, above) for key, child in children})
    return impl.unflatten([(key, hide_static(child, place, above)) for key, child in children], metadata)


def show_static(value: Any) -> Any:
    """The inverse of ``hide_static``."""
    if type(value) is Static:
        return value.value
    if type(value) is HiddenCall:
        children = [(key, show_static(child)) for key, child in value.children.items()]
        return pytree_impl(value.kind).unflatten(children, None)
    if value is None or type(value) is object or kind_of(value) is not Kind.PYTREE:
        return value
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    shown = [(key, show_static(child)) for key, child in children]
    if all(new is old for (_, new), (_, old) in zip(shown, children, strict=True)):
        return value
    return impl.unflatten(shown, metadata)
