"""Recipes: one set of rules, with which the shape of the mesh decides how a model is sharded.

The name of a mesh axis says what it is for, its size how many devices share that work:

========  ==============================================================================================
``data``  data parallel: every device along it has a full copy of the model, and its own part of the batch
``fsdp``  fully sharded data parallel: its own part of the batch, and its own part of every large variable
``model`` tensor parallel: its own heads, hidden features and vocabulary
========  ==============================================================================================

A mesh may have any of them, and an axis of size 1 changes nothing; so ``(8,)`` named ``("data",)`` is data parallelism,
``("fsdp",)`` is FSDP, ``("model",)`` is tensor parallelism, and ``(2, 2, 2)`` with all three is their combination.
"""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from .mesh import get_global_mesh

# Names of activations first, then those of variables. A name that is never sharded has a rule too, so that it does not
# count as unknown.
_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("batch", ("data", "fsdp")),
    ("length", ()),
    ("features", ()),
    ("embed", ("fsdp",)),
    ("heads", ("model",)),
    ("kv_heads", ("model",)),
    ("head_dim", ()),
    ("mlp", ("model",)),
    ("vocab", ("model",)),
    ("norm", ()),
    ("layers", ()),
)
AXES = ("data", "fsdp", "model")


def rules_for(mesh: Any = None) -> tuple[tuple[str, Any], ...]:
    """The logical axis rules of the recipe, for a mesh with any of the axes ``data``, ``fsdp`` and ``model``.

    Its names for activations: ``batch``, ``length`` and ``features``; for variables: ``embed`` (the features between
    blocks), ``heads``, ``kv_heads``, ``head_dim``, ``mlp`` (hidden features), ``vocab``, ``norm`` (features of a
    normalisation) and ``layers`` (stacked blocks). The rules are plain pairs: add to them, or leave some out.

    Args:
        mesh: ``None`` means the current mesh; without one, nothing is sharded.

    Raises:
        ArgumentError: the mesh has an axis that the recipe does not know.

    Example:
        >>> mesh = jax.make_mesh((4, 2), ("fsdp", "model"))
        >>> dict(plait.partitioning.rules_for(mesh))["batch"], dict(plait.partitioning.rules_for(mesh))["mlp"]
        ('fsdp', 'model')
    """
    mesh = get_global_mesh() if mesh is None else mesh
    present = () if mesh is None else tuple(mesh.axis_names)
    unknown = [name for name in present if name not in AXES]
    if unknown:
        raise ArgumentError(
            "the recipe does not know an axis of the mesh",
            found=f"{', '.join(map(repr, unknown))} of {present}",
            expected=f"axes among {AXES}",
            do="rename the axes of the mesh, or write the rules yourself: [('batch', axis), ('embed', None), ...]",
        )
    return tuple((name, _target(tuple(axis for axis in axes if axis in present))) for name, axes in _RULES)


def _target(axes: tuple[str, ...]) -> Any:
    if not axes:
        return None
    return axes[0] if len(axes) == 1 else axes
