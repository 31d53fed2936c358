"""The parameters of a call's module, with plait's names and plait's order of axes."""

from __future__ import annotations

import numpy as np

from .calls import Call, Parameters
from .names import family

_TORCH_NAMES = {"running_mean": "mean", "running_var": "var", "in_proj_bias": "bias", "in_proj_weight": "kernel"}
_OTHER_NAMES = {"w": "weight", "b": "bias", "g": "scale", "gamma": "scale", "beta": "bias", "table": "embedding"}


def parameters_of(library: str, call: Call, own: Parameters) -> dict[str, np.ndarray]:
    """The module's own arrays by role: ``kernel``, ``bias``, ``scale``, ``embedding``, ``mean``, ``var``, and others.

    Args:
        library: the library of the module.
        call: a call of the module.
        own: its arrays under their own names.
    """
    what = family(call.kind)
    found: dict[str, np.ndarray] = {}
    for name, array in own.items():
        role = (_TORCH_NAMES if library == "torch" else {}).get(name, _OTHER_NAMES.get(name, name))
        if role == "weight":
            role = "embedding" if what == "embed" else "kernel" if array.ndim > 1 else "scale"
        if role == "num_batches_tracked":
            continue
        if library == "torch" and role == "kernel":
            array = _transposed(array, what)
        found[role] = array
    return found


_OVER_CHANNELS = ("conv", "convtranspose", "batchnorm", "groupnorm")


def _transposed(weight: np.ndarray, what: str) -> np.ndarray:
    if weight.ndim == 2:
        return weight.T
    if what == "convtranspose":  # (in, out, *window)
        return np.moveaxis(weight, (0, 1), (-2, -1))
    return np.moveaxis(weight, (0, 1), (-1, -2))  # (out, in, *window)


def channels_last(library: str, call: Call, array: np.ndarray) -> np.ndarray:
    """An activation of a convolution or of a norm over channels, with channels last."""
    if library == "torch" and array.ndim >= 3 and family(call.kind) in _OVER_CHANNELS:
        return np.moveaxis(array, 1, -1)
    return array
