"""Axis names of variables, and their updates when a transform adds or removes an axis.

The names are in the variable's ``out_sharding``, one for each axis of its array. ``vmap`` and ``scan`` call
``drop_axis`` and ``put_axis``, so that names and rank agree inside and outside; ``add_axis`` and ``remove_axis`` do the
same for a whole tree by hand. (rules V37, V40; ask 8)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from jax.sharding import NamedSharding, PartitionSpec

from ...errors import AxisNameMismatchError
from ...typing import Value
from ..variables.variables import Variable

PARTITION_NAME = "partition_name"
_LAYOUT = "out_sharding"


def put_axis(
    variable: Variable[Value], index: int, metadata: Mapping[str, object], dropped: Mapping[str, object] | None = None
) -> None:
    """Insert an axis into one variable's names.

    Args:
        metadata: as in ``add_axis``; without ``PARTITION_NAME``, the axis gets the names in ``dropped``, or ``None``,
            and no hook is called.
        dropped: the result of ``drop_axis`` for this variable; ``None`` if it did not have this axis before.
    """
    names = metadata if PARTITION_NAME in metadata else dropped or {}
    for key, old in _named_axes(variable, metadata):
        entry = PARTITION_NAME if key == _LAYOUT else key
        value = names.get(entry)
        place = index if index >= 0 else index + len(old) + 1
        ends_before = place > len(old) or (place == len(old) and dropped is not None and entry not in names)
        if value is None and ends_before:
            continue  # axes beyond the names are None anyway
        entries = [*old, *[None] * (place - len(old))]
        entries.insert(place, value)
        _set_names(variable, key, entries)
    if PARTITION_NAME in metadata:
        variable.add_axis(index, metadata[PARTITION_NAME])


def drop_axis(variable: Variable[Value], index: int, metadata: Mapping[str, object]) -> dict[str, object]:
    """Remove an axis from one variable's names; returns the removed names, for ``put_axis``.

    Raises:
        AxisNameMismatchError: ``metadata`` names the axis, but the variable has a different name there.
    """
    check_removable(variable, index, metadata)
    dropped = {}
    for key, old in _named_axes(variable, metadata):
        place = index if index >= 0 else index + len(old)
        if 0 <= place < len(old):
            entries = list(old)
            dropped[PARTITION_NAME if key == _LAYOUT else key] = entries.pop(place)
            _set_names(variable, key, entries)
    if PARTITION_NAME in metadata:
        variable.remove_axis(index, metadata[PARTITION_NAME])
    return dropped


def has_axis_metadata(variable: Variable[Value], metadata: Mapping[str, object]) -> bool:
    """Whether adding or removing an axis affects this variable."""
    own = variable._cell.metadata
    if own.get(_LAYOUT) is not None:
        return True
    if PARTITION_NAME not in metadata:
        return False
    kind = type(variable)
    overridden = kind.add_axis is not Variable.add_axis or kind.remove_axis is not Variable.remove_axis
    return bool(
        overridden or own.get("on_add_axis") or own.get("on_remove_axis") or any(key in own for key in metadata)
    )


def _named_axes(variable: Variable[Value], metadata: Mapping[str, object]) -> list[tuple[str, Sequence[Hashable]]]:
    """The entries of a variable's metadata that hold one name for each axis, as (key, names)."""
    own = variable._cell.metadata
    found = []
    for key in (_LAYOUT, *(key for key in metadata if key not in (PARTITION_NAME, _LAYOUT))):
        names = own.get(key)
        if isinstance(names, NamedSharding):
            names = names.spec
        if isinstance(names, (tuple, PartitionSpec)):
            found.append((key, tuple(names)))
    return found


def _set_names(variable: Variable[Value], key: str, entries: list[Hashable]) -> None:
    old = variable._cell.metadata[key]
    new: Hashable = tuple(entries)
    if isinstance(old, PartitionSpec):
        new = PartitionSpec(*entries)
    elif isinstance(old, NamedSharding):
        new = NamedSharding(old.mesh, PartitionSpec(*entries))
    variable.set_metadata(**{key: new})


def check_removable(variable: Variable[Value], index: int, metadata: Mapping[str, object]) -> None:
    if PARTITION_NAME not in metadata:
        return
    for key, names in _named_axes(variable, metadata):
        expected = metadata[PARTITION_NAME if key == _LAYOUT else key]
        place = index if index >= 0 else index + len(names)
        found = names[place] if 0 <= place < len(names) else None
        missing = not 0 <= place < len(names) and expected is not None
        if found != expected or missing:
            raise AxisNameMismatchError(
                "the axis to remove has a different name",
                at=f"axis {index} of a {type(variable).__name__}, whose {key} is {names}",
                found="an axis without a name" if missing else f"{found!r}",
                expected=f"{expected!r}",
                do=f"use the name that the variable has: {{plait.PARTITION_NAME: {found!r}}}",
            )
