"""The rule by which a run keeps checkpoints, and its result for a list of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import ArgumentError
from .layout import Saved


@dataclasses.dataclass(frozen=True)
class Keep:
    """Which checkpoints to keep after a save: the one just saved, and those that match any of these rules.

    Only folders that ``Checkpoints`` wrote are counted and removed: not copies under other names, and not links.

    Args:
        last: the number of newest checkpoints to keep; ``None`` means all. The newest is always kept.
        best: the number of best checkpoints by ``metric`` to keep.
        metric: a name in the saved ``metrics``. Checkpoints without it, or with NaN, do not count as best.
        mode: ``"min"`` if lower is better, ``"max"`` if higher is better.
        every: keep the steps that are multiples of it.
        hours: keep one checkpoint for each period of this many hours: the first one saved in it.

    Raises:
        ArgumentError: a number below 1 (``hours``: 0 or less), ``best`` without ``metric``, or an unknown mode.

    Example:
        >>> plait.checkpoint.Keep(last=2, best=1, metric="loss", every=1_000)
        Keep(last=2, best=1, metric='loss', mode='min', every=1000, hours=None)
    """

    last: int | None = 3
    best: int = 0
    metric: str | None = None
    mode: str = "min"
    every: int | None = None
    hours: float | None = None

    def __post_init__(self) -> None:
        for name, low in (("last", 1), ("best", 0), ("every", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < low):
                raise _wrong(name, value, f"a whole number from {low}", f"{name}={max(low, 1)}, metric='loss'")
        if self.hours is not None and not self.hours > 0:
            raise _wrong("hours", self.hours, "a number above 0", "hours=1")
        if self.mode not in ("min", "max"):
            raise _wrong("mode", self.mode, "'min' or 'max'", "mode='min'")
        if self.best and self.metric is None:
            raise _wrong("metric", None, "the name of a metric, because best is set", "best=1, metric='loss'")

    def chosen(self, saved: Sequence[Saved]) -> set[Saved]:
        """The checkpoints to keep."""
        ordered = sorted(saved, key=lambda each: (each.step, each.time))
        stay = set(ordered if self.last is None else ordered[-self.last :])
        stay |= set(self.ranked(ordered)[: self.best])
        if self.every is not None:
            stay |= {each for each in ordered if each.step % self.every == 0}
        if self.hours is not None:
            spans: dict[int, Saved] = {}
            for each in ordered:
                spans.setdefault(math.floor(each.time / (3600 * self.hours)), each)
            stay |= set(spans.values())
        return stay

    def ranked(self, saved: Sequence[Saved]) -> list[Saved]:
        """Checkpoints that have the metric, the best first; ties go to the earlier one, which took less training."""
        metric, sign = self.metric, 1 if self.mode == "min" else -1
        if metric is None:
            return []
        scored = [each for each in saved if _is_number(each.metrics.get(metric))]
        return sorted(scored, key=lambda each: (sign * each.metrics[metric], each.step))


def _is_number(score: object) -> bool:
    return isinstance(score, (int, float)) and score == score  # NaN is not; math.isnan refuses integers above 1e308


def _wrong(name: str, value: object, expected: str, do: str) -> ArgumentError:
    return ArgumentError(
        "this is not a rule for keeping checkpoints",
        at=name,
        found=repr(value),
        expected=expected,
        do=f"for example plait.checkpoint.Keep({do})",
    )
