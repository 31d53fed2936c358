"""The transforms that take ``graph=`` and ``graph_updates=``, each made from one that takes a crossing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...edit import reseeding
from ...transforms import (
    autodiff,
    axis_names,
    batching,
    branches,
    custom_rules,
    jacobians,
    lax_map as maps,
    loops,
    remat as recomputing,
    sharded,
    stream_rules,
    streams,
    tangents,
)
from ...transforms.call import prefixes as prefix_trees
from ...transforms.jit import function, shapes
from .modes import by_position, carried, checked

if TYPE_CHECKING:  # their own overloads list the modes too
    from ...transforms.autodiff import grad, value_and_grad
    from ...transforms.batching import vmap
    from ...transforms.jit.function import jit
    from ...transforms.loops import scan
    from ...transforms.remat import remat
else:
    jit = carried(function.jit)
    grad = carried(autodiff.grad)
    value_and_grad = carried(autodiff.value_and_grad)
    vmap = carried(batching.vmap)
    scan = carried(loops.scan)
    remat = carried(recomputing.remat)

vjp = carried(tangents.vjp)
jvp = carried(tangents.jvp)
linearize = carried(tangents.linearize)
jacrev = carried(jacobians.jacrev)
jacfwd = carried(jacobians.jacfwd)
hessian = carried(jacobians.hessian)
hvp = carried(jacobians.hvp)
pmap = carried(batching.pmap)
shard_map = carried(sharded.shard_map)
custom_vjp = carried(custom_rules.custom_vjp)
custom_jvp = carried(custom_rules.custom_jvp)
lax_map = carried(maps.lax_map)
while_loop = carried(loops.while_loop)
fori_loop = carried(loops.fori_loop)
cond = carried(branches.cond)
switch = carried(branches.switch)
eval_shape = carried(shapes.eval_shape)
make_jaxpr = carried(shapes.make_jaxpr)
checkify = by_position(carried(shapes.checkify))

split_rngs = carried(streams.split_rngs)
fork_rngs = carried(streams.fork_rngs)
with_rngs = carried(stream_rules.with_rngs)
backup_keys = checked(streams.backup_keys)
reseed = checked(reseeding.reseed)

transform_metadata = carried(axis_names.transform_metadata)
prefix = checked(prefix_trees.prefix)
