"""What a model's modules cost for given inputs: the one place where the page's costs come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..paths import Path
from .outline import Call


def costs_of(calls: Mapping[Path, Sequence[Call]]) -> dict[Path, dict[str, float]]:
    """The costs of each module by itself, by name; the page adds up those below a module."""
    return {
        path: {"Bytes of outputs": float(sum(call.times * call.output_bytes for call in made))}
        for path, made in calls.items()
    }
