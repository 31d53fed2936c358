"""The positions of data iterators: copies of them, and how they are saved, so that a restored run continues there.

An iterator has a position if it has ``get_state()`` and ``set_state(state)``: Grain's iterators do, and
``plait.training.Batches`` wraps any other source. Its state is plain data or bytes. In a multi-process run each process
has its own iterator and its own file:

    positions/0-of-2.json    {"data": {"plain": {"epoch": 3, "index": 17}}}
    positions/1-of-2.json    {"data": {"bytes": "eyJ..."}}

A run that resumes with a different number of processes gets its positions only if they were equal in all processes.
"""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import jax
import numpy as np

from ..core.nodes.nodes import Kind, kind_of
from ..errors import ArgumentTypeError, CheckpointError
from ..util.files import read_file
from ..util.schemas import MOST_JSON, Either, SchemaError, fits, parse_json

POSITIONS = "positions"


class Positioned(Protocol):
    """An iterator that can return and set its position."""

    def get_state(self) -> Any:
        """The position: bytes, or numbers, strings, lists and dicts of them."""
        ...

    def set_state(self, state: Any, /) -> Any:
        """Move to a position that ``get_state`` returned."""
        ...


def has_position(value: Any) -> TypeGuard[Positioned]:
    """Whether a value is an iterator with a position, and not part of a model."""
    return (
        callable(getattr(value, "get_state", None))
        and callable(getattr(value, "set_state", None))
        and kind_of(value) is Kind.STATIC
    )


class KeptPosition:
    """A position to save, while the iterator itself goes on."""

    def __init__(self, position: Any) -> None:
        self._position = position

    def get_state(self) -> Any:
        """The position."""
        return self._position

    def set_state(self, position: Any) -> None:
        """Another position."""
        self._position = position


def positions_of(data: Any) -> Callable[[], Any]:
    """A function that returns the position of an iterator; ``None`` if it has none."""
    if not has_position(data):
        return lambda: None
    get_state = data.get_state
    return lambda: copied(get_state())  # it may be what the iterator itself counts with


def copied(position: Any) -> Any:
    """A copy of a position, which is bytes, or what JSON can say."""
    if isinstance(position, dict):
        copy = position.copy()
        for name, part in copy.items():
            if type(part) is not int:
                copy[name] = copied(part)
        return copy
    if isinstance(position, list):
        return [copied(part) for part in position]
    if type(position) is tuple:
        return tuple(map(copied, position))
    if isinstance(position, np.ndarray):  # a number that is counted in place
        return position.copy()
    return bytes(position) if isinstance(position, bytearray) else position


def is_same_position(first: Any, second: Any) -> bool:
    """Whether two positions are equal; they may contain NumPy arrays."""
    leaves, structure = jax.tree.flatten(first)
    others, other = jax.tree.flatten(second)
    return structure == other and all(map(np.array_equal, leaves, others))


def separated(node: Any) -> tuple[Any, dict[str, Positioned]]:
    """Split a node into the part with leaves and the iterators, by name."""
    if type(node) is not dict:
        return node, {}
    iterators = {str(name): value for name, value in node.items() if has_position(value)}
    return (
        {name: value for name, value in node.items() if str(name) not in iterators} if iterators else node
    ), iterators


def encoded(iterators: Mapping[str, Positioned]) -> dict[str, Any]:
    """The positions in their stored form.

    Raises:
        ArgumentTypeError: an iterator's state cannot be stored.
    """
    return {name: _encode(iterator.get_state(), name) for name, iterator in iterators.items()}


def _encode(state: Any, name: str) -> dict[str, Any]:
    if isinstance(state, (bytes, bytearray)):
        return {"bytes": base64.b64encode(state).decode()}
    try:
        stored = json.loads(json.dumps(state, allow_nan=False, default=operator.index))
        if stored == state and fits(stored, Any):
            return {"plain": stored}
    except (TypeError, ValueError, RecursionError):
        pass
    raise ArgumentTypeError(
        "a checkpoint cannot store the position of this iterator",
        at=name,
        found=f"get_state() returned {state!r:.80} of type {type(state).__name__}",
        expected="bytes, or numbers, strings, and lists and dicts of them with strings as keys",
        do="give the iterator a get_state that returns such data, or save the position yourself in extra={...}",
    )


def write_positions(draft: Path, positions: Mapping[str, Any]) -> None:
    """Store the positions of this process."""
    folder = draft / POSITIONS
    folder.mkdir(exist_ok=True)
    (folder / _name(jax.process_index(), jax.process_count())).write_text(json.dumps(positions))


def read_positions(path: Path, wanted: Mapping[str, Positioned], *, partial: bool) -> dict[str, Any]:
    """The positions of these iterators in this process; the iterators do not move.

    Raises:
        CheckpointError: the checkpoint has positions of other iterators, or different positions from a different number
            of processes.
    """
    folder = path / POSITIONS
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    own = folder / _name(jax.process_index(), jax.process_count())
    stored = [_read(file) for file in ([own] if own in files else files)]
    names = set(stored[0]) if stored else set()
    missing, extra = sorted(wanted.keys() - names), [] if partial else sorted(names - wanted.keys())
    if missing or extra:
        raise CheckpointError(
            "the checkpoint does not fit: it has positions of other iterators",
            at=f"{', '.join((*missing, *extra))} (in {path})",
            found=f"positions of {', '.join(sorted(names)) or 'no iterator'}",
            expected=f"of {', '.join(sorted(wanted)) or 'none'}",
            do="pass the iterators to restore under the same names as to save"
            + ("; partial=True skips those that are not passed" if extra and not missing else ""),
        )
    for name in wanted:
        if any(each.get(name) != stored[0][name] for each in stored):
            raise CheckpointError(
                "the saved positions differ between processes, and the number of processes has changed",
                at=f"{name} (in {path})",
                found=f"positions of {len(stored)} processes",
                expected=f"of {jax.process_count()}, or the same in all",
                do="restore without the iterator (partial=True) and start the epoch again, or use data that all "
                "processes read in one order",
            )
    return {name: _decode(stored[0][name]) for name in wanted}


def _is_base64(value: Any) -> bool:
    """Bytes in base64."""
    try:
        base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return False
    return True


_POSITIONS = {str: Either({"bytes": _is_base64}, {"plain": Any})}


def _read(file: Path) -> dict[str, Any]:
    try:
        return parse_json(read_file(file, MOST_JSON), _POSITIONS)
    except (SchemaError, OSError) as error:
        raise CheckpointError(
            "the positions of the data iterators cannot be read",
            at=str(file),
            found=str(error),
            expected="the file that save wrote",
            do="restore without the iterators (partial=True), or from another checkpoint",
        ) from error


def _decode(stored: Mapping[str, Any]) -> Any:
    return base64.b64decode(stored["bytes"]) if "bytes" in stored else stored["plain"]


def _name(index: int, count: int) -> str:
    return f"{index}-of-{count}.json"
