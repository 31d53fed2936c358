"""Partition specs of variables: their axis names, translated by the current rules. (rules M22, M25 to M27)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..core.nodes.nodes import jax_to_nnx_path
from ..core.variables.variables import Variable
from ..util.paths import format_path
from ..util.words import with_article
from .axis_rules import (
    Rules,
    check_names,
    check_one_target,
    composite_rules,
    from_sharding_rules,
    get_logical_axis_rules,
)
from .mesh import check_used_once, fitted_spec


def get_var_pspec(v: Variable[Any]) -> PartitionSpec | None:
    """The spec of one variable: its ``out_sharding`` under the current rules.

    Returns:
        ``PartitionSpec()`` for an array without names, ``None`` for anything but an array.

    Example:
        >>> v = plait.Param(jnp.ones((2, 3)), out_sharding=("embed", None))
        >>> with plait.logical_axis_rules([("embed", "model")]):
        ...     plait.spmd.get_var_pspec(v)
        P('model', None)

    Raises:
        ArgumentError: the rules give one of its names two targets, or two of its axes the same mesh axis.
    """
    return variable_spec(v, with_article(type(v).__name__))


def variable_spec(variable: Variable[Any], what: str) -> PartitionSpec | None:
    """Like ``get_var_pspec``; ``what`` says in errors which variable it is."""
    metadata = variable.get_metadata()
    names = without_format(metadata.get("out_sharding"))
    if isinstance(names, NamedSharding):
        return names.spec
    if names:
        rules = composite_rules(get_logical_axis_rules(), metadata.get("sharding_rules") or ())
        return spec_of_names(names, rules, what)
    return PartitionSpec() if hasattr(variable.get_raw_value(), "shape") else None


def without_format(layout: Any) -> Any:
    """The sharding of a ``Format``, which also states the layout in memory; anything else unchanged."""
    return layout.sharding if hasattr(layout, "layout") else layout


def spec_of_names(names: Any, rules: Rules, what: str) -> PartitionSpec:
    """Axis names, translated by rules, as a spec; a ``PartitionSpec`` is returned unchanged.

    Raises:
        ArgumentError: not a tuple of names, the rules give a name two targets, or two axes get the same mesh axis.
    """
    if isinstance(names, PartitionSpec):
        return names
    check_names(names, what)
    check_one_target(names, rules, what)
    spec = PartitionSpec(*from_sharding_rules(names, rules))
    check_used_once(spec, names, what)
    return spec


def spec_of(leaf: Any, what: str | None = None) -> Any:
    """The spec of a leaf: a variable around its spec, the spec of a box or array, or ``None``."""
    if isinstance(leaf, Variable):
        return leaf.replace(variable_spec(leaf, what or with_article(type(leaf).__name__)))
    if hasattr(leaf, "get_partition_spec"):
        return leaf.get_partition_spec()
    return PartitionSpec() if hasattr(leaf, "shape") else None


def is_spec_leaf(x: Any) -> bool:
    """Whether it has a single spec: a variable, or a box."""
    return isinstance(x, Variable) or hasattr(x, "get_partition_spec")


def get_partition_spec(tree: Any) -> Any:
    """The specs of a tree, which ``jax.jit`` takes as shardings.

    Args:
        tree: a state, or any pytree of variables, boxes and arrays; abstract values are enough.

    Returns:
        The tree with variables that hold their specs. Boxes and arrays are replaced by their specs
        (``PartitionSpec()`` without names), other leaves by ``None``.

    Example:
        >>> layer = plait.Linear(2, 3, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": ("in", "out")})
        >>> specs = plait.get_partition_spec(plait.state(layer))
        >>> specs["kernel"].get_raw_value(), specs["bias"].get_raw_value()
        (P('in', 'out'), P())
    """

    def convert(path: Any, leaf: Any) -> Any:
        return spec_of(leaf, describe_leaf(path, leaf) if isinstance(leaf, Variable) else None)

    return jax.tree_util.tree_map_with_path(convert, tree, is_leaf=is_spec_leaf)


def get_named_sharding(tree: Any, mesh: Mesh) -> Any:
    """Like ``get_partition_spec``, with a ``NamedSharding`` on ``mesh`` in place of each spec.

    Raises:
        ArgumentError: a variable's names do not fit the mesh or its array; the error names the path.
    """

    def convert(path: Any, leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            what = describe_leaf(path, leaf)
            spec, shape = variable_spec(leaf, what), getattr(leaf.get_raw_value(), "shape", None)
            if spec is not None and shape is not None:
                spec = fitted_spec(spec, mesh, shape, what, names=leaf.get_metadata().get("out_sharding"))
            return leaf.replace(None if spec is None else NamedSharding(mesh, spec))
        return map_specs(lambda spec: NamedSharding(mesh, spec), spec_of(leaf))

    return jax.tree_util.tree_map_with_path(convert, tree, is_leaf=is_spec_leaf)


def describe_leaf(path: tuple[Any, ...], leaf: Any) -> str:
    """A leaf of a pytree with its path, for errors: ``blocks[0].up.kernel (a Param)``."""
    keys = jax_to_nnx_path(path)
    kind = with_article(type(leaf).__name__)
    return f"{format_path(keys)} ({kind})" if keys else kind


def map_specs(f: Callable[[PartitionSpec], Any], tree: Any) -> Any:
    """A tree with ``f`` applied to each spec, also inside variables."""

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, Variable):
            inner = leaf.get_raw_value()
            return leaf.replace(f(inner)) if isinstance(inner, PartitionSpec) else leaf
        return f(leaf) if isinstance(leaf, PartitionSpec) else leaf

    return jax.tree_util.tree_map(convert, tree, is_leaf=lambda x: isinstance(x, (Variable, PartitionSpec)))
