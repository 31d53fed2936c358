"""Checking rules against a whole model, before it is created on a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from ..core.functional.split import state
from ..core.nodes.nodes import Kind, kind_of
from ..core.states.state import State
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from .axis_rules import get_logical_axis_rules
from .mesh import axes_of, get_global_mesh
from .recipes import AXES, rules_for
from .specs import describe_leaf, get_named_sharding


def check_rules(tree: Any, mesh: Any = None, *, activations: Iterable[str] = ()) -> None:
    """Check the current rules against a model and a mesh: every name has a meaning, and every rule is used.

    Args:
        tree: a model or its state; abstract values, such as those of ``plait.eval_shape``, are enough.
        mesh: ``None`` means the current mesh.
        activations: names that only activations of the model use, since no variable shows them. Those of a whole
            recipe (``rules_for``) need not be listed.

    Raises:
        ArgumentError: a name is neither in the rules nor in the mesh, two axes of one array use one mesh axis, a name
            has two rules, or there are more names than axes: the error names the path. Or nothing uses a rule.

    Warns:
        UnevenLayoutWarning: the mesh does not divide a length; the warning names the path.

    Example:
        >>> layer = plait.Linear(4, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": ("in", "out")})
        >>> mesh = jax.make_mesh((8,), ("model",))
        >>> with plait.logical_axis_rules([("in", None), ("out", "model")]):
        ...     plait.partitioning.check_rules(layer, mesh)
        >>> with plait.logical_axis_rules([("in", None), ("out", "model"), ("heads", "model")]):
        ...     plait.partitioning.check_rules(layer, mesh)
        Traceback (most recent call last):
        ...
        plait.errors.ArgumentError: a logical axis rule is used by no variable
          found     'heads' -> 'model'
          expected  names of the model: 'in', 'out'
          do        drop the rule, correct its name, or list it in activations=(...)
    """
    mesh = get_global_mesh() if mesh is None else mesh
    tree = tree if isinstance(tree, State) or kind_of(tree) is not Kind.GRAPH else state(tree, graph=True)
    if mesh is not None:
        get_named_sharding(tree, mesh)
    used = {activations} if isinstance(activations, str) else set(activations)
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, Variable))
    for path, leaf in pairs:
        if isinstance(leaf, Variable):
            metadata = leaf.get_metadata()
            layout = metadata.get("out_sharding")
            own = {name for entry in layout for name in axes_of(entry)} if isinstance(layout, (tuple, list)) else set()
            used |= own
            _check_used(metadata.get("sharding_rules") or (), own, describe_leaf(path, leaf))
    rules = get_logical_axis_rules()
    _check_used([rule for rule in rules if rule not in _recipe(rules, mesh)], used, None)


def _recipe(rules: Any, mesh: Any) -> tuple[Any, ...]:
    """The rules of the recipe for the mesh, if all of them are set: then nobody chose them one by one."""
    if mesh is None or not set(mesh.axis_names) <= set(AXES):
        return ()
    recipe = rules_for(mesh)
    return recipe if set(recipe) <= {tuple(rule) for rule in rules} else ()


def _check_used(rules: Any, used: set[str], at: str | None) -> None:
    unused = [(name, axis) for name, axis in rules if name not in used]
    if unused:
        raise ArgumentError(
            "a logical axis rule is used by no variable"
            if at is None
            else "a variable has a rule that it does not use",
            at=at,
            found=", ".join(f"{name!r} -> {axis!r}" for name, axis in unused),
            expected=f"names of the {'model' if at is None else 'variable'}: {', '.join(map(repr, sorted(used)))}",
            do="drop the rule, correct its name, or list it in activations=(...)"
            if at is None
            else "drop it from sharding_rules, or correct its name",
        )
