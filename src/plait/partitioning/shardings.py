"""From specs to devices: eager placement of new variables, abstract models, constraints. (V39, M35, M36)"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ..core import hooks
from ..core.functional.merge import merge
from ..core.functional.split import split
from ..core.graph.graphdef import GraphDef
from ..core.graph.locate import modules_in_use
from ..core.graph.modes import check_mode
from ..core.graph.walks import Walk, path_of
from ..core.states.state import State
from ..core.variables.variables import Variable, eager_sharding_hooks
from ..errors import ArgumentError
from ..util.context_values import held
from ..util.notices import deprecated
from ..util.words import with_article
from .mesh import check_spec, fitted_spec, get_global_mesh, in_manual_mode, place
from .specs import describe_leaf, variable_spec, without_format

N = TypeVar("N")


def sharding_of(variable: Variable[Any], shape: tuple[int, ...], place: Callable[[], str]) -> Sharding | None:
    """The sharding that a variable's axis names give an array of this shape, if there is a mesh.

    Args:
        place: says whose array it is, for errors.

    Returns:
        The sharding; ``None`` without a mesh, or inside ``shard_map`` or ``pmap``. A variable without names is
        replicated on the mesh.

    Raises:
        ArgumentError: a name is neither in the rules nor in the mesh, or there are more names than axes.
    """
    metadata = variable._cell.metadata
    layout = without_format(metadata.get("out_sharding"))
    if isinstance(layout, NamedSharding):
        check_spec(layout.spec, layout.mesh, shape, place(), names=layout.spec)
    if isinstance(layout, Sharding):
        return layout
    mesh = metadata.get("mesh")
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None or mesh.empty or in_manual_mode():
        return None
    what = place()
    spec = variable_spec(variable, what) or PartitionSpec()
    return NamedSharding(mesh, fitted_spec(spec, mesh, shape, what, names=layout))


hooks.shape_sharding = sharding_of

# Whether new variables stay where they are, because the running function shards them afterwards, by path.
_left_to_caller: contextvars.ContextVar[bool] = contextvars.ContextVar("plait_placement_left", default=False)


def _place_new(variable: Variable[Any], value: Any) -> Any:
    """Shard the value of a new variable as its metadata says, if there is a mesh."""
    if not hasattr(value, "ndim") or _left_to_caller.get():
        return value
    what = with_article(type(variable).__name__)
    try:
        sharding = sharding_of(variable, value.shape, lambda: what)
        return place(value, sharding, what) if isinstance(sharding, NamedSharding) else value
    except ArgumentError as error:
        layout = variable.get_metadata()["out_sharding"]
        raise _with_maker(error, f"{what} of shape {tuple(value.shape)} with out_sharding={layout!r}") from None


def _with_maker(error: ArgumentError, what: str) -> ArgumentError:
    """The error for a variable that has no path yet, with the modules that are creating it."""
    makers = [type(module).__name__ for name, module in modules_in_use() if not name]
    at = f"{what}, made by {' > '.join(makers)}" if makers else what
    return ArgumentError(error.message, **{**error.parts, "at": at})


eager_sharding_hooks.append(_place_new)


def as_abstract(tree: N, graph: bool | None = None) -> N:
    """Abstract variables with the shardings that their axis names give.

    Args:
        tree: variables that hold ``jax.ShapeDtypeStruct``s without sharding; the mesh is each variable's own
            (``mesh`` metadata) or the current one. Variables without names or with a sharding are unchanged. What is
            shared stays shared.
        graph: as in ``split``.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",))
        >>> v = plait.Param(jax.ShapeDtypeStruct((16, 2), jnp.float32), out_sharding=("x", None), mesh=mesh)
        >>> plait.as_abstract(v).get_raw_value().sharding.spec
        P('x', None)
    """

    def convert(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Variable) or not leaf.get_metadata().get("out_sharding"):
            return leaf
        value = leaf.get_raw_value()
        if not isinstance(value, jax.ShapeDtypeStruct) or value.sharding is not None:
            return leaf
        sharding = sharding_of(leaf, value.shape, functools.partial(describe_leaf, path, leaf))
        return leaf.replace(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)) if sharding else leaf

    check_mode(tree, graph)
    walk = Walk()
    graphdef = walk.add(tree)
    leaves = [convert(path_of(link), leaf) for link, leaf in zip(walk.links, walk.leaves, strict=True)]
    return merge(graphdef, leaves, copy=False, recreate_variables=False)


def abstract_with_sharding(tree: N, graph: bool | None = None) -> N:
    """The old name of ``as_abstract``."""
    deprecated("plait.abstract_with_sharding", since="0.1", instead="plait.as_abstract", removed_in="2.0")
    return as_abstract(tree, graph)


def get_abstract_model(init_fn: Callable[[], N], mesh: Mesh, *, graph: bool | None = None) -> tuple[GraphDef[N], State]:
    """The structure of a model, with the shape, dtype and sharding of every variable; nothing is allocated.

    Args:
        init_fn: creates the model.
        mesh: the mesh of its devices.
        graph: as in ``split``.

    Returns:
        ``(graphdef, state)``; each variable of the state holds a ``jax.ShapeDtypeStruct``.

    Raises:
        ArgumentError: a variable's names do not fit the mesh or its array; the error names the path.

    Example:
        >>> mesh = jax.make_mesh((8,), ("model",))
        >>> make = lambda: plait.Linear(4, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": (None, "model")})
        >>> graphdef, state = plait.get_abstract_model(make, mesh)
        >>> state["kernel"].get_raw_value().sharding.spec
        P(None, 'model')
    """
    found: list[Any] = []

    def values() -> Any:
        graphdef, state = split(init_fn(), graph=graph)
        found.append(graphdef)
        return state

    with held(_left_to_caller, True), jax.set_mesh(mesh):
        state = jax.eval_shape(values)

    def convert(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Variable):
            return leaf
        what = describe_leaf(path, leaf)
        value, spec = leaf.get_raw_value(), variable_spec(leaf, what) or PartitionSpec()

        def abstract(x: Any) -> Any:
            fitted = fitted_spec(spec, mesh, x.shape, what, names=leaf.get_metadata().get("out_sharding"))
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, fitted))

        return leaf.replace(jax.tree_util.tree_map(abstract, value))

    return found[0], jax.tree_util.tree_map_with_path(convert, state, is_leaf=lambda x: isinstance(x, Variable))
