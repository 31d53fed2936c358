"""Results of wrapped initializers: a value with the hooks and metadata for the variable that will hold it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

HOOKS = ("on_create_value", "on_get_value", "on_set_value", "on_add_axis", "on_remove_axis")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class VariableMetadata(Generic[A]):
    """A value together with the hooks and metadata for the variable that will hold it.

    Initializers wrapped by ``with_metadata`` return one; a variable's constructor unpacks it.

    Args:
        raw_value: the value.
        on_set_value: a callable or a sequence of callables, like the other hooks.
        metadata: entries of the variable's metadata.

    Example:
        >>> plait.Param(plait.VariableMetadata(jnp.zeros(2), metadata={"note": "demo"})).note
        'demo'
    """

    raw_value: A
    on_set_value: Any = ()
    on_get_value: Any = ()
    on_create_value: Any = ()
    on_add_axis: Any = ()
    on_remove_axis: Any = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in HOOKS:
            setattr(self, name, hook_tuple(getattr(self, name)))
        self.metadata = dict(self.metadata or {})

    def hooks(self) -> dict[str, tuple[Callable[..., Any], ...]]:
        """The hooks that are set, by name."""
        return {name: getattr(self, name) for name in HOOKS if getattr(self, name)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableMetadata):
            return NotImplemented
        return self.raw_value is other.raw_value and self.hooks() == other.hooks() and self.metadata == other.metadata

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VariableMetadata({self.raw_value!r}, metadata={self.metadata!r})"


def hook_tuple(hooks: Any) -> tuple[Callable[..., Any], ...]:
    if hooks is None:
        return ()
    return (hooks,) if callable(hooks) else tuple(hooks)
