"""From specs to devices: eager placement of new variables, abstract models, constraints. (V39, M35, M36)"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core.functional import split
from ..core.variables import Variable, eager_sharding_hooks
from .mesh import get_global_mesh, place
from .specs import get_var_pspec


def _place_new(variable: Variable[Any], value: Any) -> Any:
    """Lay out the value of a new variable as its metadata says, where a mesh is known."""
    if not hasattr(value, "ndim"):
        return value
    spec = get_var_pspec(variable)
    names = variable.get_metadata().get("out_sharding")
    mesh = names.mesh if isinstance(names, NamedSharding) else variable.get_metadata().get("mesh")
    if spec is None or (mesh is None and get_global_mesh() is None):
        return value
    return place(value, spec, mesh, f"a {type(variable).__name__} with out_sharding={names}")


eager_sharding_hooks.append(_place_new)


def as_abstract(tree: Any, *, graph: bool | None = None) -> Any:
    """Abstract variables with the shardings that their axis names say.

    Args:
        tree: variables that hold ``jax.ShapeDtypeStruct``s without sharding; the mesh is each variable's own
            (``mesh`` metadata) or the one in force. What has no names, or already a sharding, passes.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",))
        >>> v = plait.Param(jax.ShapeDtypeStruct((16, 2), jnp.float32), out_sharding=("x",), mesh=mesh)
        >>> plait.as_abstract(v).get_raw_value().sharding.spec
        PartitionSpec('x',)
    """

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Variable):
            return leaf
        value, metadata = leaf.get_raw_value(), leaf.get_metadata()
        if not isinstance(value, jax.ShapeDtypeStruct) or value.sharding is not None:
            return leaf
        mesh = metadata.get("mesh") or get_global_mesh()
        spec = get_var_pspec(leaf)
        if not metadata.get("out_sharding") or mesh is None or spec is None:
            return leaf
        return leaf.replace(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, spec)))

    return jax.tree_util.tree_map(convert, tree, is_leaf=lambda x: isinstance(x, Variable))


def abstract_with_sharding(tree: Any, *, graph: bool | None = None) -> Any:
    """The old name of ``as_abstract``."""
    warnings.warn("abstract_with_sharding is now called as_abstract", DeprecationWarning, stacklevel=2)
    return as_abstract(tree, graph=graph)


def get_abstract_model(init_fn: Callable[[], Any], mesh: Mesh, *, graph: bool | None = None) -> tuple[Any, Any]:
    """The structure of a model, with the shape, dtype and sharding of every variable; nothing is allocated.

    Args:
        init_fn: makes the model.
        mesh: where it is to live.

    Returns:
        ``(graphdef, state)``; each variable of the state holds a ``jax.ShapeDtypeStruct``.

    Example:
        >>> mesh = jax.make_mesh((8,), ("model",))
        >>> make = lambda: plait.Linear(4, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": (None, "model")})
        >>> graphdef, state = plait.get_abstract_model(make, mesh)
        >>> state["kernel"].get_raw_value().sharding.spec
        PartitionSpec(None, 'model')
    """
    found: list[Any] = []

    def values() -> Any:
        graphdef, state = split(init_fn(), graph=graph)
        found.append(graphdef)
        return state

    with jax.set_mesh(mesh):
        state = jax.eval_shape(values)

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, Variable):
            return leaf
        value, spec = leaf.get_raw_value(), get_var_pspec(leaf) or PartitionSpec()
        abstract = jax.tree_util.tree_map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), value
        )
        return leaf.replace(abstract)

    return found[0], jax.tree_util.tree_map(convert, state, is_leaf=lambda x: isinstance(x, Variable))
