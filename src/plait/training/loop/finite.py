"""A loss or a parameter that is NaN or infinite ends a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...errors import NonFiniteError
from ...inspect.observe.nonfinite import find_nonfinite
from ...util.words import first_few


def check_loss(step: int, values: Mapping[str, float], objects: Any) -> None:
    """Raise if the loss is not finite: the metric ``loss``, or those with this word in their names."""
    losses = ["loss"] if "loss" in values else [name for name in values if "loss" in name]
    odd = [name for name in losses if not math.isfinite(values[name])]
    if odd:
        raise not_finite(f"the {odd[0]} is {values[odd[0]]} at step {step}", objects)


def not_finite(message: str, objects: Any) -> NonFiniteError:
    """The error, with the variables of the objects that are not finite."""
    places = list(find_nonfinite(objects))
    return NonFiniteError(
        message,
        at=first_few(places, 5) or "the loss",
        found="NaN or infinities in these variables" if places else "finite variables",
        expected="finite numbers",
        do="resume from the newest checkpoint in a new process, under plait.debug_nans(), which names the "
        "layer that made the first one; a smaller learning rate or gradient clipping "
        "(optax.clip_by_global_norm) may help",
    )
