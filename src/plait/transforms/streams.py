"""Splitting, forking and reseeding the random streams inside a graph.

A function that is mapped over an axis needs a key for each position along it. ``split_rngs`` draws once from every
stream and stores a batch of keys in it; after the mapped call the stream's key is restored, with the counter advanced
by that draw, so that the next call draws different keys. ``reseed`` gives streams new keys by tag, also each layer of a
stack. (rules R6 to R8)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.merge import clone
from ..core.graph.modes import Crossing, check_mode
from ..core.nodes.nodes import Kind, check_node, iter_graph_nodes, kind_of
from ..core.rngs import RngStream, drawn_keys, key_shape
from ..core.traces.guard import check_trace
from ..core.variables.filters import Predicate, to_predicate
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..typing import FilterLiteral, Node, Tree, Value
from ..util.paths import Path, parse_path
from ..util.sentinels import NOTHING
from .call.arguments import parameter_names

Rewrite = Callable[[jax.Array], jax.Array]
Choose = Callable[[Path, RngStream], Rewrite | None]


@dataclasses.dataclass(frozen=True)
class StreamBackup:
    """The state to restore a stream to: its key and, unless ``None``, its counter."""

    stream: RngStream
    key: jax.Array
    count: jax.Array | None = None


class SplitBackups(tuple[StreamBackup, ...]):
    """The streams that a call split or forked, and the state to restore them to.

    An iterable for ``restore_rngs``, and a context manager that restores on exit.
    """

    @property
    def backups(self) -> tuple[StreamBackup, ...]:
        """The streams, each with its state before."""
        return tuple(self)

    def __enter__(self) -> SplitBackups:
        return self

    def __exit__(self, *_: object) -> None:
        restore_rngs(self)


def split_rngs(
    node: Node = NOTHING,
    /,
    *,
    splits: int | tuple[int, ...],
    only: FilterLiteral = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Give the streams of a graph a batch of keys, for a function that is mapped over an axis.

    Each stream draws one key and stores a split of it, with counters at 0. In a ``Stack``, each layer's stream draws;
    the axes of layers come after those of the split.

    Args:
        node: a module, ``Rngs``, ``RngStream``, or a container of them. If it is omitted or a function, the result is a
            decorator that splits the streams in all arguments during a call.
        splits: the number of keys, or their shape.
        only: the streams to split; their key and their counter must both match.
        squeeze: whether to remove the axis of length 1, with ``splits=1``.
        graph, graph_updates: as in ``jit``.

    Returns:
        For a node, ``SplitBackups``: pass them to ``restore_rngs``, or use them as a context manager. (With
        ``graph_updates=False``, a copy of the node that shares all variables except those of the streams; the streams
        of the node advance, so the next copy differs.) After restoring, a stream has its original key, and its counter
        is one past the original draw, regardless of draws in between.

    Raises:
        ArgumentError: ``squeeze`` without ``splits=1``.
        StreamError: a stream already has an array of keys; the message names its path. No stream is changed.

    Example:
        >>> rngs = plait.Rngs(params=0, dropout=1)
        >>> with plait.split_rngs(rngs, splits=5, only="params"):
        ...     print(rngs.params.key.shape, rngs.dropout.key.shape)
        (5,) ()
        >>> rngs.params.key.shape, int(rngs.params.count[...])
        ((), 1)

        >>> @plait.split_rngs(splits=3)
        ... def shapes(rngs):
        ...     return rngs.params.key.shape
        >>> shapes(rngs)
        (3,)
    """
    if squeeze and splits != 1:
        raise ArgumentError(
            "squeeze=True removes the axis of a single split",
            found=f"squeeze=True and splits={splits!r}",
            expected="splits=1",
            do="remove squeeze=True, or pass splits=1",
        )
    split = functools.partial(jax.random.split, num=key_shape(splits))
    rules = [(to_predicate(only), (lambda key: split(key)[0]) if squeeze else split)]
    return apply_rules("split_rngs", node, _by_both(rules), Crossing(graph, graph_updates))


def fork_rngs(
    node: Node = NOTHING,
    /,
    *,
    split: int | tuple[int, ...] | Mapping[FilterLiteral, int | tuple[int, ...] | None] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Give the streams of a graph new keys, each from one draw of the stream.

    Args:
        node: as in ``split_rngs``; without it a decorator.
        split: a number or shape also splits the new keys. A mapping from filters to numbers forks only the streams that
            a filter matches (the first match counts; ``None`` forks without splitting).
        graph, graph_updates: as in ``jit``.

    Returns:
        As in ``split_rngs``.

    Example:
        >>> rngs = plait.Rngs(params=0)
        >>> backups = plait.fork_rngs(rngs)
        >>> int(rngs.params.count[...])
        0
        >>> plait.restore_rngs(backups)
        >>> int(rngs.params.count[...])
        1
    """
    mapping = split if isinstance(split, Mapping) else {...: split}
    rules = [
        (to_predicate(filter), forked if size is None else functools.partial(jax.random.split, num=key_shape(size)))
        for filter, size in mapping.items()
    ]
    return apply_rules("fork_rngs", node, _by_both(rules), Crossing(graph, graph_updates))


def forked(key: jax.Array) -> jax.Array:
    return key


def _by_both(rules: Sequence[tuple[Predicate, Rewrite]]) -> Choose:
    """The first rule whose filter matches both the key and the counter of a stream."""

    def choose(path: Path, stream: RngStream) -> Rewrite | None:
        for predicate, rewrite in rules:
            if predicate((*path, "key"), stream.key) and predicate((*path, "count"), stream.count):
                return rewrite
        return None

    return choose


def apply_rules(name: str, node: Node, choose: Choose, crossing: Crossing, *, in_place: bool = True) -> Node:
    """Apply the change to a node; without a node, or for a function, return a decorator that applies it to all
    arguments."""

    def on_node(node: Node, named: Callable[[Path], Path] = tuple) -> Node:
        check_node(node, name)
        crossing.check(node)
        return (_changed if in_place and crossing.updates else _copied)(node, choose, named)

    def decorate(f: Callable[..., Tree]) -> Callable[..., Tree]:
        names = parameter_names(f)

        def named(path: Path) -> Path:
            return (*parse_path(names.at(path[1])), *path[2:]) if path[0] == 0 else path[1:]

        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = on_node((args, kwargs), named)
            if not isinstance(result, SplitBackups):
                args, kwargs = result
                return f(*args, **kwargs)
            with result:
                return f(*args, **kwargs)

        return wrapper

    if node is NOTHING:
        return decorate
    return decorate(node) if kind_of(node) is Kind.STATIC and callable(node) else on_node(node)


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Restore the keys and counters that ``split_rngs``, ``fork_rngs`` or ``backup_keys`` saved.

    Raises:
        TraceContextError: a stream belongs to a different trace; no stream is changed.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> backups = plait.split_rngs(rngs, splits=4)
        >>> plait.restore_rngs(backups)
        >>> rngs.default.key.shape
        ()
    """
    backups = list(backups)
    for backup in backups:
        check_stream_trace(backup.stream)
    for backup in backups:
        backup.stream.key.set_value(backup.key)
        if backup.count is not None:
            backup.stream.count.set_value(backup.count)


def backup_keys(node: Node, /, *, graph: bool | None = None) -> list[StreamBackup]:
    """The keys of all streams of a graph, for ``restore_rngs``; counters are neither saved nor restored.

    Args:
        graph: as in ``split``.

    Example:
        >>> rngs = plait.Rngs(0)
        >>> backups = plait.backup_keys(rngs)
        >>> plait.reseed(rngs, default=7)
        >>> plait.restore_rngs(backups)
        >>> bool(rngs.default.key[...] == jax.random.key(0))
        True
    """
    check_mode(node, graph)
    check_node(node, "backup_keys")
    return [StreamBackup(stream, stream.key.get_value()) for _, stream in iter_streams(node)]


def iter_streams(node: Node) -> Iterator[tuple[Path, RngStream]]:
    """Every stream below and including ``node`` at its first path; if two share their key (a view), the first."""
    keys: set[int] = set()
    for path, value in iter_graph_nodes(node):
        if isinstance(value, RngStream) and id(value.key) not in keys:
            keys.add(id(value.key))
            yield path, value


def _draws(node: Node, choose: Choose, named: Callable[[Path], Path]) -> list[tuple[RngStream, jax.Array, jax.Array]]:
    """The new keys of the chosen streams, and their counters after the draw; nothing is changed.

    Args:
        named: of a path in the node, the path that an error names.
    """
    found = []
    for path, stream in iter_streams(node):
        rewrite = choose(path, stream)
        if rewrite is not None:
            check_stream_trace(stream)
            key = drawn_keys(stream, rewrite, named(path))
            found.append((stream, key, stream.count.get_value() + jnp.uint32(1)))
    return found


def _changed(node: Node, choose: Choose, named: Callable[[Path], Path]) -> SplitBackups:
    """The chosen streams changed in place."""
    draws = _draws(node, choose, named)
    for stream, key, _ in draws:
        if stream.key.ref and key.shape != stream.key.shape:
            raise ArgumentError(
                f"the stream {stream.tag!r} stores its key in a reference, whose shape cannot change",
                found=f"a key of shape {stream.key.shape} that would become {key.shape}",
                expected="a variable without a reference",
                do=f"create a new node: plait.split_rngs(node, splits={key.shape}, graph_updates=False)",
            )
    backups = [StreamBackup(stream, stream.key.get_value(), count) for stream, _, count in draws]
    for stream, key, _ in draws:
        set_key(stream, key)
    return SplitBackups(backups)


def _copied(node: Node, choose: Choose, named: Callable[[Path], Path]) -> Node:
    """A copy of the graph, with new variables in the chosen streams; the others are shared."""
    copied = clone(node, variables=False, graph=True)  # the caller has already checked the mode
    fresh: dict[int, tuple[Variable[Value], Variable[Value]]] = {}
    for stream, key, count in _draws(copied, choose, named):
        stream.count.set_value(count)
        fresh[id(stream.key)] = stream.key.copy(key), stream.count.copy(jnp.zeros(key.shape, jnp.uint32))
    for _, value in list(iter_graph_nodes(copied)):
        if isinstance(value, RngStream) and id(value.key) in fresh:
            value.key, value.count = fresh[id(value.key)]  # type: ignore[assignment]
    return copied


def check_stream_trace(stream: RngStream) -> None:
    """Raise if a stream belongs to another trace."""
    for variable in (stream.key, stream.count):
        check_trace(variable._cell.trace, variable, f"change the stream {stream.tag!r} through its")


def set_key(stream: RngStream, key: jax.Array) -> None:
    """Give a stream a key, or an array of keys, and start counting again."""
    stream.key.set_value(key)
    stream.count.set_value(jnp.zeros(key.shape, jnp.uint32))
