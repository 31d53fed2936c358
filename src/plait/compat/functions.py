"""The functions on graphs that take ``graph=``, each made from one that does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core.functional import merge, split as splitting, traversal
from ..core.objects.module import Module
from ..ground.notices import deprecated
from ..partitioning import shardings
from ..surgery import views
from .door import checked, checked_result

clone = checked(merge.clone)
flatten = checked(splitting.flatten)
graphdef = checked(splitting.graphdef)
split = checked(splitting.split)
state = checked(splitting.state)
unpack = checked(splitting.unpack)
variables = checked(splitting.variables)

iter_children = checked(traversal.iter_children)
iter_graph = checked(traversal.iter_graph)
iter_module_children = checked(traversal.iter_module_children)
iter_modules = checked(traversal.iter_modules)

map = checked(views.map, at=1)
recursive_map = checked(views.recursive_map, at=1)
view = checked(views.view)
view_info = checked(views.view_info)
with_attributes = checked(views.with_attributes)
with_vars = checked(views.with_vars)

abstract_with_sharding = checked(shardings.abstract_with_sharding)
as_abstract = checked(shardings.as_abstract)
get_abstract_model = checked_result(shardings.get_abstract_model)


def _method(function: Callable[[Any], Iterator[tuple[Any, Any]]]) -> Callable[[Any], Iterator[tuple[Any, Any]]]:
    """The older method form of a function, which warns."""
    name: str = function.__name__  # type: ignore[attr-defined]

    def method(self: Any) -> Iterator[tuple[Any, Any]]:
        deprecated(f"module.{name}()", since="0.1", instead=f"plait.{name}(module)", removed_in="2.0")
        return function(self)

    method.__name__, method.__doc__ = name, f"The older form of ``plait.{name}(module)``; warns."
    return method


Module.iter_modules = _method(iter_modules)  # type: ignore[attr-defined]
Module.iter_children = _method(iter_children)  # type: ignore[attr-defined]
