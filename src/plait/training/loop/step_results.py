"""What steps and evaluations return: numbers by name. A loss that is not finite ends the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ...core.variables.cells import is_gone
from ...errors import ArgumentError, ArgumentTypeError, DonatedArrayError, NonFiniteError
from ...inspect.observe.nonfinite import find_nonfinite
from ...util.dtypes import is_number_dtype
from ...util.words import first_few


def is_there(returned: Any) -> bool:
    """Whether the devices have computed it."""
    leaves: list[Any] = jax.tree.leaves(returned)
    return all(is_gone(leaf) or leaf.is_ready() for leaf in leaves if hasattr(leaf, "is_ready"))


def numbers_of(returned: Any) -> dict[str, float]:
    """Scalars by name, from the result of a step or an evaluation."""
    if returned is None:
        return {}
    named = returned if isinstance(returned, Mapping) else {"loss": returned}
    found = {}
    for name, value in named.items():
        if is_gone(value):
            raise DonatedArrayError(
                "a step returned an array that it, or a later step, has donated",
                at=str(name),
                found="a deleted array, which may be part of the model",
                expected="a number that is still there when it is logged, up to two steps later",
                do="return a copy: {'scale': jnp.copy(model.scale[...])}",
            )
        is_scalar = isinstance(value, int | float) or (hasattr(value, "dtype") and not np.ndim(value))
        if not is_scalar or not is_number_dtype(np.asarray(value).dtype):
            has_axes = hasattr(value, "dtype") and np.ndim(value)
            raise ArgumentTypeError(
                "a step, or an evaluation, must return a number, or a dict of numbers",
                at=str(name) if named is returned else "the result",
                found=f"an array of shape {np.shape(value)}"
                if has_axes
                else f"a {type(value).__name__}: {value!r:.80}",
                expected="a scalar",
                do="return the loss alone, or {'loss': loss, 'accuracy': accuracy}",
            )
        found[str(name)] = float(value)
    return found


def stored_number(number: float) -> float | str:
    """A number as JSON, which has no NaN or infinities: those are texts, which ``float`` reads."""
    return number if math.isfinite(number) else str(number)


def stored_numbers(numbers: Mapping[str, float]) -> dict[str, float | str]:
    """Numbers as JSON; ``restored_numbers`` gives them back."""
    return {name: stored_number(value) for name, value in numbers.items()}


def restored_numbers(stored: Mapping[str, float | str]) -> dict[str, float]:
    """What ``stored_numbers`` has stored."""
    return {name: float(value) for name, value in stored.items()}


def check_metric_names(values: Mapping[str, float]) -> None:
    """Raise for a name that loggers need."""
    if "step" in values:
        raise ArgumentError(
            "a metric has the name under which loggers write the step",
            at="step",
            found=f"{values['step']!r}",
            expected="another name",
            do="rename the metric: return {'loss': loss, 'inner_step': ...}",
        )


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
