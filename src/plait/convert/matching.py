"""Matches a model's variables with the arrays of a checkpoint, one piece of a layer at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..checkpoint.leaf_descriptions import abstract_key_data, describe, from_array, is_key, on_devices
from ..checkpoint.stored import StoredArray, placed
from ..core.variables.variables import Variable
from ..util.paths import Path, describe_path
from ..util.words import describe_type
from .counterparts import Counterpart, is_array
from .layouts import DoesNotFit
from .report import Converted, Mismatched, Missing

_NUMBERS = (np.bool_, np.integer, np.floating, np.complexfloating)
BOXED = ".value"  # a boxed value is stored one level below its name, as ``kernel.value``


class Matching:
    """The results so far.

    Args:
        arrays: the arrays of the checkpoint, by name.
        found: the names after the name map, each with its original names in the checkpoint.
        dtype: dtype of the floating-point variables; ``None`` keeps that of the checkpoint.
    """

    def __init__(self, arrays: dict[str, StoredArray], found: dict[str, list[str]], dtype: Any) -> None:
        self.arrays = arrays
        self.found = found
        self.dtype = dtype
        self.used: set[str] = set()
        self.leaves: dict[Path, Any] = {}
        self.converted: list[Converted] = []
        self.missing: list[Missing] = []
        self.mismatched: list[Mismatched] = []

    def add(self, counterpart: Counterpart) -> None:
        """Look up the values of some variables, and record them or their mismatch."""
        paths = tuple(map(describe_path, counterpart.paths))
        absent = tuple(name for name in counterpart.names if name not in self.found)
        self.used.update(counterpart.names)
        if absent:
            if not counterpart.is_again or len(absent) < len(counterpart.names):
                self.missing.append(Missing(paths, counterpart.collection, counterpart.module, absent))
            return
        sources = tuple(source for name in counterpart.names for source in self.found[name])
        try:
            misfit = self._misfit(counterpart)
            if misfit is None:
                stored = map(self._read, counterpart.names)
                misfit = self._keep(counterpart, counterpart.piece.to_ours(*stored))
        except DoesNotFit as error:
            misfit = (str(error), "values that the layer can store")
        if misfit is not None:
            self.mismatched.append(Mismatched(paths, counterpart.collection, counterpart.module, sources, *misfit))
        elif not counterpart.is_again:
            note = self._note(counterpart)
            is_renamed = tuple(source.removesuffix(BOXED) for source in sources) != counterpart.names != sources
            self.converted.append(Converted(paths, counterpart.collection, sources, is_renamed, note))

    def _misfit(self, counterpart: Counterpart) -> tuple[str, str] | None:
        """The found and the expected shape or kind of number, if they differ."""
        for variable in counterpart.variables:
            if not is_array(variable.get_raw_value()):
                held = describe_type(variable.get_raw_value())
                return ", ".join(counterpart.names), f"a variable that holds one array, not {held},"
        ours = _number_type(_dtype_of(counterpart.variables[0]))
        own_shapes = [np.shape(_data_of(variable)) for variable in counterpart.variables]
        shapes = counterpart.piece.their_shapes(own_shapes)
        for name, shape in zip(counterpart.names, shapes, strict=True):
            for source in self.found[name]:
                if self.arrays[source].shape != shape:
                    return f"{source} of shape {self.arrays[source].shape}", f"shape {shape}"
                if ours is not _number_type(self.arrays[source].dtype):
                    return f"{source} of dtype {self.arrays[source].dtype}", f"a dtype of {ours.__name__} numbers"
        return None

    def _read(self, name: str) -> np.ndarray:
        """The values under a name; if several names of the source became one, their values must be equal."""
        first, *others = self.found[name]
        values = self.arrays[first].view()
        for other in others:
            if not np.array_equal(values, self.arrays[other].view()):
                raise DoesNotFit(f"{first} and {other}, which differ")
        return values

    def _keep(self, counterpart: Counterpart, values: Sequence[np.ndarray]) -> tuple[str, str] | None:
        for path, variable, value in zip(counterpart.paths, counterpart.variables, values, strict=True):
            value = self._placed(value, variable, describe_path(path))
            if path in self.leaves:
                if not np.array_equal(_numbers(self.leaves[path].get_raw_value()), _numbers(value)):
                    names = ", ".join(counterpart.names)
                    return (
                        f"{names} with values that differ from those of {describe_path(path)}",
                        "equal values, since the variable is shared",
                    )
            else:
                self.leaves[path] = variable.copy(value)
        return None

    def _placed(self, value: np.ndarray, variable: Variable[Any], path: str) -> jax.Array:
        """The value as a JAX array with the sharding of the variable's current value."""
        is_real = jnp.issubdtype(value.dtype, np.floating)
        dtype = self.dtype if self.dtype is not None and is_real else jax.dtypes.canonicalize_dtype(value.dtype)
        like = on_devices(variable.get_raw_value(), path)
        sharding = getattr(like, "sharding", None) if getattr(like, "committed", True) else None
        if is_key(like):
            return jax.device_put(from_array(np.asarray(value, dtype), describe(like, "key"), like), sharding)
        return placed(value, sharding, dtype)

    def _note(self, counterpart: Counterpart) -> str:
        before = {str(self.arrays[source].dtype) for name in counterpart.names for source in self.found[name]}
        after = {str(_dtype_of(self.leaves[path])) for path in counterpart.paths}
        return "" if before == after else f"{', '.join(sorted(before))} to {', '.join(sorted(after))}"


def _number_type(dtype: Any) -> type:
    return next((each for each in _NUMBERS if jnp.issubdtype(dtype, each)), np.generic)


def _numbers(value: Any) -> Any:
    return jax.random.key_data(value) if is_key(value) else value


def _data_of(variable: Variable[Any]) -> Any:
    """The value of a variable; of a key, the shape of its data."""
    value = variable.get_raw_value()
    return abstract_key_data(value) if is_key(value) else value


def _dtype_of(variable: Variable[Any]) -> Any:
    value = _data_of(variable)
    return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
