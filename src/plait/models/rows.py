"""Families as rows: each setting is a key of the config, or what a whole family has; and the names of weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from ..convert.layouts import Arrays, Piece
from .blocks import LayerSettings, Settings
from .family import Config
from .rotary import read_rotaries

INT, FLOAT = (int, NoneType), (float, NoneType)
QKV = "attention.query attention.key attention.value"
_ROTARY = ("theta", "local_theta", "part", "limit", "original")


class Key(NamedTuple):
    """A key of a config.

    Args:
        name: the key.
        kind: its types; ``str`` for an activation, ``tuple`` for one size or two.
        absent: what it means if it is absent.
    """

    name: str
    kind: Any
    absent: Any = None

    def read(self, config: Config) -> Any:
        """Its value."""
        take = {str: config.activation, tuple: config.pair}.get(self.kind)
        return config.take(self.name, self.kind, self.absent) if take is None else take(self.name, self.absent)


Row = Mapping[str, Any]
"""What a family has under the names of ``Settings`` and a few more.

The others: ``count`` of layers; ``window``, ``uses_window`` and ``scale`` of layers; the arguments of
``read_rotaries``; ``ignored`` keys, and ``only``, keys of which some values are supported.
"""


def read_row(row: Row, config: Config, is_sliding: Callable[[int], bool] | None = None) -> dict[str, Any]:
    """The settings of a config, by name.

    Args:
        is_sliding: whether a layer has a sliding window, if ``layer_types`` does not say; without it all have one.
    """
    said = {name: each.read(config) if isinstance(each, Key) else each for name, each in row.items()}
    config.ignore(*said.pop("ignored", ()))
    for key, supported in said.pop("only", {}).items():
        config.only(key, *supported)
    width, heads = said["width"], said["heads"]
    usual = {"hidden": 4 * width, "kv_heads": heads, "head_dim": width // heads, "out_bias": said["qkv_bias"]}
    said |= {name: value for name, value in usual.items() if said.get(name) is None}
    rotary = {name: said.pop(name) for name in _ROTARY if name in said}
    near, far = read_rotaries(config, said["head_dim"], **rotary)
    window, uses_window, scale = said.pop("window", None), said.pop("uses_window", True), said.pop("scale", None)
    full, sliding = LayerSettings(None, far, scale), LayerSettings(window if uses_window else None, near, scale)
    count = said.pop("count")
    are_sliding = [True] * count if is_sliding is None else _are_sliding(config, count, is_sliding)
    return {**said, "layers": tuple(sliding if each else full for each in are_sliding)}


def _are_sliding(config: Config, count: int, is_sliding: Callable[[int], bool]) -> list[bool]:
    types = config.take("layer_types", (list, NoneType), None)
    if types is None:
        return [is_sliding(i) for i in range(count)]
    if len(types) != count or not set(types) <= {"full_attention", "sliding_attention"}:
        raise config.error("layer_types", f"full_attention or sliding_attention for each of {count} layers")
    return [each == "sliding_attention" for each in types]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Names:
    """The names of a family's modules in its files.

    Args:
        prefix: of all names but those of heads.
        layers: the name of the layers.
        outer: ours → theirs, outside of the layers.
        inner: ours → theirs, in a layer. Several of ours are parts of one array, one after the other.
        head: the name of the head.
        unused: what some files have besides.
        heads: heads that the model does not have.
        order: of the arrays in a layer: PyTorch's; with the inputs first; or query, key and value of each head.
    """

    prefix: str
    layers: str
    outer: Mapping[str, str]
    inner: Mapping[str, str]
    head: str | None = None
    unused: Sequence[str] = ()
    heads: Sequence[str] = ()
    order: str = "torch"

    def pieces(self, s: Settings, is_tied: bool = False) -> list[Piece]:
        """The pieces of a model."""
        head = [] if self.head is None else [self.head]
        found = [Piece((), [*(self.prefix + name for name in self.unused), *self.heads, *head * is_tied])]
        found += [Piece("head", name) for name in head if not is_tied]  # tied, some files have the embeddings twice
        found += [Piece(ours, self.prefix + theirs) for ours, theirs in self.outer.items()]
        kv_size = s.kv_heads * s.head_dim
        sizes = {"attention.query": s.heads * s.head_dim, "attention.key": kv_size, "mlp.gate": s.hidden}
        for ours, theirs in self.inner.items():
            *others, last = ours.split()
            ends = np.cumsum([sizes[each] for each in others], dtype=int).tolist()
            acts = (functools.partial(act, s, self.order, ends) for act in (_taken_apart, _put_together))
            paths = [f"blocks.*.{each}" for each in (*others, last)]
            found.append(Piece(paths, f"{self.prefix}{self.layers}.*.{theirs}", *acts))
        return found


def _taken_apart(s: Settings, order: str, ends: list[int], w: np.ndarray) -> Arrays:
    if order == "heads" and ends:
        by_head = w.reshape(s.heads, 3, s.head_dim, *w.shape[1:])
        return [by_head[:, i].reshape(-1, *w.shape[1:]) for i in range(3)]
    return np.split(w.T if order == "inputs" else w, ends)


def _put_together(s: Settings, order: str, ends: list[int], *parts: np.ndarray) -> Arrays:
    if order == "heads" and ends:
        by_head = [part.reshape(s.heads, s.head_dim, *part.shape[1:]) for part in parts]
        return (np.stack(by_head, axis=1).reshape(-1, *parts[0].shape[1:]),)
    whole = np.concatenate(parts) if ends else parts[0]
    return (whole.T if order == "inputs" else whole,)
