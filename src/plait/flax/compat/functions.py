"""The functions on graphs that take ``graph=``, each made from one that does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from ...core.functional import merge, split as splitting
from ...core.graph import traversal
from ...core.graph.graphdef import GraphDef
from ...core.states import live
from ...core.states.state import State
from ...edit import views
from ...partitioning import shardings
from .modes import by_position, checked, checked_result

clone = checked(merge.clone)
flatten = checked(live.flatten)
graphdef = checked(splitting.graphdef)
if TYPE_CHECKING:  # with their overloads
    from ...core.functional.split import split, state
else:
    split = checked(live.split)
    state = checked(live.state)
unpack = checked(live.unpack)
variables = checked(traversal.variables)

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

abstract_with_sharding = by_position(checked(shardings.abstract_with_sharding))
as_abstract = by_position(checked(shardings.as_abstract))
get_abstract_model = checked_result(shardings.get_abstract_model)

N = TypeVar("N")

# What `pure` and `split` return; Flax names it in signatures.
PureState = tuple[GraphDef[N], State]
