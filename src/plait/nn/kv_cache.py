"""The KV cache of a decoder: keys and values of the positions so far. (rule L28)

The arrays are ``(..., length, heads, features)``. All sequences of a batch share one position, or each has its own:
then the index has the batch axes. A step is computed first, and its layer stores the result afterwards, so a step that
raises leaves the cache unchanged.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.nodes.nodes import iter_graph_nodes
from ..core.variables.variable_kinds import Cache
from ..errors import ArgumentError, ShapeError
from ..typing import Array, DTypeLike, Shape
from ..util.jax_versions import Tracer, explicit_sharding
from .checks import shape_of
from .promotion import as_dtype
from .stacks import stack


def empty_cache(
    input_shape: Shape, heads: int, features: int, dtype: DTypeLike, *, per_sequence: bool, layer: Module
) -> tuple[Cache[Array], Cache[Array], Cache[Array]]:
    """Empty keys and values and the index of the next step, for an input of shape ``(..., length, in_features)``."""
    if len(input_shape) < 2:
        raise ShapeError(
            "a cache holds one key and value for each position of the input",
            at=describe_place(layer),
            found=f"input_shape={tuple(input_shape)}",
            expected="(..., length, in_features)",
            do="pass the shape of the whole input, with as many positions as there will be steps",
        )
    shape = (*input_shape[:-1], heads, features)
    index = jnp.zeros(tuple(input_shape[:-2]) if per_sequence else (), jnp.int32)
    return Cache(jnp.zeros(shape, dtype)), Cache(jnp.zeros(shape, dtype)), Cache(index)


def check_step(
    cached_key: Cache[Array] | None, cache_index: Cache[Array] | None, key: Array, *, layer: Module
) -> Array:
    """The index of a step's first position, checked: the step must fit the cache.

    Raises:
        ArgumentError: there is no cache, or it is full; while tracing, only if the index is known.
        ShapeError: the step has more positions than the cache, or different batch axes.
    """
    kind = type(layer).__name__
    if cached_key is None or cache_index is None:
        raise ArgumentError(
            f"Autoregressive cache not initialized: a {kind} has no cache to decode with",
            at=describe_place(layer),
            found="decode=True before init_cache",
            expected="a cache created by init_cache",
            do="call layer.init_cache((*batch, length, in_features)) before the first step, or use "
            "plait.view(model, decode=True, batch_size=..., max_length=...)",
        )
    *batch, length, heads, features = cached_key.shape
    shape = shape_of(key)
    if len(shape) != cached_key.ndim or (*shape[:-3], *shape[-2:]) != (*batch, heads, features) or shape[-3] > length:
        raise ShapeError(
            f"a decoding step does not fit the cache of the {kind}",
            at=describe_place(layer),
            found=f"keys of shape {shape_of(key)} for a cache of shape {cached_key.shape}",
            expected=f"keys of shape {(*batch, 1, heads, features)}, or of up to {length} positions at once",
            do="pass one position of the input, x[..., t : t + 1, :], or several, or create a new cache with "
            "layer.init_cache",
        )
    index = cache_index.value
    _check_room(index, shape[-3], length, layer)
    return index


def _check_room(index: Array, new: int, length: int, layer: Any) -> None:
    if not isinstance(index, Tracer) and int(jnp.max(index, initial=0)) + new > length:
        raise ArgumentError(
            f"a {type(layer).__name__} decodes past the end of its cache",
            at=describe_place(layer),
            found=f"position {int(jnp.max(index)) + new} with a cache of {length} positions",
            expected=f"at most {length} positions",
            do="create a longer or empty cache with layer.init_cache",
        )


def _check_layers(blocks: Any) -> None:
    """Raise if a step of the layers of a stack, which has run, went past the end of a cache."""
    for _, node in iter_graph_nodes(blocks):
        attributes = getattr(node, "__dict__", {})
        index, key = attributes.get("cache_index"), attributes.get("cached_key")
        if isinstance(index, Cache) and isinstance(key, Cache):
            _check_room(index.value, 0, key.shape[-3], node)


stack.after_loop = _check_layers


def with_step(cached: Array, step: Array, index: Array) -> Array:
    """The cached keys or values, with those of one step written at a position, or at one per sequence.

    On a mesh with explicit axes they have the sharding of the step, with all positions on each device.
    """

    def write(cached: Array, step: Array, index: Array) -> Array:
        return lax.dynamic_update_slice_in_dim(cached, step, index, axis=cached.ndim - 3)

    mapped: Any = write
    for _ in range(index.ndim):
        mapped = jax.vmap(mapped)
    sharding = explicit_sharding(step)
    if sharding is not None:
        spec = PartitionSpec(*sharding.spec[:-3], None, *sharding.spec[-2:])
        mapped = jax.sharding.auto_axes(mapped, out_sharding=NamedSharding(sharding.mesh, spec))
    return mapped(cached, as_dtype(step, cached.dtype), index)


def step_positions(x: Array, index: Array | None) -> Array:
    """The positions of projected queries or keys, ``(length,)`` or ``(..., length)``, counted from ``index`` or 0."""
    positions = jnp.arange(x.shape[-3], dtype=jnp.int32)
    return positions if index is None else jnp.reshape(positions, (1,) * index.ndim + (-1,)) + index[..., None]


def past_mask(cached: Array, positions: Array, window: int | None) -> Array:
    """The causal mask of queries at these positions: ``(..., 1, queries, length)``; of the last ``window`` keys alone
    if it is given."""
    places = jnp.reshape(jnp.arange(cached.shape[-3], dtype=jnp.int32), (1,) * positions.ndim + (-1,))
    past = places <= positions[..., None]
    if window is not None:
        past &= places > positions[..., None] - window
    batch = positions.shape[:-1] or (1,) * (cached.ndim - 3)
    return jnp.reshape(past, (*batch, 1, *past.shape[-2:]))
