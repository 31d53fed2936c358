"""Gradient accumulation: sums the gradients of a batch over microbatches, and divides once.

A mean over tokens is not the mean of the means of its parts, if these have different numbers of tokens. So each part
returns a sum and a weight, and the sums are divided at the end:

    loss = Σ totalᵢ / Σ weightᵢ        ∇loss = Σ ∇totalᵢ / Σ weightᵢ
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..core.functional.split import state
from ..core.variables.variable_kinds import Param
from ..errors import ArgumentError
from ..transforms.autodiff import value_and_grad
from ..transforms.call.prefixes import Carry
from ..transforms.loops import scan
from ..transforms.selections import DiffState
from ..typing import FilterLiteral
from ..util.counts import check_count
from ..util.jax_versions import explicit_sharding
from .remainders import wide_dtype


def accumulated_value_and_grad(
    loss: Callable[[Any, Any], Any], *, parts: int, wrt: FilterLiteral = Param
) -> Callable[[Any, Any], tuple[jax.Array, Any]]:
    """``value_and_grad`` of a mean over a batch, computed one part at a time.

    Args:
        loss: ``loss(model, part)`` returns ``(total, weight)``, scalars: the sum of the losses, and their number, such
            as the number of tokens without padding. A part of weight 0 adds nothing, even if its loss or gradients are
            not finite. Statistics and random streams that the model writes are carried from part to part.
        parts: the number of parts into which the first axis of each array of the batch is split.
        wrt: the variables of the model to differentiate.

    Returns:
        ``f(model, batch) -> (mean, gradients)``; the gradients are a ``State``, for ``optimizer.update``.

    Raises:
        ArgumentError: ``parts`` is below 1; or, raised by ``f``, the first axis of an array of the batch cannot be
            split; names it.

    Example:
        >>> model = plait.Linear(3, 1, rngs=plait.Rngs(0))
        >>> def loss(model, batch):
        ...     return (model(batch["x"]).sum(-1) ** 2 * batch["mask"]).sum(), batch["mask"].sum()
        >>> batch = {"x": jnp.ones((4, 3)), "mask": jnp.array([1.0, 1.0, 1.0, 0.0])}
        >>> mean, grads = plait.training.accumulated_value_and_grad(loss, parts=2)(model, batch)
        >>> total, weight = loss(model, batch)
        >>> bool(jnp.allclose(mean, total / weight)), grads["kernel"].shape
        (True, (3, 1))
    """
    check_count("parts", parts, of="parts", example="4")
    of_part = value_and_grad(loss, argnums=DiffState(0, wrt), has_aux=True, graph=True, graph_updates=True)

    def one(carry: Any, part: Any) -> Any:
        model, total, weight, sums = carry
        (value, count), grads = of_part(model, part)
        counted = jnp.asarray(count) != 0
        sums = [
            each + jnp.where(counted, leaf, jnp.zeros_like(leaf)).astype(each.dtype)
            for each, leaf in zip(sums, jax.tree.leaves(grads), strict=True)
        ]
        total += jnp.where(counted, jnp.asarray(value, total.dtype), jnp.zeros_like(total))
        return (model, total, weight + jnp.asarray(count, weight.dtype), sums), None

    def whole(model: Any, batch: Any) -> tuple[jax.Array, Any]:
        leaves, treedef = jax.tree.flatten(state(model, wrt, graph=True))
        is_double = any(jnp.finfo(leaf.dtype).dtype == jnp.float64 for leaf in leaves)
        zero = jnp.zeros((), jnp.float64 if is_double else jnp.float32)
        begin = (model, zero, zero, [jnp.zeros_like(leaf, dtype=wide_dtype(leaf.dtype)) for leaf in leaves])
        (_, total, weight, sums), _ = scan(
            one, in_axes=(Carry, 0), out_axes=(Carry, 0), graph=True, graph_updates=True
        )(begin, _split(batch, parts))
        weight = jnp.where(weight == 0, 1, weight)  # the mean of nothing is 0
        means = [(each / weight).astype(leaf.dtype) for each, leaf in zip(sums, leaves, strict=True)]
        return total / weight, jax.tree.unflatten(treedef, means)

    return whole


def _split(batch: Any, parts: int) -> Any:
    def split_leaf(path: Any, leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        layout = explicit_sharding(leaf)
        multiple = parts * (
            1 if layout is None or leaf.ndim == 0 else leaf.shape[0] // layout.shard_shape(leaf.shape)[0]
        )
        if leaf.ndim == 0 or leaf.shape[0] % multiple:
            raise ArgumentError(
                "the batch cannot be split into parts of equal size",
                at=f"batch{jax.tree_util.keystr(path)}",
                found=f"an array of shape {leaf.shape}",
                expected=f"a first axis that is a multiple of {multiple}"
                + f", {parts} parts on {multiple // parts} devices" * (multiple > parts),
                do=f"pad the batch to a multiple of {multiple}, with weight 0 for the padding, or choose other parts",
            )
        shape = (parts, leaf.shape[0] // parts, *leaf.shape[1:])
        # Each part is sharded as the batch was.
        spread = None if layout is None else NamedSharding(layout.mesh, PartitionSpec(None, *layout.spec))
        return jnp.reshape(leaf, shape, out_sharding=spread)

    return jax.tree_util.tree_map_with_path(split_leaf, batch)
