"""Cells: the contents of variables, the only part of them that calls of transforms store; reading and writing raw
values."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ArgumentError, DonatedArrayError, PlaitError
from ...util.jax_versions import ArrayImpl, KeyArray, is_mutable_array
from .clock import Stamp
from .statics import HashableMapping

REQUIRED_METADATA = frozenset({"hijax", "ref", "eager_sharding"})


ARRAYS = (jax.Array, np.ndarray)
_DELETABLE = (ArrayImpl, KeyArray)


SCALARS = (bool, int, float, complex)


# The metadata of variables without metadata: one dict for all of them, replaced (never edited) when one changes.
PLAIN_METADATA: dict[str, Any] = {"hijax": False, "ref": False, "eager_sharding": True}


PLAIN_METADATA_KEY: HashableMapping[str, Any] = HashableMapping(PLAIN_METADATA)


# Consumes an iterator at the speed of C and discards its items.
run_through: Callable[[Iterable[Any]], None] = collections.deque[Any](maxlen=0).extend


class Cell(Stamp):
    """The contents of a variable; the only part of it that calls of transforms store.

    Attributes:
        fixed: of a subclass whose structure must not change: what makes the error, from what was found and a place.
    """

    __slots__ = ("metadata", "raw", "trace")

    fixed: ClassVar[Any] = None

    # Created by the million, so Python runs no constructor: the code that creates a cell sets all its slots, with
    # version.
    __init__ = object.__init__

    @property
    def stored(self) -> Cell:
        """The cell that stores the value: this one, unless it is a part of another."""
        return self


def metadata_key(cell: Cell) -> HashableMapping[str, Any]:
    """The metadata of a cell as a static value."""
    metadata = cell.metadata
    return PLAIN_METADATA_KEY if metadata is PLAIN_METADATA else HashableMapping(metadata)


def dict_of(metadata: HashableMapping[str, Any]) -> dict[str, Any]:
    """The metadata dict for a new variable; for default metadata, the shared dict."""
    return PLAIN_METADATA if metadata is PLAIN_METADATA_KEY else dict(metadata)


class StoredKey(NamedTuple):
    """A typed random key in a pickle; JAX cannot pickle them itself."""

    data: np.ndarray
    impl: str


def storable(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return StoredKey(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return leaf


def has_ref(cell: Cell) -> bool:
    """Whether the value is stored in a JAX reference."""
    return cell.metadata["ref"] and is_mutable_array(cell.raw)


def is_gone(value: Any) -> bool:
    """Whether a value is an array whose buffer was donated to an earlier call."""
    return type(value) in _DELETABLE and value.is_deleted()


def is_unusable(value: Any) -> bool:
    """Whether a value is an array whose buffer was donated, or a shape without values."""
    kind = type(value)  # and not ``is_gone``, to save a call per argument of a layer
    return kind is jax.ShapeDtypeStruct or (kind in _DELETABLE and value.is_deleted())


def unusable(value: Any, at: str | None) -> PlaitError:
    """The error for such a value; ``at`` names the variables that hold it."""
    if type(value) is jax.ShapeDtypeStruct:
        return ArgumentError(
            "a variable has a shape, but no values",
            at=at,
            found=f"a ShapeDtypeStruct, {value.dtype}{list(value.shape)}, as plait.eval_shape makes it",
            expected="an array",
            do="give it values, as by plait.checkpoint.restore(path, model), or make the model without eval_shape",
        )
    return DonatedArrayError(
        "Array has been deleted: the buffer of a variable was donated to an earlier call",
        at=at,
        found="a deleted array",
        expected="an array",
        do="use the object that the donating call updated, or donate plait.clone(model, arrays=True)",
    )


def read(raw: Any) -> Any:
    """The value in a reference, or the value itself."""
    return raw[...] if is_mutable_array(raw) else raw


def fitting(value: Any, metadata: dict[str, Any]) -> Any:
    """A value to store: in a new reference with ``ref=True``, otherwise unchanged."""
    value = read(value)
    return jax.new_ref(jnp.asarray(value)) if metadata["ref"] and isinstance(value, (*ARRAYS, *SCALARS)) else value


_NO_CONTAINERS = (*SCALARS, str, np.generic)


def copy_containers(value: Any) -> Any:
    if value is None or isinstance(value, _NO_CONTAINERS):
        return value
    return jax.tree.map(lambda leaf: leaf, value)


def store_part(cell: Cell, index: Any, value: Any) -> None:
    raw = cell.raw
    if isinstance(raw, jax.Array):
        same = (
            index is ...
            and isinstance(value, jax.Array)
            and value.shape == raw.shape
            and value.dtype == raw.dtype
            and getattr(value, "sharding", None) == getattr(raw, "sharding", None)
        )
        cell.raw = value if same else raw.at[index].set(_cast(value, raw.dtype))
    elif index is ... and not isinstance(raw, np.ndarray):
        cell.raw = value if isinstance(value, ARRAYS) else copy_containers(value)
    else:
        # Copied, since detached state leaves and clones hold the same NumPy array or container.
        copied = raw.copy() if isinstance(raw, np.ndarray) else copy_containers(raw)
        copied[index] = value
        cell.raw = copied


def _cast(value: Any, dtype: Any) -> Any:
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
    return value if value.dtype == dtype else jnp.asarray(value).astype(dtype)
