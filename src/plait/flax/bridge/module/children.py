"""The children of a running ``bridge.Module``: how they get their names and variables, and how these are collected.

Until a child is made, a plain dictionary under its name holds its variables. The child is bound when it is made (in a
compact method), assigned to an attribute, or found in a field.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from ....core.functional.update import children_by_key
from ....core.graph.traversal import iter_modules
from ....core.nodes.containers import Dict, List
from ....core.nodes.module import Module
from ....core.nodes.pytree import Pytree
from ....core.rngs import RngState
from ....core.variables.variables import Variable
from ....errors import ArgumentError
from ....util.sentinels import NOTHING
from ..variables.boxed_variables import raw_value, to_linen_var
from ..variables.collection_types import BARE_COLLECTIONS, collection_of, is_bare, variable_type_name
from ..variables.collections import Collections, find_leaf, put_leaf
from ..wrappers.scope import Scope
from ..wrappers.stored_modules import check_no_parameter, fill
from .running import AttrPriority, ModuleStackEntry, running

_CONTAINERS = (list, tuple, dict, List, Dict)


class Hybrid(Module):
    """The interface of ``bridge.Module`` that this file uses: a module that can be bound to a scope."""

    _pytree__takes_parts: ClassVar[bool] = True  # its variables are pending until the module with that name is made
    scope: ClassVar[Any] = None
    attr_priorities: ClassVar[Any] = {}

    def setup(self) -> None:
        """Make variables and submodules; runs when the module is bound."""


OWN = ("scope", "attr_priorities")


def set_plainly(node: Hybrid, name: str, value: Any) -> None:
    """Set an attribute without binding the modules in it."""
    Module.__setattr__(node, name, value)


def bind(module: Hybrid, scope: Scope, waiting: Mapping[str, Any]) -> None:
    """Bind a module to a scope: give it its pending variables, bind what its constructor made, and run ``setup``."""
    fields = _from_constructor(module)
    for name in fields:
        if name in waiting and not isinstance(module.__dict__.get(name), (Module, *_CONTAINERS)):
            raise ArgumentError(
                f"stored variables have the same name as a field, {name!r}",
                at=f"{type(module).__name__}.{name}",
                found=f"variables under {name!r}, and a field {module.__dict__.get(name)!r:.40}",
                expected="variables under the names of parameters and submodules",
                do="rename the field, or pass the variables that this module's own init() returned",
            )
    set_plainly(module, "scope", scope)
    for name, value in waiting.items():
        if name not in fields:
            set_plainly(module, name, value)
    with running(module) as entry:
        for name in fields:
            value = module.__dict__.get(name)
            bound = bind_children(entry, value, waiting.get(name, NOTHING))
            if bound is not value:
                set_plainly(module, name, bound)
        module.setup()


def _fields(module: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(module)]


def _from_constructor(module: Hybrid) -> list[str]:
    """The names of a module's fields, and of the attributes in which its constructor put modules."""
    fields = _fields(module)
    own = (name for name, value in module.__dict__.items() if isinstance(value, (Module, *_CONTAINERS)))
    return [*fields, *(name for name in own if name not in fields and name not in OWN)]


def bind_children(entry: ModuleStackEntry, value: Any, waiting: Any) -> Any:
    """Bind the modules in a value that is assigned in ``setup`` or a compact method.

    Args:
        waiting: the previous value of that name: pending variables, or a module of an earlier run.

    Returns:
        The value to assign; a plait module of an earlier run is reused.
    """
    if isinstance(value, Hybrid):
        if value.scope is None:
            bind(value, entry.module.scope, own_attributes(waiting))
    elif isinstance(value, Module):
        if isinstance(waiting, type(value)):
            return waiting
        take_in(entry, value, waiting)
        for part in [part for _, part in iter_modules(value, graph=True) if isinstance(part, Hybrid)]:
            bind_children(entry, part, NOTHING)  # it has its variables already
    elif isinstance(value, _CONTAINERS):
        below = dict(_items(waiting)) if isinstance(waiting, _CONTAINERS) else {}
        for key, child in _items(value):
            bind_children(entry, child, below.get(key, NOTHING))
    return value


def _items(container: Any) -> Iterable[tuple[Any, Any]]:
    return enumerate(container) if isinstance(container, (list, tuple, List)) else container.items()


def own_attributes(waiting: Any) -> Mapping[str, Any]:
    """The pending variables and submodules of a child: a dictionary, or those of an earlier instance."""
    if isinstance(waiting, Hybrid):
        fields = _fields(waiting)
        kinds = (Variable, Module, *_CONTAINERS)
        return {
            name: value for name, value in waiting.__dict__.items() if name not in fields and isinstance(value, kinds)
        }
    return waiting if isinstance(waiting, Mapping) else {}


def take_in(entry: ModuleStackEntry, module: Module, waiting: Any) -> None:
    """Give a new plait module its pending variables."""
    variables = waiting if isinstance(waiting, Mapping) else {}
    unfilled = entry.unfilled.pop(id(module), None)
    if unfilled is not None:
        _, construct, keys = unfilled

        def supply(path: Any, leaf: Any) -> Any:
            found, collection = find_leaf(variables, path), collection_of(leaf)
            value = raw_value(found) if isinstance(found, Variable) else NOTHING
            if value is NOTHING and isinstance(leaf, Variable) and not entry.module.scope.is_mutable(collection):
                check_no_parameter(collection, path, f"{type(entry.module).__name__}, a {type(module).__name__}")
            return value

        fill(module, construct, keys, supply)
    receive(module, variables)


def receive(node: Any, variables: Mapping[Any, Any]) -> None:
    """Write nested variables into a module; variables that it lacks become attributes.

    A stored array that is not in a variable is a variable of its collection until it is written here.
    """
    for key, value in variables.items():
        present = children_by_key(node).get(key, NOTHING)
        if isinstance(value, Variable) and variable_type_name(type(value)) in BARE_COLLECTIONS and _holds_bare(present):
            _set_bare(node, key, raw_value(value))
        elif isinstance(present, Variable) and isinstance(value, Variable):
            present.update_from_state(value)
        elif present is NOTHING and isinstance(node, Pytree) and isinstance(key, str):
            setattr(node, key, value)
        elif isinstance(value, Mapping) and present is not NOTHING and not isinstance(present, Variable):
            receive(present, value)
        else:
            raise ArgumentError(
                "stored variables do not fit the module",
                at=f"{type(node).__name__}, entry {key!r}",
                found=f"a {type(value).__name__}",
                expected="variables at the paths of the module's variables",
                do="pass the variables of a module with the same structure",
            )


def _holds_bare(present: Any) -> bool:
    return present is NOTHING or is_bare(present)


def _set_bare(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, Pytree) and isinstance(key, str):
        setattr(node, key, value)
    else:
        container: Any = node
        container[key] = value


def attach(entry: ModuleStackEntry, module: Any, name: str | None, prefix: str | None = None) -> Any:
    """Make a module from a compact method a child of the running module.

    Args:
        name: its name; ``None`` means a class name and a number.
        prefix: the prefix of a numbered name; by default the class name.

    Returns:
        The child of an earlier run of the method, if it is the same, otherwise the module itself.
    """
    parent = entry.module
    name = _free_name(entry, prefix or type(module).__name__, name)
    present = parent.__dict__.get(name, NOTHING)
    again = isinstance(present, Module) and type(present) is type(module)
    if not again and present is not NOTHING and type(present) is not dict:
        raise ArgumentError(
            f"the name {name!r} of a submodule is already in use",
            at=f"{type(parent).__name__}.{name}",
            found=f"a {type(present).__name__}",
            expected="an unused name",
            do=f"{type(module).__name__}(..., name='another_name')",
        )
    if isinstance(module, Hybrid):
        if again and _same_arguments(module, present):
            return present
        bind(module, parent.scope, own_attributes(present))
    elif again:
        return present
    else:
        take_in(entry, module, present)
    set_plainly(parent, name, module)
    set_priority(parent, name, AttrPriority.INIT_PARENT)
    return module


def _free_name(entry: ModuleStackEntry, prefix: str, name: str | None) -> str:
    if name is None:
        number = entry.type_counter.get(prefix, 0)
        entry.type_counter[prefix] = number + 1
        name = f"{prefix}_{number}"
    if name in entry.names:
        raise ArgumentError(
            f"two submodules have the name {name!r}",
            at=f"{type(entry.module).__name__}.{name}",
            found=f"a second {prefix} with that name",
            expected="one submodule for each name",
            do="call the first submodule again to share it, or choose another name",
        )
    entry.names.add(name)
    return name


def _same_arguments(module: Hybrid, present: Any) -> bool:
    """Whether a new module is what the present one was when its constructor returned."""
    pairs = [(value, present.__dict__.get(name)) for name, value in module.__dict__.items()]
    return all(one is other or (type(one) is type(other) and _equal(one, other)) for one, other in pairs)


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, (bool, int, float, str, tuple)) and one == other


def set_priority(node: Hybrid, name: str, value: AttrPriority) -> None:
    """The priority with which an attribute names its value."""
    set_plainly(node, "attr_priorities", {**node.attr_priorities, name: int(value)})


def collect(module: Any) -> Collections:
    """The variables of a module and its submodules, by collection; each under one path, without random state.

    Also the arrays outside of variables that plait modules have; those of a ``bridge.Module`` are its arguments.
    """
    collections: Collections = {}
    seen: set[int] = set()

    def walk(node: Any, path: tuple[Any, ...], in_plain: bool) -> None:
        if isinstance(node, (jax.Array, np.ndarray)):
            if in_plain:
                put_leaf(collections, (collection_of(node), *path), node)
            return
        if id(node) in seen:
            return
        if isinstance(node, Variable):
            if not isinstance(node, RngState):
                seen.add(id(node))
                put_leaf(collections, (variable_type_name(type(node)), *path), to_linen_var(node))
        elif isinstance(node, (Pytree, *_CONTAINERS)) and not isinstance(node, Scope):
            seen.add(id(node))
            is_plain = not isinstance(node, Hybrid) if isinstance(node, Module) else in_plain
            for key, child in _in_order(node):
                walk(child, (*path, key), is_plain)

    walk(module, (), False)
    return collections


def _in_order(node: Any) -> Iterable[tuple[Any, Any]]:
    """The children of a node, attributes with naming priority first."""
    if isinstance(node, tuple):
        return enumerate(node)
    children = children_by_key(node).items()
    if not isinstance(node, Hybrid):
        return children
    priorities = node.attr_priorities
    return sorted(children, key=lambda item: priorities.get(item[0], AttrPriority.DEFAULT))
