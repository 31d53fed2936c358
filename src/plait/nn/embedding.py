"""Embedding: a learned vector for each integer below a bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs
from ..core.variables.variable_kinds import Param
from ..errors import ShapeError
from ..typing import Array, DTypeLike, Initializer
from ..util.jax_versions import explicit_sharding
from ..util.static_values import HashableMapping
from .checks import check_array, check_last_axis, check_members, check_rngs, weight_length
from .initializers import default_embed_init, initial
from .promotion import promote_dtype


class Embed(Module):
    """Look up the row of a table for each integer: ``y = embedding[inputs]``.

    ``attend`` multiplies by the same table, which turns features into logits over the integers with tied weights.

    Shapes:
        inputs: ``(...)``, integers from 0 to ``num_embeddings − 1``. y: ``(..., features)``.
            Indices out of range give NaN.

    Variables:
        embedding: ``Param``, ``(num_embeddings, features)``, ``param_dtype``.

    Args:
        num_embeddings: number of rows.
        features: length of a row.
        dtype: dtype of the result; ``None`` means the dtype of the table when it was created.
        param_dtype: dtype in which the table is stored.
        embedding_init: initializer of the table.
        promote_dtype: replaces the function that brings table and query to one dtype.
        rngs: draws one key from the ``params`` stream.
        embedding_metadata: metadata of ``embedding``.

    Raises:
        ShapeError: ``inputs`` does not contain integers, or the query of ``attend`` is not ``features`` long.

    Example:
        >>> embed = plait.Embed(5, 3, rngs=plait.Rngs(0))
        >>> embed(jnp.array([0, 4])).shape, embed.attend(jnp.ones((2, 3))).shape
        ((2, 3), (2, 5))
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        embedding_init: Initializer = default_embed_init,
        promote_dtype: Callable[..., Any] = promote_dtype,
        rngs: Rngs,
        embedding_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self.num_embeddings = num_embeddings
        self.features = features
        self.param_dtype = param_dtype
        self.promote_dtype: Callable[..., Any] = promote_dtype
        check_rngs(rngs, layer=self)
        table = initial(embedding_init, rngs.params, (num_embeddings, features), param_dtype)
        self.embedding = Param(table, **embedding_metadata)
        self.dtype: DTypeLike = table.dtype if dtype is None else dtype

    def __call__(self, inputs: Array, out_sharding: Any = None) -> Array:
        inputs = jnp.asarray(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ShapeError(
                "Input type must be an integer: Embed looks up rows by integer",
                at=describe_place(self),
                found=f"an input of dtype {inputs.dtype.name}",
                expected="an integer dtype",
                do="convert the indices: inputs.astype(jnp.int32)",
            )
        table = self.embedding[...]
        (table,) = self.promote_dtype((table,), dtype=self.dtype, inexact=False)
        check_members(table, 2, layer=self)
        if self.num_embeddings == 1:
            return jnp.broadcast_to(
                jnp.reshape(table, (1,) * inputs.ndim + table.shape[1:]), (*inputs.shape, *table.shape[1:])
            )
        if out_sharding is None:
            out_sharding = _layout(inputs, table)
        if out_sharding is not None:
            return table.at[inputs].get(mode="fill", out_sharding=out_sharding)
        return jnp.take(table, inputs, axis=0)

    def attend(self, query: Array, out_sharding: Any = None) -> Array:
        """Multiply by the table: ``query @ embedding.T``.

        Args:
            query: ``(..., features)``.
            out_sharding: sharding of the result.

        Returns:
            ``(..., num_embeddings)``.
        """
        table = self.embedding[...]
        check_array(query, layer=self)
        query, table = self.promote_dtype((query, table), dtype=self.dtype)
        check_members(table, 2, layer=self)
        check_last_axis(query, weight_length(table, 1, self.features), layer=self, size_name="features")
        return jnp.einsum("...f,nf->...n", query, table, out_sharding=out_sharding)


def _layout(indices: Array, table: Array) -> NamedSharding | None:
    """The sharding of the rows on a mesh with explicit axes: that of the indices. ``None`` without such a mesh."""
    sharding = explicit_sharding(indices)
    if sharding is None:
        return None
    used = {name for entry in sharding.spec for name in (entry if isinstance(entry, tuple) else (entry,))}
    features = jax.typeof(table).sharding.spec[1]
    is_free = not used.intersection(features if isinstance(features, tuple) else (features,)) - {None}
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec, features if is_free else None))
