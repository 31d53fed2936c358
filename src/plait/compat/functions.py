"""The functions on graphs that take ``graph=``, each made from one that does not."""

from __future__ import annotations

from ..core.functional import merge, split as splitting
from ..partitioning import shardings
from ..states import flat_graphs, graph_state
from ..surgery import traversal, views
from .door import checked, checked_result

clone = checked(merge.clone)
flatten = checked(flat_graphs.flatten)
graphdef = checked(splitting.graphdef)
split = checked(splitting.split)
state = checked(splitting.state)
unpack = checked(graph_state.unpack)
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

abstract_with_sharding = checked(shardings.abstract_with_sharding)
as_abstract = checked(shardings.as_abstract)
get_abstract_model = checked_result(shardings.get_abstract_model)
