"""Plain containers as JAX pytrees: elements that are not data are replaced by pytrees without leaves."""

from __future__ import annotations

from typing import Any

from .nodes import Kind, Static, kind_of, pytree_impl


def hide_static(value: Any) -> Any:
    """A container in which elements that are not data are replaced by pytrees without leaves."""
    kind = kind_of(value)
    if kind is Kind.STATIC:
        return Static(value)
    if kind is not Kind.PYTREE or value is None:
        return value
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    return impl.unflatten([(key, hide_static(child)) for key, child in children], metadata)


def show_static(value: Any) -> Any:
    """The inverse of ``hide_static``."""
    if type(value) is Static:
        return value.value
    if value is None or type(value) is object or kind_of(value) is not Kind.PYTREE:
        return value
    impl = pytree_impl(type(value))
    children, metadata = impl.flatten(value)
    shown = [(key, show_static(child)) for key, child in children]
    if all(new is old for (_, new), (_, old) in zip(shown, children, strict=True)):
        return value
    return impl.unflatten(shown, metadata)
