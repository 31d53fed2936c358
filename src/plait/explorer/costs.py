"""What a model's modules cost for given inputs, by path: the one place where the page's costs come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..paths import Path


def costs_of(model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> dict[Path, Mapping[str, float]]:
    """The costs of each module, by name."""
    return {}
