"""Modules, the base class of layers and models, and plait's dataclasses. (rules G64 to G66)

Modes: settings that change how a layer computes, such as training and evaluation. (rules D4, D5, L6)

The protocol is a single method. A layer with modes defines ``set_view`` with a keyword for each mode, where ``None``
leaves the mode unchanged; ``view``, ``train``, ``eval`` and ``set_attributes`` call it with the keywords that it
accepts. The layer itself defines what a mode does; it need not be an attribute of that name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, dataclass_transform

from ...core import hooks
from ...errors import ArgumentError
from ...typing import FilterLiteral, Node, Value
from ...util.sentinels import NOTHING
from ..variables.filters import All, Predicate
from .attributes import Mark, data, static
from .journal import Journal
from .nodes import iter_graph_nodes
from .pytree import Pytree

M = TypeVar("M", bound="Module")


class Module(Pytree):
    """Base class of layers and models. Attributes can be variables, modules, containers of them, arrays and static
    values.

    Example:
        >>> class Net(plait.Module):
        ...     def __init__(self, rngs):
        ...         self.layers = [plait.Linear(2, 3, rngs=rngs), plait.Linear(3, 1, rngs=rngs)]
        ...     def __call__(self, x):
        ...         for layer in self.layers:
        ...             x = layer(x)
        ...         return x
        >>> net = Net(plait.Rngs(0))
        >>> net(jnp.ones((4, 2))).shape
        (4, 1)
    """

    sow: ClassVar[Callable[..., bool]]  # set with ``perturb`` by core/intermediates
    perturb: ClassVar[Callable[..., Value]]

    def set_attributes(
        self, *filters: FilterLiteral, raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
    ) -> None:
        """Set existing attributes, or modes, on this module and all modules below it, in place.

        Names that are no attributes of a module are passed to its ``set_view`` together, if that accepts them.

        Args:
            *filters: only modules that one of these matches are changed; without filters, all modules.
            raise_if_not_found: whether to raise if no module has an attribute.
            graph: no effect: shared modules are changed once, and so they are in Flax's tree mode.
            **attributes: names and new values.

        Raises:
            ArgumentError: names the attributes that no matching module has.

        Example:
            >>> net = plait.Dict(dropout=plait.Dropout(0.5))
            >>> net.set_attributes(deterministic=True)
            >>> net.dropout.deterministic
            True
        """
        chosen = All(Module, filters or ...)
        set_attributes(self, chosen, attributes, raise_if_not_found=raise_if_not_found)

    def train(self, **attributes: Any) -> None:
        """Switch to training: set ``deterministic=False, use_running_average=False`` on all modules that have them."""
        values = {"deterministic": False, "use_running_average": False, **attributes}
        self.set_attributes(raise_if_not_found=False, **values)

    def eval(self, **attributes: Any) -> None:
        """Switch to evaluation: set ``deterministic=True, use_running_average=True`` on all modules that have them."""
        values = {"deterministic": True, "use_running_average": True, **attributes}
        self.set_attributes(raise_if_not_found=False, **values)


def set_attributes(node: Node, chosen: Predicate, attributes: dict[str, object], *, raise_if_not_found: bool) -> None:
    """Set existing attributes, or modes, on the chosen graph nodes, in place.

    Raises:
        ArgumentError: no such node has an attribute, and ``raise_if_not_found`` is set; nothing is changed.
    """
    missing = set(attributes)
    with Journal() as journal:
        for path, module in [*iter_graph_nodes(node)]:
            if not chosen(path, module):
                continue
            journal.note_node(module)
            modes = mode_names(module) or set()
            # Not hasattr: an Rngs answers to every name.
            own = [
                name for name in attributes if name in getattr(module, "__dict__", ()) or hasattr(type(module), name)
            ]
            for name in own:
                setattr(module, name, attributes[name])
            settings = {name: value for name, value in attributes.items() if name in modes and name not in own}
            if settings:  # all at once, since some are given together
                change_modes(module, settings)
            missing.difference_update(own, settings)
        if missing and raise_if_not_found:
            raise ArgumentError(
                f"Could not find at least one instance of the following attributes: {sorted(missing)}",
                found="no matching module that has them",
                expected="attributes of modules that the filters match",
                do="check the names, or pass raise_if_not_found=False",
            )


class Object(Pytree, pytree=False):
    """Base class of graph objects that are not JAX pytrees.

    Example:
        >>> class Counter(plait.Object):
        ...     def __init__(self):
        ...         self.count = plait.Variable(0)
        >>> counter = Counter()
        >>> plait.state(counter)["count"].value, jax.tree.leaves(counter) == [counter]
        (0, True)
    """


@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
def dataclass(cls: Any = None, /, **options: Any) -> Any:
    """``dataclasses.dataclass`` for plait classes: ``data()`` and ``static()`` work as fields, and ``repr`` is plait's.

    Example:
        >>> @plait.dataclass
        ... class Config(plait.Module):
        ...     scale: jax.Array
        ...     name: str = plait.static(default="x")
        >>> Config(jnp.ones(2)).name
        'x'
    """
    if cls is None:
        return lambda cls: dataclass(cls, **options)
    for name, value in list(cls.__dict__.items()):
        if isinstance(value, Mark):
            if value.value is not NOTHING:
                setattr(cls, name, value.value)
            elif value.options:
                setattr(cls, name, dataclasses.field(**value.options))
            else:
                delattr(cls, name)
    return dataclasses.dataclass(cls, **{"repr": False, "eq": False, **options})


def mode_names(node: Node) -> set[str] | None:
    """The modes of a node; ``None`` if its ``set_view`` accepts any name."""
    if not hasattr(node, "set_view"):
        return set()
    parameters = inspect.signature(node.set_view).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters}


def change_modes(node: Node, settings: dict[str, object]) -> None:
    """Call the ``set_view`` of a node, which may be a block of many layers."""
    with around_change(node):
        node.set_view(**settings)


def around_change(node: Node) -> contextlib.AbstractContextManager[None]:
    """The context in which a node changes its modes, or creates variables; the node may be a block of many layers."""
    return contextlib.nullcontext() if hooks.around_change is None else hooks.around_change(node)
