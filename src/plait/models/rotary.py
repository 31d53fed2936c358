"""Rotary embeddings as configs describe them: base, part of the features, and the scalings for longer texts.

References: Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation", 2023,
arXiv:2306.15595 (``linear``); Peng et al., "YaRN", 2023, arXiv:2309.00071 (``yarn``, and ``dynamic``); Ding et al.,
"LongRoPE", 2024, arXiv:2402.13753 (``longrope``); "The Llama 3 Herd of Models", 2024, arXiv:2407.21783 (``llama3``).
"""

from __future__ import annotations

import dataclasses
import math
from types import NoneType
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..nn.rotary import apply_rotary_embedding
from ..typing import Array
from .family import Config

Limits = tuple[int, int | None]
"""The positions of a config, and those of the first training."""


@dataclasses.dataclass(frozen=True)
class Rotary:
    """A ``rotary_fn`` of ``MultiHeadAttention``, with half-split pairs.

    Args:
        frequencies: the angle of each pair at position 1.
        scale: what rotated features are multiplied by.
        limit: how many positions these frequencies are for; with more, others serve. ``None`` sets no limit.
        beyond: the frequencies for more positions.
        growth: the base, and the factor by which it grows with the number of positions beyond the limit.
    """

    frequencies: tuple[float, ...]
    scale: float = 1.0
    limit: int | None = None
    beyond: tuple[float, ...] | None = None
    growth: tuple[float, float] | None = None

    def __call__(self, x: Array, positions: Array) -> Array:
        frequencies: Any = np.asarray(self.frequencies, np.float32)
        if self.limit is not None:
            length = (jnp.max(positions) + 1).astype(jnp.float32)
            frequencies = jnp.where(length > self.limit, self._beyond(length / self.limit), frequencies)
        return apply_rotary_embedding(x, positions, frequencies=frequencies, scale=self.scale, interleaved=False)

    def for_long_texts(self) -> Rotary:
        """The same, with the frequencies for more positions at any length."""
        return dataclasses.replace(self, frequencies=self.beyond, limit=None, beyond=None)

    def _beyond(self, times: Array) -> Any:
        """The frequencies for so many times the positions of the limit."""
        if self.growth is None:
            return np.asarray(self.beyond, np.float32)
        base, factor = self.growth
        pairs = len(self.frequencies)
        grown = base * (factor * times - (factor - 1)) ** (pairs / (pairs - 1))
        return grown ** -np.arange(0, 1, 1 / pairs, dtype=np.float32)[:pairs]


def read_rotaries(
    config: Config,
    head_dim: int,
    *,
    theta: float | None = None,
    local_theta: float | None = None,
    part: float | None = None,
    limit: int = 0,
    original: int | None = None,
) -> tuple[Rotary | None, Rotary | None]:
    """The rotary embeddings of layers with a sliding window and of others: ``rope_parameters``, or ``rope_scaling``.

    Args:
        config: the config.
        head_dim: how many features a head has.
        theta: the base; ``None`` for families without rotary embeddings.
        local_theta: that of layers with a sliding window, if these have another one, without a scaling.
        part: which part of the features is rotated; ``None`` for families that rotate all.
        limit: how many positions there are.
        original: those of the first training, if the family has such a key.

    Raises:
        ConversionError: there are keys or values that are not supported.
    """
    if theta is None:
        return None, None
    new, old = config.part("rope_parameters"), config.part("rope_scaling")
    if new is not None and old is not None:
        raise config.error("rope_scaling", "null beside rope_parameters")
    near = far = new or old or Config({}, "")
    if local_theta is None:
        local_theta = theta
    elif new is not None:
        near, far = (new.part(each) or Config({}, "") for each in ("sliding_attention", "full_attention"))
        new.finish()
    else:
        near = Config({}, "")
    both = ((near, local_theta), (far, theta))
    one, other = (_rotary(given, head_dim, base, part, (limit, original)) for given, base in both)
    return one, other


def _rotary(given: Config, head_dim: int, theta: float, part: float | None, limits: Limits) -> Rotary:
    """The rotary embedding that an object of a config describes; every key of it is taken."""
    theta = float(given.take("rope_theta", float, theta))
    kind = given.take("type", str, "default")
    kind = given.take("rope_type", str, kind)
    if kind not in _SCALINGS:
        raise given.error("rope_type" if "rope_type" in given.values else "type", " or ".join(_SCALINGS))
    if part is not None:
        dim = int(head_dim * given.take("partial_rotary_factor", float, part))
    else:
        dim = head_dim
        if kind == "default":  # families that rotate all do not read this; the scalings do
            given.ignore("partial_rotary_factor")
        else:
            given.only("partial_rotary_factor", 1.0, 1)
    found = _SCALINGS[kind](given, theta ** (-np.arange(0, dim, 2) / dim), theta, limits)
    given.finish()
    return found


def _default(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    return Rotary(tuple(base.tolist()))


def _linear(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    return Rotary(tuple((base / given.take("factor", float)).tolist()))


def _dynamic(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    given.ignore("original_max_position_embeddings")
    return Rotary(tuple(base.tolist()), limit=limits[0], growth=(theta, given.take("factor", float)))


def _llama3(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    """Slow pairs are slowed down by a factor, fast ones stay, and those between are between."""
    factor, low, high = (given.take(key, float) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = given.take("original_max_position_embeddings", int, limits[0]) * base / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return Rotary(tuple(((1 - kept) * base / factor + kept * base).tolist()))


def _yarn(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    """Pairs that turn more often than ``beta_fast`` stay, those below ``beta_slow`` are slowed down by a factor."""
    original = given.take("original_max_position_embeddings", int, limits[0])
    factor, dim = given.take("factor", float), 2 * len(base)
    bounds = []
    for key, usual in (("beta_fast", 32), ("beta_slow", 1)):
        turns = given.take(key, (float, NoneType), None) or usual
        bounds.append(dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)))
    if given.take("truncate", bool, True):
        bounds = [math.floor(bounds[0]), math.ceil(bounds[1])]
    low, high = max(bounds[0], 0), min(bounds[1], dim - 1)
    slowed = np.clip((np.arange(dim // 2) - low) / (high - low if high > low else 0.001), 0, 1)

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    weights = [given.take(key, (float, NoneType), None) for key in ("mscale", "mscale_all_dim")]
    scale = grown(weights[0]) / grown(weights[1]) if weights[0] and weights[1] else grown(1.0)
    scale = given.take("attention_factor", (float, NoneType), None) or scale
    return Rotary(tuple((slowed * base / factor + (1 - slowed) * base).tolist()), scale)


def _longrope(given: Config, base: np.ndarray, theta: float, limits: Limits) -> Rotary:
    """Each pair has a factor of its own, and another one for texts longer than those of the first training."""
    original = given.take("original_max_position_embeddings", int, limits[0])
    original = limits[1] or original  # where the family has such a key outside, that one counts
    factor = given.take("factor", (float, NoneType), None)
    factor = limits[0] / original if factor is None else factor
    near, far = ((base / _factors(given, key, len(base))).tolist() for key in ("short_factor", "long_factor"))
    scale = given.take("attention_factor", (float, NoneType), None)
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rotary(tuple(near), scale, original, tuple(far))


def _factors(given: Config, key: str, pairs: int) -> np.ndarray:
    factors = given.take(key, list)
    if len(factors) != pairs or not all(type(each) in (int, float) for each in factors):
        raise given.error(key, f"{pairs} numbers")
    return np.asarray(factors)


_SCALINGS = {
    "default": _default, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn,
    "longrope": _longrope, "su": _longrope,
}  # fmt: skip
