"""Folders of published models with what they give, drawn by ``tests/models/oracle``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import plait

SAMPLE = Path(__file__).parents[1] / "data" / "models"
DRAWN = os.environ.get("PLAIT_MODELS")
"""A folder that ``python -m tests.models.oracle draw`` wrote, for all cases in place of the stored ones."""


def folders(pattern: str = "*") -> list[Any]:
    import pytest

    found = sorted(path.parent for path in Path(DRAWN or SAMPLE).glob(f"{pattern}/case.json"))
    return [pytest.param(folder, id=folder.name) for folder in found]


def edited(folder: Path) -> list[str]:
    """The keys of the config that were edited."""
    return json.loads((folder / "case.json").read_text("utf-8"))["edit"]


class Call(NamedTuple):
    """A call of a model, and what it has to give; ``counts`` says at which positions."""

    name: str
    inputs: np.ndarray
    options: dict[str, np.ndarray]
    expected: np.ndarray
    pooled: np.ndarray | None
    counts: np.ndarray | None


def calls(expected: Mapping[str, np.ndarray]) -> Iterator[Call]:
    if "logits" in expected:
        yield Call("logits", expected["tokens"], {}, expected["logits"], None, None)
    for name in sorted({key.split(".")[0] for key in expected if "." in key}):
        own = {key.split(".")[1]: expected[key] for key in expected if key.startswith(f"{name}.")}
        options = {key: own[key] for key in ("mask", "segments") if key in own}
        inputs = own["tokens" if "tokens" in own else "images"]
        counts = own.get("mask") if "tokens" in own else None
        yield Call(name, inputs, options, own["hidden"], own.get("pooled"), counts)


@plait.jit
def _results(model: Any, inputs: Any, options: Any, like: Any) -> Any:
    """The result, and what is pooled if something is expected there."""
    return model(inputs, **options), None if like is None else model(inputs, **options, pooled=True)


def outcome(model: Any, expected: Mapping[str, np.ndarray]) -> np.ndarray:
    """What altered weights should move, as the oracle puts it together."""
    found = []
    for call in calls(expected):
        if call.name in ("logits", "plain", "typed"):
            pooled = call.pooled if call.name == "plain" else None
            found += jax.device_get(_results(model, call.inputs, call.options, pooled))
    return np.concatenate([each.ravel() for each in found if each is not None])


def difference(model: Any, call: Call) -> float:
    """The largest difference, beside the largest number that is expected."""
    found, pooled = jax.device_get(_results(model, call.inputs, call.options, call.pooled))
    assert found.shape == call.expected.shape
    assert found.dtype == np.float32
    counts = slice(None) if call.counts is None else call.counts
    pairs = [(found[counts], call.expected[counts])] + ([] if call.pooled is None else [(pooled, call.pooled)])
    return max(float(np.abs(ours - theirs).max() / np.abs(theirs).max()) for ours, theirs in pairs)
