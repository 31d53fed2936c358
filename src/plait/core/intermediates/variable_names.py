"""Names of variable kinds: the two-way table between collection names, such as ``params``, and classes. (rule V48)

Other formats (Linen collections, checkpoints) refer to collections by name; ``sow`` and ``perturb`` also accept names.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar, overload

from ...errors import ArgumentError
from ...typing import Value
from ..variables.variable_kinds import BatchStat, Cache, Intermediate, Param, Perturbation
from ..variables.variables import Variable

T = TypeVar("T", bound=type)

# ``register_variable_name`` adds entries. They are never removed, and keep the classes alive.
_CLASSES: dict[str, type[Variable[Value]]] = {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}


@overload
def register_variable_name(name: str, typ: T, *, overwrite: bool = False) -> T: ...
@overload
def register_variable_name(name: str, typ: None = None, *, overwrite: bool = False) -> Callable[[T], T]: ...
def register_variable_name(name: str, typ: Any = None, *, overwrite: bool = False) -> Any:
    """Bind a collection name to a variable class. Without ``typ``, returns a decorator.

    Args:
        name: the name.
        typ: the class.
        overwrite: whether to replace the class that has the name.

    Returns:
        The class.

    Raises:
        ArgumentError: the name already belongs to a class, and ``overwrite`` is not set.

    Example:
        >>> @plait.register_variable_name("demo_moments")
        ... class DemoMoment(plait.Variable):
        ...     pass
        >>> plait.variable_name_from_type(DemoMoment)
        'demo_moments'
    """
    if typ is None:
        return lambda typ: register_variable_name(name, typ, overwrite=overwrite)
    known = _CLASSES.get(name)
    if known is not None and not overwrite:
        raise ArgumentError(
            f"the variable name {name!r} is already registered",
            found=f"{typ.__name__}, for a name that belongs to {known.__name__}",
            expected="an unused name",
            do=f"choose a different name, or plait.register_variable_name({name!r}, {typ.__name__}, overwrite=True)",
        )
    _CLASSES[name] = typ
    return typ


def variable_type_from_name(
    name: str, /, *, base: type[Variable[Value]] = Variable, allow_register: bool = False
) -> type[Variable[Value]]:
    """The variable class of a collection name.

    Args:
        name: the name.
        base: the parent of a class that is created for an unknown name.
        allow_register: whether to create and register a class for an unknown name, instead of raising.

    Raises:
        ArgumentError: the name is unknown.

    Example:
        >>> plait.variable_type_from_name("params").__name__
        'Param'
    """
    found = _CLASSES.get(name)
    if found is None:
        if not allow_register:
            raise ArgumentError(
                f"Name {name} is not registered: no variable class has the name {name!r}",
                found=f"the name {name!r}",
                expected=f"one of {sorted(_CLASSES)}",
                do=f"plait.register_variable_name({name!r}, SomeVariable), or pass allow_register=True",
            )
        found = register_variable_name(name, types.new_class(name, (base,)))
    return found


def variable_name_from_type(cls: type[Variable[Value]], /, *, allow_register: bool = False) -> str:
    """The collection name of a variable class; subclasses do not have the name of their parent.

    Args:
        cls: the class.
        allow_register: whether to register a class without a collection name under its own name, instead of raising.

    Raises:
        ArgumentError: the class has no name; or, with ``allow_register``, another class has its name.

    Example:
        >>> plait.variable_name_from_type(plait.BatchStat)
        'batch_stats'
    """
    for name, known in _CLASSES.items():
        if known is cls:
            return name
    if not allow_register:
        raise ArgumentError(
            f"the class {cls.__name__} has no variable name",
            found=f"{cls.__name__}",
            expected=f"one of {sorted(known.__name__ for known in _CLASSES.values())}",
            do=f"plait.register_variable_name('a_name', {cls.__name__}), or pass allow_register=True",
        )
    register_variable_name(cls.__name__, cls)
    return cls.__name__
