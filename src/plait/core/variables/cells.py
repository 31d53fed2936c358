"""Cells: the contents of variables, the only part of them that calls of transforms store.

**The structure clock** is one process-wide counter that advances with every structural change of a walked object.
Every object that a walk can enter has a ``Stamp``. Its ``version`` is 0 until a transform first walks the object. From
then on, each structural change gives it a new number and sets the clock to that number. A cached walk is valid while
the clock has not advanced; otherwise it compares the versions of its own stamps (see ``walks.py``).

Numbers are never reused, so two threads that walk or change objects at the same time cannot hide each other's change.
Caches store stamps, which reference nothing, so no cache keeps a module alive.

**Foreign reads** are what a traced function reads of objects that belong to another trace.

A model that a function captures instead of taking as an argument becomes a constant of its program. No search can find
every way in which a function may reach a model, but a variable knows the trace that it belongs to, so the read itself
tells. While the body of a transform runs, a record is open in its thread, and each read of a variable from outside of
the body, and each walk of such an object, is noted in it. (rule U27)

A read is recorded for every running body that does not own the variable: for a scan inside ``jit``, for the scan only
or for both.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ArgumentError, DonatedArrayError, PlaitError
from ...typing import Metadata, Value
from ...util.jax_versions import ArrayImpl, KeyArray, Trace, enclosing_traces, is_mutable_array, trace_state
from ...util.static_values import HashableMapping

_numbers = itertools.count(2)


class Clock:
    """The clock: ``now`` is the number of the latest structural change."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now = 1


clock = Clock()


# The version of a leaf of a state that was split from a graph, until it is walked as part of a graph.
DETACHED = -1


class Stamp:
    """The version of one object's structure; 0, or ``DETACHED``, means that no transform has walked the object."""

    __slots__ = ("version",)

    def __init__(self) -> None:
        self.version = 0


def mark_seen(stamp: Stamp) -> int:
    """Record that a walk reads the object, and return its version until then. Must be called before reading."""
    if stamp.version <= 0:
        stamp.version = next(_numbers)
    return stamp.version


def mark_changed(stamp: Stamp) -> None:
    """Record a structural change. Must be called after the change."""
    if stamp.version > 0:
        stamp.version = clock.now = next(_numbers)


class NodeInfo(Stamp):
    """plait's data about one object: its structure version, its trace, and its explicit marks."""

    __slots__ = ("marks", "trace")

    marks: dict[Any, str] | None  # by attribute name; in a List also by index
    trace: Trace
    structure_error: ClassVar[Any] = None  # as for a cell
    exempt_attributes: ClassVar[tuple[str, ...]] = ()  # may change although the structure is fixed

    def __init__(self, trace: Trace, marks: dict[Any, str] | None = None) -> None:
        self.version = 0
        self.trace = trace
        self.marks = marks

    def mark_rebuilt(self) -> None:
        """Record that plait itself changed the node: a transform rebuilt it, or a capture began or ended."""
        mark_changed(self)


class UnseenInfo(NodeInfo):
    """The shared info of many nodes created at once, used until a node is walked or gets a mark.

    Most merged models are called and dropped, and need nothing else. Its version stays 0.
    """

    __slots__ = ()


REQUIRED_METADATA = frozenset({"hijax", "ref", "eager_sharding"})


ARRAYS = (jax.Array, np.ndarray)
_DELETABLE = (ArrayImpl, KeyArray)


SCALARS = (bool, int, float, complex)


# The metadata of variables without metadata: one dict for all of them, replaced (never edited) when one changes.
PLAIN_METADATA: Metadata = {"hijax": False, "ref": False, "eager_sharding": True}


PLAIN_METADATA_KEY: HashableMapping[str, object] = HashableMapping(PLAIN_METADATA)


# Consumes an iterator at the speed of C and discards its items.
run_through: Callable[[Iterable[object]], None] = collections.deque[object](maxlen=0).extend


class Cell(Stamp):
    """The contents of a variable; the only part of it that calls of transforms store.

    Attributes:
        structure_error: a subclass with a fixed structure sets this to a function ``(found, path) -> error``.
    """

    __slots__ = ("metadata", "raw", "trace")

    structure_error: ClassVar[Any] = None

    # Created by the million, so Python runs no constructor: the code that creates a cell sets all its slots, with
    # version.
    __init__ = object.__init__

    @property
    def stored(self) -> Cell:
        """The cell that stores the value: this one, unless it is a part of another."""
        return self


def metadata_key(cell: Cell) -> HashableMapping[str, object]:
    """The metadata of a cell as a static value."""
    metadata = cell.metadata
    return PLAIN_METADATA_KEY if metadata is PLAIN_METADATA else HashableMapping(metadata)


def dict_of(metadata: HashableMapping[str, object]) -> Metadata:
    """The metadata dict for a new variable; for default metadata, the shared dict."""
    return PLAIN_METADATA if metadata is PLAIN_METADATA_KEY else dict(metadata)


class StoredKey(NamedTuple):
    """A typed random key in a pickle; JAX cannot pickle them itself."""

    data: np.ndarray
    impl: str


def as_picklable(leaf: Value) -> Value:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return StoredKey(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return leaf


def has_ref(cell: Cell) -> bool:
    """Whether the value is stored in a JAX reference."""
    return cell.metadata["ref"] and is_mutable_array(cell.raw)


def is_gone(value: Value) -> bool:
    """Whether a value is an array whose buffer was donated to an earlier call."""
    return type(value) in _DELETABLE and value.is_deleted()


def is_unusable(value: Value) -> bool:
    """Whether a value is an array whose buffer was donated, or a shape without values."""
    kind = type(value)  # and not ``is_gone``, to save a call per argument of a layer
    return kind is jax.ShapeDtypeStruct or (kind in _DELETABLE and value.is_deleted())


def unusable(value: Value, at: str | None) -> PlaitError:
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


def read(raw: Value) -> Value:
    """The value in a reference, or the value itself."""
    return raw[...] if is_mutable_array(raw) else raw


def contents_of(cell: Cell) -> Value:
    """The value of a cell: of a reference what it holds, of containers a copy."""
    return copy_containers(read(cell.raw) if cell.metadata["ref"] else cell.raw)


def as_stored(value: Value, metadata: Metadata) -> Value:
    """A value to store: in a new reference with ``ref=True``, otherwise unchanged."""
    value = read(value)
    return jax.new_ref(jnp.asarray(value)) if metadata["ref"] and isinstance(value, (*ARRAYS, *SCALARS)) else value


_NO_CONTAINERS = (*ARRAYS, *SCALARS, str, np.generic)


def copy_containers(value: Value) -> Value:
    """A value that shares no dict, list or tuple with another; an array as it is."""
    if value is None or isinstance(value, _NO_CONTAINERS):
        return value
    return jax.tree.map(lambda leaf: leaf, value)


class ForeignReads:
    """The record of one run of a body.

    Attributes:
        trace: the trace of the body.
        found: the cells that were read and the nodes that were walked, by identity; ``None`` after the run, when only
            ``on_read`` hears of a read.
    """

    __slots__ = ("found", "on_read", "trace")

    def __init__(self, on_read: Callable[[], None]) -> None:
        self.trace = trace_state.value
        self.found: dict[int, Any] | None = {}
        self.on_read = on_read

    def note(self, thing: Any) -> None:
        """Note a read."""
        if not self.found:
            self.on_read()
        if self.found is not None:
            self.found[id(thing)] = thing


class _Open(threading.local):
    """The open records of this thread, outermost first."""

    records: tuple[ForeignReads, ...] = ()


_open = _Open()


@contextlib.contextmanager
def recording_foreign_reads(on_read: Callable[[], None]) -> Iterator[dict[int, Any]]:
    """Open a record for the block.

    Args:
        on_read: called at the first foreign read, and at each that comes after the block.

    Yields:
        What was read, by identity.
    """
    before, record = _open.records, ForeignReads(on_read)
    found = record.found = {}
    _open.records = (*before, record)
    try:
        yield found
    finally:
        _open.records, record.found = before, None


def reopening() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Opens the records of now again, for a function that runs later than the body that called it, such as a derivative
    rule."""
    return functools.partial(_reopened, _open.records)


@contextlib.contextmanager
def _reopened(records: Sequence[ForeignReads]) -> Iterator[None]:
    before = _open.records
    _open.records = (*(each for each in records if each not in before), *before)
    try:
        yield
    finally:
        _open.records = before


def note_foreign_read(thing: Any) -> None:
    """Note the read of a cell or node of a trace that is not the current one; one without a trace is plait's own."""
    trace: Trace = thing.trace
    if trace is trace_state.value or trace is None:
        return
    records = _open.records
    if not records:
        return
    depths = {id(each): depth for depth, each in enumerate(enclosing_traces())}
    depth = depths.get(id(trace), len(depths))
    for record in records:
        if depth > depths.get(id(record.trace), -1):
            record.note(thing)


def note_foreign_reads(cells: Iterable[object]) -> None:
    """Note those of some cells that belong to another trace."""
    if _open.records:
        here = trace_state.value
        for cell in cells:
            if getattr(cell, "trace", here) is not here:  # an array attribute is no cell
                note_foreign_read(cell)
