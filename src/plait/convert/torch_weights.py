"""Converts the weights of a plait model to PyTorch's names and layouts."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..core.variables.variables import Variable
from ..edit.stack_conversion import as_list, has_stacks
from ..errors import ArgumentError
from ..util.paths import Path, describe_path
from ..util.words import describe_type
from . import torch_layouts as torch_layouts  # registers its layouts
from .counterparts import check_model, counterparts, is_array
from .name_map import NameMap, Names


def to_torch(model: Any, *, names: Names = None) -> dict[str, np.ndarray]:
    """The weights of a model with PyTorch's names and layouts, for ``load_state_dict``.

    The inverse of ``convert_checkpoint(..., layout="torch")``. Shared variables appear under each of their names, as
    in a state dict.

    Args:
        model: the model, with values.
        names: a map from the model's names to the names in the result; ``None`` drops a name.

    Returns:
        NumPy arrays by name; ``plait.checkpoint.save_safetensors`` writes them.

    Raises:
        ArgumentError: two variables get the same name, or one does not hold an array with values.
        ArgumentTypeError: ``model`` is a state or a variable.
        DoesNotFit: a variable has extra axes, as in modules stacked by ``vmap``; a ``ValueError``. A ``Stack`` is
            written layer by layer, like a list.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> {name: array.shape for name, array in plait.convert.to_torch(model, names={"": "fc"}).items()}
        {'fc.weight': (3, 2), 'fc.bias': (3,)}
    """
    check_model(model, "to_torch")
    model = as_list(model) if has_stacks(model) else model
    rename = NameMap(names)
    found: dict[str, np.ndarray] = {}
    there, _ = counterparts("torch", model)
    for counterpart in there:
        arrays = counterpart.piece.to_theirs(*map(_values_of, counterpart.variables, counterpart.paths))
        for name, array in zip(counterpart.names, arrays, strict=True):
            new = rename(name)
            if new is None:
                continue
            if new in found and not counterpart.is_again:
                raise ArgumentError(
                    "two variables would have the same name",
                    at=f"{', '.join(map(describe_path, counterpart.paths))} and another variable",
                    found=f"the name {new}",
                    expected="a different name for each",
                    do="change names",
                )
            found[new] = np.array(array, order="C")  # a copy, since torch needs writable arrays
    return found


def _values_of(variable: Variable[Any], path: Path) -> np.ndarray:
    value = variable.get_raw_value()
    if isinstance(value, jax.ShapeDtypeStruct) or not is_array(value):
        raise ArgumentError(
            "a variable does not hold one array with values",
            at=describe_path(path),
            found=describe_type(value),
            expected="an array",
            do="give the model values first, and each array its own variable",
        )
    return np.asarray(value)
