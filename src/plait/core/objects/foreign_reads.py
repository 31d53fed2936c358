"""Foreign reads: what a traced function reads of objects that belong to another trace.

A model that a function captures instead of taking as an argument becomes a constant of its program. No search can find
every way in which a function may reach a model, but a variable knows the trace that it belongs to, so the read itself
tells. While the body of a transform runs, a record is open in its thread, and each read of a variable from outside of
the body, and each walk of such an object, is noted in it. (rule U27)

A read enters every open record that it is foreign to: one inside the body of a scan inside a ``jit`` may be foreign to
both, or to the scan alone.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...util.jax_versions import enclosing_traces, trace_state


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


def note_foreign_read(thing: Any, trace: Any) -> None:
    """Note a cell or a node of a trace that is not the current one; one without a trace is plait's own."""
    records = _open.records
    if not records or trace is None:
        return
    depths = {id(each): depth for depth, each in enumerate(enclosing_traces())}
    depth = depths.get(id(trace), len(depths))
    for record in records:
        if depth > depths.get(id(record.trace), -1):
            record.note(thing)


def note_foreign_reads(cells: Iterable[Any]) -> None:
    """Note those of some cells that belong to another trace."""
    if _open.records:
        here = trace_state.value
        for cell in cells:
            trace = getattr(cell, "trace", here)  # an array attribute is no cell
            if trace is not here:
                note_foreign_read(cell, trace)
