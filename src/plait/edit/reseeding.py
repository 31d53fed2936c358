"""New keys for the random streams of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from ..core.graph.locate import describe_place
from ..core.graph.modes import check_mode
from ..core.nodes.nodes import check_node
from ..core.rngs import RngStream, as_key
from ..errors import ArgumentError, NothingSelectedWarning
from ..transforms.streams import check_stream_trace, iter_streams, set_key
from ..util.notices import warn
from ..util.paths import Path, describe_path, in_list_order, layers_of


def reseed(
    node: Any,
    /,
    *,
    policy: Literal["scalars_only", "match_shape"] | Callable[[Path, jax.Array, tuple[int, ...]], Any] = "scalars_only",
    graph: bool | None = None,
    **stream_keys: Any,
) -> None:
    """Give streams new keys by their tags, and set their counters to 0.

    Layers have their own streams (``Dropout`` forks the stream that is passed to it), so several streams may have the
    same tag; each gets its own draw from a new stream. Each layer of a ``Stack`` gets the key that it has in a list.

    Args:
        policy: how to set a stream with an array of keys: raise an error (``"scalars_only"``), split the new key to
            that shape (``"match_shape"``), or, for every stream, use the result of a function of
            ``(path, key, shape)``.
        graph: as in ``split``.
        **stream_keys: a seed, key or stream for each tag.

    Raises:
        ArgumentError: a stream has an array of keys; the message names its path and shape. No stream is changed.

    Warns:
        NothingSelectedWarning: no stream has one of the tags.

    Example:
        >>> model = plait.Dropout(0.5, rngs=plait.Rngs(dropout=0))
        >>> plait.reseed(model, dropout=42)
        >>> first = model(jnp.ones(8))
        >>> plait.reseed(model, dropout=42)
        >>> bool((model(jnp.ones(8)) == first).all())
        True
    """
    check_mode(node, graph)
    check_node(node, "reseed")
    if not (callable(policy) or policy in ("scalars_only", "match_shape")):
        raise ArgumentError(
            "reseed does not have this policy",
            found=f"policy={policy!r}",
            expected="'scalars_only', 'match_shape' or a function of (path, key, shape)",
            do="pass, for example, policy='match_shape'",
        )
    sources = {tag: RngStream(as_key(source), tag=tag) for tag, source in stream_keys.items()}
    tags = set()
    keys: dict[int, tuple[_Place, list[jax.Array]]] = {}
    for place in _by_layer(iter_streams(node)):
        path, stream, _, shape = place
        tags.add(stream.tag)
        if stream.tag in sources:
            check_stream_trace(stream)
            key = _reseeded(path, sources[stream.tag](), shape, policy)
            keys.setdefault(id(stream), (place, []))[1].append(key)
    plan = [
        (stream, jnp.stack(own).reshape(*layers, *own[0].shape) if layers else own[0])
        for (_, stream, layers, _), own in keys.values()
    ]
    for stream, key in plan:
        set_key(stream, key)
    missing = [tag for tag in stream_keys if tag not in tags]
    if missing:
        warn(
            NothingSelectedWarning,
            "reseed: no stream has this tag, so nothing was reseeded for it",
            at=describe_place(node),
            found=f"{', '.join(f'{tag}=' for tag in missing)} and streams with the tags {sorted(tags, key=str)}",
            expected="tags of streams below it",
            do="a layer created with plait.Rngs(0) draws from the stream 'default': plait.reseed(node, default=seed)"
            if "default" in tags and "default" not in stream_keys
            else "correct the tag, or omit it",
        )


class _Place(NamedTuple):
    """A stream of a graph, or of one layer of a stack, as a list of the layers would have it.

    Attributes:
        path: its path in the list.
        layers: the number of layers of each stack around it.
        shape: the shape of its keys in one layer.
    """

    path: Path
    stream: RngStream
    layers: tuple[int, ...]
    shape: tuple[int, ...]


def _by_layer(streams: Iterable[tuple[Path, RngStream]]) -> list[_Place]:
    """Each stream; one in a stack once for each layer, in the order of the list."""
    found = []
    for path, stream in streams:
        sizes = tuple(len(layers) for layers in map(layers_of, path) if layers is not None)
        # Otherwise another axis comes first, such as that of an ensemble.
        fits = stream.key.shape[: len(sizes)] == sizes
        found.append(_Place(path, stream, sizes if fits else (), stream.key.shape[len(sizes) if fits else 0 :]))
    layers = in_list_order(place.path if place.layers else () for place in found)
    return [found[number]._replace(path=layer) if layer else found[number] for number, layer, _ in layers]


def _reseeded(path: Path, key: jax.Array, shape: tuple[int, ...], policy: Any) -> jax.Array:
    if callable(policy):
        return as_key(policy(path, key, shape))
    if shape == ():
        return key
    if policy == "match_shape":
        return jax.random.split(key, shape)
    raise ArgumentError(
        "reseed found a stream with an array of keys",
        at=describe_path(path),
        found=f"keys of shape {shape}, and policy='scalars_only'",
        expected="a single key, of shape ()",
        do="if the keys differ along all axes, pass policy='match_shape' (one split of the new key); otherwise pass a "
        "function: `policy=lambda path, key, shape: ...`",
    )
