"""``VariableState``, Flax's earlier name for a variable of a state."""

from __future__ import annotations

from typing import Any, TypeVar

from ...errors import ArgumentTypeError
from ...typing import Value
from ..variables.variables import Variable, VariableType

A = TypeVar("A")


class VariableState(Variable[A]):
    """Any leaf of a state: every variable is an instance.

    ``VariableState(type=Param, value=v, **metadata)`` creates a detached variable of the given kind.

    Raises:
        ArgumentTypeError: ``type`` is not a variable class.

    Example:
        >>> leaf = plait.VariableState(plait.Param, jnp.zeros(2), note="demo")
        >>> leaf.type.__name__, leaf.note, isinstance(leaf, plait.VariableState)
        ('Param', 'demo', True)
    """


class _VariableStateType(VariableType):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Variable)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Variable)

    def __call__(cls, type: Any, value: Value, **metadata: Any) -> Any:
        if not (isinstance(type, VariableType) and issubclass(type, Variable)):
            raise ArgumentTypeError(
                "VariableState needs a variable class",
                found=f"type={type!r}",
                expected="a subclass of plait.Variable",
                do="write, for example, plait.VariableState(plait.Param, value)",
            )
        return type.from_metadata(value, metadata)


VariableState.__class__ = _VariableStateType  # pyright: ignore[reportAttributeAccessIssue]  # known to Python only
