"""The first call whose inputs agree and whose output departs."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from ...export.proof.compare import largest_of, relative_tolerance
from .calls import Call
from .differences import Difference, difference_of

Pair = tuple[Call, Call]


@dataclasses.dataclass(frozen=True)
class Found:
    """Where two runs depart.

    Attributes:
        pair: the calls whose inputs agree and whose outputs depart; the whole models if their inputs depart.
        inside: the first call directly inside whose inputs depart already; ``None`` if only the output departs.
        inputs, output: the differences of the pair; ``inputs`` is ``None`` if there are no inputs to compare.
    """

    pair: Pair
    inside: Pair | None
    inputs: Difference | None
    output: Difference


class Judge:
    """Compares the calls of two runs.

    Args:
        pairs: in the order in which the calls of the first run ended, the whole run last.
        channels: the axis of an array of ``b`` that may have its channels, and that of ``a``; ``None`` if both runs are
            of libraries with one layout, in which classes with the same name also take the same arguments.
        tolerance: relative to the largest value; ``None`` means by dtype: then a call may depart by the roundings of
            the narrowest dtype that both runs have used so far.
    """

    def __init__(
        self, pairs: tuple[Pair, ...], *, channels: tuple[int, int] | None = None, tolerance: float | None = None
    ) -> None:
        self.pairs = pairs
        self.channels = channels
        self.tolerance = tolerance
        self.tolerances: dict[Call, float] = {}
        widest = 0.0
        for a, b in pairs:
            both = [_roundings(list(call.outputs.values())) for call in (a, b)]
            given = [_roundings(list(call.inputs.values())) for call in (a, b)]
            widest = max(widest, min(both), min(given))
            self.tolerances[a] = widest if tolerance is None else tolerance
        self.inputs = functools.cache(self._inputs)
        self.output = functools.cache(self._output)

    def first(self) -> Found | None:
        """The first departure, or ``None`` if the results of the two models agree."""
        whole = self.pairs[-1]
        if self.output(whole).is_agreement:
            return None
        # Something departs. A departure that grows along the way may begin below the tolerance; it begins with a jump:
        # the inputs of that call agree much better than its output.
        small = None if self.tolerance is not None else self._located(1 / 8)
        if small is not None and (small.inputs is None or small.output.excess >= 8 * small.inputs.excess):
            return small
        return self._located(1)

    def _located(self, part: float) -> Found:
        """The first departure by a fraction of the tolerance."""
        whole, around = self.pairs[-1], self._enclosing()
        for pair in self.pairs:
            if self.output(pair).is_within(part):
                continue
            owners = around[pair[0]]
            # A call whose output agrees computes the same result in a different way; departures inside do not count.
            if any(self.output(owner).is_within(part) for owner in owners):
                continue
            inside = None
            for each in (pair, *owners):
                inputs = self.inputs(each)
                if inputs is None or inputs.is_within(part):
                    return Found(each, inside, inputs, self.output(each))
                inside = each
            return Found(whole, None, self.inputs(whole), self.output(whole))
        raise AssertionError("this is a bug in plait: the outputs depart, and no call does")

    def _enclosing(self) -> dict[Call, list[Pair]]:
        """The pairs around each, innermost first."""
        around: dict[Call, list[Pair]] = {}
        open_pairs: list[Pair] = []
        for pair in reversed(self.pairs):  # owners end after what they own
            while open_pairs and not open_pairs[-1][0].encloses(pair[0]):
                open_pairs.pop()
            around[pair[0]] = open_pairs[::-1]
            open_pairs.append(pair)
        return around

    def _output(self, pair: Pair) -> Difference:
        a, b = pair
        if a.outputs.keys() == b.outputs.keys():
            arrays = [(array, b.outputs[name]) for name, array in a.outputs.items()]
        elif self.channels is None or (_has_keys(a) and _has_keys(b)):
            return Difference(np.inf, 0.0, 0.0, names=(tuple(a.outputs), tuple(b.outputs)))
        else:  # a layer of torch may return more, such as the state of an LSTM
            arrays = list(zip(a.outputs.values(), b.outputs.values(), strict=False))
        smallest = max((largest_of(array) for call in pair for array in call.inputs.values()), default=0.0)
        found = [difference_of(x, y, self.tolerances[a], smallest, self.channels) for x, y in arrays]
        return max(found, key=lambda each: (each.shapes is not None, each.excess))

    def _inputs(self, pair: Pair) -> Difference | None:
        a, b = pair
        pairs = self.paired_inputs(pair)
        if self._takes_the_same(pair):
            if pairs is None:
                return Difference(np.inf, 0.0, 0.0, shapes=_shapes(pair))
            if any(b.statics.get(name, value) != value for name, value in a.statics.items()):
                return Difference(np.inf, 0.0, 0.0)
        found = [difference_of(x, y, self.tolerances[a], channels=self.channels) for x, y in pairs or ()]
        return max(found, key=lambda each: (each.shapes is not None, each.excess), default=None)

    def _takes_the_same(self, pair: Pair) -> bool:
        return self.channels is None and pair[0].kind == pair[1].kind and bool(pair[0].path)

    def paired_inputs(self, pair: Pair) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """The inputs that correspond; ``None`` if one of two calls of the same class was given more than the other."""
        a, b = pair
        ours, theirs = list(a.inputs.values()), list(b.inputs.values())
        if self._takes_the_same(pair):
            return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else None
        pairs = []
        for array in ours:
            at = next((i for i, other in enumerate(theirs) if _may_be(array, other)), None)
            if at is not None:
                pairs.append((array, theirs.pop(at)))
        return pairs


def _roundings(arrays: list[np.ndarray]) -> float:
    return max((relative_tolerance(array.dtype) for array in arrays), default=0.0)


def _has_keys(call: Call) -> bool:
    """Whether the outputs have names, and not only indices."""
    return not any(name[:1].isdecimal() for name in call.outputs) and "" not in call.outputs


def _may_be(array: np.ndarray, other: np.ndarray) -> bool:
    return array.size == other.size and _number(array) == _number(other)


def _number(array: np.ndarray) -> str:
    return {"b": "bool", "i": "integer", "u": "integer"}.get(array.dtype.kind, "real")


def _shapes(pair: Pair) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a, b = (tuple(sorted(array.size for array in call.inputs.values())) for call in pair)
    return a, b
