"""``with_rngs``: a copy of a graph in which rules split, fork or broadcast each random stream."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..core.graph.modes import Crossing
from ..core.rngs import RngStream, key_shape
from ..core.variables.filters import to_predicate
from ..errors import ArgumentError
from ..typing import FilterLiteral, Node
from ..util.paths import Path, describe_path
from ..util.sentinels import NOTHING
from ..util.words import describe_filter
from .streams import Rewrite, apply_rules, forked


def with_rngs(
    node: Node = NOTHING,
    /,
    *,
    split: int | tuple[int, ...] | Mapping[FilterLiteral, int | tuple[int, ...]] | None = None,
    fork: FilterLiteral | Sequence[FilterLiteral] = None,
    broadcast: int | tuple[int, ...] | Mapping[FilterLiteral, int | tuple[int, ...]] | None = None,
    only: FilterLiteral = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """A copy of a graph whose streams are split, broadcast or forked according to rules.

    The copy shares all variables except those of the changed streams, which advance by one draw in the original.
    Filters are applied to the streams (``"dropout"`` matches the stream with that tag) and their paths.

    Args:
        node: a module, ``Rngs``, ``RngStream``, or a container of them. If it is omitted or a function, the result is a
            decorator that calls the function with such copies of its arguments.
        split: a number or shape for all streams, or a mapping from filters to them; the first filter that matches
            counts. A split stream has a split of one draw.
        broadcast: the same; a broadcast stream has copies of one draw.
        fork: one or several filters; a forked stream has one draw.
        only: the streams that the rules apply to.
        graph, graph_updates: as in ``jit``.

    Raises:
        ArgumentError: a stream matches the filters of two of ``split``, ``broadcast`` and ``fork`` (a filter of ``...``
            or ``True`` yields to others); the message names its path.

    Example:
        >>> rngs = plait.Rngs(params=0, dropout=1, noise=2)
        >>> new = plait.with_rngs(rngs, split={"params": 4}, fork="noise")
        >>> new.params.key.shape, bool(new.noise.key == rngs.noise.key), new.dropout.key is rngs.dropout.key
        ((4,), False, True)
    """
    selected = to_predicate(only)
    rules = [
        *(_Rule("split", f, functools.partial(jax.random.split, num=shape)) for f, shape in _sizes(split)),
        *(_Rule("broadcast", f, functools.partial(jnp.broadcast_to, shape=shape)) for f, shape in _sizes(broadcast)),
        *(_Rule("fork", f, forked) for f in (fork if isinstance(fork, (list, tuple)) else (fork,))),
    ]

    def choose(path: Path, stream: RngStream) -> Rewrite | None:
        return _rule_for(rules, path, stream) if selected(path, stream) else None

    return apply_rules("with_rngs", node, choose, Crossing(graph, graph_updates), in_place=False)


def _sizes(sizes: Any) -> Iterable[tuple[FilterLiteral, tuple[int, ...]]]:
    mapping = sizes if isinstance(sizes, Mapping) else {} if sizes is None else {...: sizes}
    return [(filter, key_shape(size)) for filter, size in mapping.items()]


class _Rule:
    """One rule of ``with_rngs``: what happens to the streams that a filter matches."""

    def __init__(self, action: str, filter: FilterLiteral, rewrite: Rewrite) -> None:
        self.action, self.filter, self.rewrite = action, filter, rewrite
        self.matches = to_predicate(filter)
        self.is_specific = filter is not ... and filter is not True


def _rule_for(rules: Sequence[_Rule], path: Path, stream: RngStream) -> Rewrite | None:
    """The first rule that matches, unless filters of two actions select the stream."""
    first: dict[str, _Rule] = {}
    for rule in rules:
        if rule.action not in first and rule.matches(path, stream):
            first[rule.action] = rule
    if sum(rule.is_specific for rule in first.values()) > 1:
        raise ArgumentError(
            "with_rngs has several rules for one stream",
            at=describe_path(path),
            found=" and ".join(f"{rule.action} by {describe_filter(rule.filter)}" for rule in first.values()),
            expected="one rule per stream; only `...` and `True` yield to other rules",
            do="select the stream in only one of split, broadcast and fork",
        )
    return next((rule.rewrite for rule in first.values()), None)
