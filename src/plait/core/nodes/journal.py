"""The journal: what a write to existing objects replaces, so that a write that fails changes nothing.

Whatever changes objects of the caller (the write-back of a call, an update context, ``update``, ``pop``, a merge into
existing objects) notes each one here before its first change. If anything raises before the last change, be it a
refusal, an error in a callback of a registered type or Ctrl-C, everything that was noted is put back. (rule U21)

Whether a node may change is not predicted either. An object may be changed only in the JAX trace that it belongs to,
and a view of a stack has the structure of all layers. But a node that is refilled with what it held has only been
read, so ``check`` compares the nodes of other traces and of views with what was noted. (rules G64, U26, ST3)

A buffer that was donated cannot be put back. If there is one among the values of ``write_values``, they are all kept.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ...errors import ShapeError
from ...typing import Metadata, Node, Value
from ...util.jax_versions import Trace, trace_state
from ...util.sentinels import NOTHING
from ...util.words import with_article
from ..traces.guard import is_excused, known_path, raise_foreign_trace
from ..variables.cells import PLAIN_METADATA, Cell, has_ref, is_gone, mark_changed
from ..variables.variables import Variable
from .nodes import GRAPH_REGISTRY, DataElem, Kind, Static, get_node_impl, kind_of, pytree_impl, unwrapped
from .pytree import Pytree


def trace_of(item: Node, otherwise: Trace | None) -> Trace | None:
    """The trace that a variable or module belongs to; other objects belong to every trace."""
    if isinstance(item, Variable):
        return item._cell.trace
    return item._pytree__info.trace if isinstance(item, Pytree) else otherwise


class Journal:
    """Inside the block, what is noted is put back if the block raises.

    Args:
        outer: the journal of a larger write, which this one is a part of. It takes over the notes when the block ends.
    """

    __slots__ = ("_guarded", "_met", "_outer", "notes")

    def __init__(self, outer: Journal | None = None) -> None:
        self._outer = outer
        self.notes: list[tuple[Any, ...]] = []  # (function that puts something back, its arguments)
        self._met: set[int] = set()
        self._guarded: list[tuple[Pytree, dict[Hashable, object]]] = []

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            try:
                self.put_back()
            except BaseException:  # an interrupt that comes after a refusal
                self.put_back()
                raise
        elif self._outer is not None:
            self._outer.notes += self.notes

    def put_back(self) -> None:
        """Undo every note, the latest first, even if a function of a registered type raises."""
        with contextlib.ExitStack() as restores:
            for note in self.notes:
                restores.callback(*note)

    def note_cell(self, cell: Cell) -> None:
        """Note value and metadata of a variable."""
        cell = cell if type(cell) is Cell else cell.stored
        self.notes.append((put_back_cell, cell, cell.raw, cell.metadata))
        if cell.metadata is not PLAIN_METADATA and has_ref(cell):
            self.note_reference(cell.raw)

    def note_reference(self, reference: Value) -> None:
        """Note the value in a JAX reference."""
        self.note(operator.setitem, reference, ..., reference[...])

    def note(self, restore: Callable[..., object], *noted: object) -> None:
        """Note how to put something back: by calling ``restore(*noted)``."""
        self.notes.append((restore, *noted))

    def note_node(self, node: Node) -> None:
        """Note the children of a graph node or container."""
        if id(node) in self._met:
            return
        self._met.add(id(node))
        if isinstance(node, Pytree):
            info = node._pytree__info
            if info.trace is not trace_state.value or info.structure_error is not None:
                self._guarded.append((node, _identities(node)))
            elements = [*node._pytree__elements] if hasattr(type(node), "_pytree__elements") else None  # pyright: ignore[reportAttributeAccessIssue]
            self.note(_put_back_attributes, node, {**node.__dict__}, {**(info.marks or {})}, elements)
            return
        put_back = _refill if type(node) in GRAPH_REGISTRY else _put_back_entries
        children = get_node_impl(node).flatten(node)[0]  # type: ignore[union-attr]
        self.note(put_back, node, [(key, unwrapped(child)) for key, child in children])

    def write_values(self, cells: Sequence[Cell], values: Sequence[Value]) -> None:
        """Store new values in the cells of variables."""
        before = [(cell.stored, cell.stored.raw) for cell in cells]
        self.note(_put_back_values, before, cells, values)
        for cell, value in zip(cells, values, strict=True):
            cell.raw = value

    def check(self) -> None:
        """Raise if a node was changed that may not be.

        Raises:
            TraceContextError: it belongs to a different trace; everything is put back.
            GraphError: it belongs to a view of a stack; everything is put back.
        """
        for node, before in self._guarded:
            after, is_foreign = _identities(node), node._pytree__info.trace is not trace_state.value
            exempt = () if is_foreign else node._pytree__info.exempt_attributes
            keys = (key for key in {**before, **after} if key not in exempt)
            key = next((key for key in keys if before.get(key, NOTHING) != after.get(key, NOTHING)), NOTHING)
            if key is NOTHING:
                continue
            action = f"{'set' if key in after else 'delete'} the attribute {key!r} of a"
            if is_foreign:
                self.refuse(node, action)
            else:
                self.put_back()  # so that the path is found
                what = f"{action[:-2]} {with_article(type(node).__name__)}"
                raise node._pytree__info.structure_error(f"a change that would {what}", known_path(node))

    def refuse(self, owner: Node, action: str) -> None:
        """Put everything back and raise the error of ``raise_foreign_trace``, unless the owner is exempt."""
        if not is_excused(owner):
            self.put_back()  # so that the path is found
            raise_foreign_trace(trace_of(owner, None), owner, action)


def put_back_cell(cell: Cell, raw: Value, metadata: Metadata) -> None:
    cell.raw = raw
    if cell.metadata is not metadata:
        cell.metadata = metadata
        mark_changed(cell)


def _put_back_values(before: Sequence[tuple[Cell, Value]], cells: Sequence[Cell], values: Sequence[Value]) -> None:
    if any(is_gone(raw) for _, raw in before):
        for cell, value in zip(cells, values, strict=True):
            with contextlib.suppress(ShapeError):  # a view keeps its value, which is no buffer of its own
                cell.raw = value
    else:
        for cell, raw in reversed(before):
            cell.raw = raw


def _put_back_attributes(
    node: Node, attributes: dict[str, object], marks: dict[Hashable, str], elements: list[Value] | None
) -> None:
    node.__dict__.clear()
    node.__dict__.update(attributes)
    if elements is not None:
        node._pytree__elements[:] = elements
    if node._pytree__info.marks or marks:
        node._pytree__info.marks = marks
    node._pytree__info.mark_rebuilt()


def _refill(node: Node, children: list[tuple[Any, Value]]) -> None:
    impl = GRAPH_REGISTRY[type(node)]
    impl.clear(node)
    impl.init(node, children)


def _put_back_entries(node: Node, children: list[tuple[Any, Value]]) -> None:
    impl: Any = pytree_impl(type(node))
    before, now = dict(children), dict(impl.flatten(node)[0])
    for key in now.keys() - before.keys():
        impl.pop_key(node, key)
    for key, child in children:
        if now.get(key, NOTHING) is not child:
            impl.set_key(node, key, child)


def _identity(child: object) -> object:
    """A child of a node without what is below it. Plain containers are rebuilt, so their contents count."""
    value = unwrapped(child)
    if kind_of(child) is Kind.STATIC and type(child) is not DataElem:
        return Static(value)
    if kind_of(value) is not Kind.PYTREE:
        return id(value)
    children, metadata = pytree_impl(type(value)).flatten(value)
    return type(value), Static(metadata), [(key, _identity(each)) for key, each in children]


def _identities(node: Pytree) -> dict[Hashable, object]:
    return {key: _identity(child) for key, child in node._pytree__graph_flatten()[0]}
