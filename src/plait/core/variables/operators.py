"""Operators of variables: arithmetic as if the variable were its value.

Binary, unary and comparison operators read both sides with ``get_value`` and return plain values. In-place operators
write the result back and return the same variable, so that ``model.count += 1`` changes the value and leaves the
attribute pointing at its variable. (rules V19 to V21)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from ...typing import Node, Value
from ...util.jax_versions import ArrayImpl
from ..traces.guard import known_path
from .cells import is_unusable, unusable

if TYPE_CHECKING:
    from jax import Array

V = TypeVar("V")


def value_of(operand: Value) -> Value:
    """The value of a variable; anything else unchanged.

    Raises:
        DonatedArrayError: the array was donated; names the path.
        ArgumentError: it is a shape without values; names the path.
    """
    return _own_value(operand) if isinstance(operand, VariableOperators) else operand


def _own_value(variable: VariableOperators) -> Value:
    return usable(variable.get_value(), variable)


def usable(value: Value, variable: VariableOperators) -> Value:
    """The value of a variable, unless it was donated or has no values."""
    if value.is_deleted() if type(value) is ArrayImpl else is_unusable(value):  # inlined, to save a call
        raise unusable(value, known_path(variable))
    return value


def _binary(operation: Callable[[Value, Value], Value], name: str) -> tuple[Any, Any, Any]:
    def forward(self: Node, other: Value) -> Value:
        return operation(_own_value(self), value_of(other))

    def reflected(self: Node, other: Value) -> Value:
        return operation(value_of(other), _own_value(self))

    def in_place(self: Node, other: Value) -> Value:
        self.set_value(operation(_own_value(self), value_of(other)))
        return self

    forward.__name__, reflected.__name__, in_place.__name__ = f"__{name}__", f"__r{name}__", f"__i{name}__"
    return forward, reflected, in_place


def _unary(operation: Callable[[Value], Value], name: str) -> Any:
    def apply(self: Node) -> Value:
        return operation(_own_value(self))

    apply.__name__ = f"__{name}__"
    return apply


def _trunc(value: Value) -> Value:
    """``math.trunc`` needs a method that NumPy's numbers do not have."""
    return math.trunc(value if hasattr(value, "__trunc__") else float(value))


class _HoldsArray(Protocol):
    def get_value(self) -> Array: ...


@overload
def _operator(self: _HoldsArray, *other: Any) -> Array: ...
@overload
def _operator(self: Any, *other: Any) -> Any: ...
def _operator(self: Any, *other: Any) -> Any:
    """An operator as type checkers see it: of a variable with an array it is an array."""


def _in_place(self: V, other: Any) -> V:
    """The same of one that writes."""
    return self


class VariableOperators:
    """The operators, on top of ``get_value`` and ``set_value``.

    Example:
        >>> count = plait.Variable(jnp.asarray(2))
        >>> count += 1
        >>> int(2 * count), bool(count > 2), "abcd"[count]
        (6, True, 'd')
    """

    __slots__ = ()

    # NumPy arrays defer mixed operations to variables, as they do to JAX arrays; otherwise they would need a NumPy
    # array, which a traced value cannot provide.
    __array_priority__ = 100

    def get_value(self) -> Value:
        raise NotImplementedError

    def set_value(self, value: Value) -> None:
        raise NotImplementedError

    if TYPE_CHECKING:
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __divmod__ = __matmul__ = (
            _operator
        )
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __rmatmul__ = _operator
        __lshift__ = __rshift__ = __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = _operator
        __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __neg__ = __pos__ = __abs__ = __invert__ = _operator
        __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = __imatmul__ = _in_place
        __ilshift__ = __irshift__ = __iand__ = __ior__ = __ixor__ = _in_place
    else:
        __add__, __radd__, __iadd__ = _binary(operator.add, "add")
        __sub__, __rsub__, __isub__ = _binary(operator.sub, "sub")
        __mul__, __rmul__, __imul__ = _binary(operator.mul, "mul")
        __truediv__, __rtruediv__, __itruediv__ = _binary(operator.truediv, "truediv")
        __floordiv__, __rfloordiv__, __ifloordiv__ = _binary(operator.floordiv, "floordiv")
        __mod__, __rmod__, __imod__ = _binary(operator.mod, "mod")
        __pow__, __rpow__, __ipow__ = _binary(operator.pow, "pow")
        __divmod__, __rdivmod__ = _binary(divmod, "divmod")[:2]
        __matmul__, __rmatmul__, __imatmul__ = _binary(operator.matmul, "matmul")
        __lshift__, __rlshift__, __ilshift__ = _binary(operator.lshift, "lshift")
        __rshift__, __rrshift__, __irshift__ = _binary(operator.rshift, "rshift")
        __and__, __rand__, __iand__ = _binary(operator.and_, "and")
        __or__, __ror__, __ior__ = _binary(operator.or_, "or")
        __xor__, __rxor__, __ixor__ = _binary(operator.xor, "xor")

        __lt__ = _binary(operator.lt, "lt")[0]
        __le__ = _binary(operator.le, "le")[0]
        __gt__ = _binary(operator.gt, "gt")[0]
        __ge__ = _binary(operator.ge, "ge")[0]
        __eq__ = _binary(operator.eq, "eq")[0]
        __ne__ = _binary(operator.ne, "ne")[0]
        __hash__ = None  # type: ignore[assignment]

        __neg__ = _unary(operator.neg, "neg")
        __pos__ = _unary(operator.pos, "pos")
        __abs__ = _unary(operator.abs, "abs")
        __invert__ = _unary(operator.invert, "invert")
        __int__ = _unary(int, "int")
        __float__ = _unary(float, "float")
        __complex__ = _unary(complex, "complex")
        __bool__ = _unary(bool, "bool")
        __index__ = _unary(operator.index, "index")
        __trunc__ = _unary(_trunc, "trunc")
        __floor__ = _unary(math.floor, "floor")
        __ceil__ = _unary(math.ceil, "ceil")

    def __format__(self, spec: str) -> str:
        return format(self.get_value(), spec) if spec else str(self)

    def __round__(self, digits: int | None = None) -> Any:
        value = _own_value(self)
        return round(value) if digits is None else round(value, digits)
