"""The way back: the weights of a plait model under the names and in the layout of PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..core.objects.variables import Variable
from ..errors import ArgumentError
from ..paths import Path, describe_path
from ..words import describe_type
from . import torch_layouts as torch_layouts  # fills the table of layouts
from .counterparts import check_model, counterparts, is_array
from .name_map import NameMap, Names


def to_torch(model: Any, *, names: Names = None) -> dict[str, np.ndarray]:
    """The weights of a model under the names and in the layout of PyTorch: what ``load_state_dict`` takes.

    The way back from ``convert_checkpoint(..., layout="torch")``. Variables that are shared come under each of their
    names, as in a state dict.

    Args:
        model: the model, with values.
        names: a map from the names that the model gives to those that are wanted; ``None`` as a name drops it.

    Returns:
        NumPy arrays by name; ``plait.checkpoint.save_safetensors`` writes them.

    Raises:
        ArgumentError: two variables get the same name, or one does not hold an array with values.
        ArgumentTypeError: ``model`` is a state or a variable.
        DoesNotFit: a variable has other axes than its layer gives it, as in a stack made by ``vmap``; a ``ValueError``.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> {name: array.shape for name, array in plait.convert.to_torch(model, names={"": "fc"}).items()}
        {'fc.weight': (3, 2), 'fc.bias': (3,)}
    """
    check_model(model, "to_torch")
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
                    expected="one name for each",
                    do="change the map of names",
                )
            found[new] = np.array(array, order="C")  # a copy: torch wants to write into what it loads
    return found


def _values_of(variable: Variable[Any], path: Path) -> np.ndarray:
    value = variable.get_raw_value()
    if isinstance(value, jax.ShapeDtypeStruct) or not is_array(value):
        raise ArgumentError(
            "a variable does not hold one array with values",
            at=describe_path(path),
            found=describe_type(value),
            expected="an array",
            do="give the model values first, and each array a variable of its own",
        )
    return np.asarray(value)
