"""Private names of Flax that published packages use anyway.

Keras reads and writes ``_raw_value``, ``_trace_state`` and ``_var_metadata`` of its variables, puts its own
``_pytree__state`` into layers, assigns both to another trace, and overrides ``_check_valid_context`` to allow some
changes in a different trace. MaxText asks ``_pytree__state`` whether a module is being initialized. Under
``plait.as_flax`` these names are views of plait's own: a variable's cell, and the trace guard.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any

import jax

from ...core import hooks
from ...core.nodes.module import Pytree
from ...core.variables.cells import mark_changed
from ...core.variables.variables import Cell, Variable, cell_of
from ...util.jax_versions import current_trace
from ...util.sentinels import NOTHING
from ..bridge.wrappers.lazy import initialization_of


def add_private_names() -> None:
    """Add them to variables and objects, for the rest of the process."""
    hooks.excuse = is_excused
    for name, (read, write) in _OF_VARIABLES.items():
        setattr(Variable, name, property(read, write))
    setattr(Variable, "__getstate__", _state_of)  # noqa: B010  # type checkers see an unchanged class
    setattr(Pytree, "_check_valid_context", _refuse)  # noqa: B010
    setattr(Pytree, "_pytree__state", _StateOfAny())  # noqa: B010


def current_jax_trace() -> Any:
    """A token of JAX's current trace: the same inside one trace, a different one in another."""
    return current_trace()


class TraceState:
    """The trace in which it was made.

    Example:
        >>> from plait.flax.compat.private_names import TraceState
        >>> state = TraceState()
        >>> state.is_valid(), jax.jit(lambda x: x + state.is_valid())(0).item()
        (True, 0)
    """

    __slots__ = ("_jax_trace",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self._jax_trace = current_trace()

    jax_trace = property(lambda self: self._jax_trace, doc="The token of the trace.")

    def is_valid(self) -> bool:
        """Whether the current trace is the one in which this was made."""
        return self._jax_trace is current_trace()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceState) and self._jax_trace is other._jax_trace

    def __repr__(self) -> str:
        return f"TraceState(jax_trace={self._jax_trace!r})"


jax.tree_util.register_pytree_node(TraceState, lambda state: ((), None), lambda aux, children: TraceState())


class PytreeState:
    """What Flax stores in an object about its construction: the trace, and the progress of its setup.

    Two states with different traces can be equal, since the trace is not part of a model.
    """

    __slots__ = ("_initializing", "_is_setup", "_trace_state")

    def __init__(self, initializing: bool = False, is_setup: bool = False) -> None:
        self._initializing, self._is_setup = initializing, is_setup
        self._trace_state = TraceState()

    trace_state = property(lambda self: self._trace_state, doc="The trace that the object belongs to.")
    initializing = property(lambda self: self._initializing, doc="Whether a wrapper is initializing the object.")
    is_setup = property(lambda self: self._is_setup, doc="Whether the object has been set up.")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PytreeState):
            return NotImplemented
        return (self._initializing, self._is_setup) == (other._initializing, other._is_setup)

    def __hash__(self) -> int:
        return hash((self._initializing, self._is_setup))


class _StateOfAny:
    """The default ``_pytree__state`` of an object."""

    def __get__(self, node: Pytree | None, cls: type) -> Any:
        return self if node is None else _State(node)


class _State(PytreeState):
    """The state of an object: read from it, but for what a program writes."""

    __slots__ = ("_node",)

    def __init__(self, node: Pytree) -> None:
        self._node = node
        self._is_setup = False
        self._trace_state = TraceState()
        self._trace_state._jax_trace = node._pytree__info.trace

    @property
    def _initializing(self) -> bool:
        run, asks = initialization_of(self._node), getattr(type(self._node), "is_initializing", None)  # bridge.Module
        is_running = (run is not None and run.again) or bool(asks and asks(self._node))
        return vars(self._node).get("_pytree__initializing", is_running)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        vars(self._node)["_pytree__initializing"] = value


class _CellTrace(TraceState):
    """The trace of a variable; assigning it moves the variable to another trace."""

    __slots__ = ("_cell",)

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    @property
    def _jax_trace(self) -> Any:
        return self._cell.trace

    @_jax_trace.setter
    def _jax_trace(self, trace: Any) -> None:
        self._cell.trace = trace


class _Metadata(MutableMapping[str, Any]):
    """The metadata of a variable, as a mapping to write to. plait replaces its own dict and never edits it."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell

    def __getitem__(self, name: str) -> Any:
        return self._cell.metadata[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if self._cell.metadata.get(name, NOTHING) is not value:
            _set_metadata(self._cell, {**self._cell.metadata, name: value})

    def __delitem__(self, name: str) -> None:
        _set_metadata(self._cell, {key: value for key, value in self._cell.metadata.items() if key != name})

    def __iter__(self) -> Iterator[str]:
        return iter(self._cell.metadata)

    def __len__(self) -> int:
        return len(self._cell.metadata)

    def __repr__(self) -> str:
        return repr(self._cell.metadata)


def _set_metadata(cell: Cell, metadata: dict[str, Any]) -> None:
    cell.metadata = metadata
    mark_changed(cell)


def _set_raw(variable: Variable[Any], value: Any) -> None:
    cell_of(variable).raw = value


def _set_trace(variable: Variable[Any], state: TraceState) -> None:
    cell_of(variable).trace = state._jax_trace


_OF_VARIABLES: dict[str, Any] = {
    "_raw_value": (lambda variable: cell_of(variable).raw, _set_raw),
    "_trace_state": (lambda variable: _CellTrace(cell_of(variable)), _set_trace),
    "_var_metadata": (
        lambda variable: _Metadata(cell_of(variable)),
        lambda variable, metadata: _set_metadata(cell_of(variable), dict(metadata)),
    ),
}


def _state_of(variable: Variable[Any]) -> dict[str, Any]:
    return {name: getattr(variable, name) for name in _OF_VARIABLES}


class _NotExcusedError(Exception):
    """Raised if the class leaves the decision about a change to the trace guard."""


def _refuse(self: Pytree, error_msg: Any) -> None:
    """Flax's own check, which a class may override: if it returns, the change is allowed."""
    raise _NotExcusedError


def is_excused(owner: Any) -> bool:
    """Whether an object may be changed in a different trace: its class or its assigned trace allows it."""
    stamp = vars(owner).get("_pytree__state") if isinstance(owner, Pytree) else None
    if isinstance(stamp, PytreeState) and stamp.trace_state.is_valid():
        return True
    check = getattr(type(owner), "_check_valid_context", _refuse)
    if check is _refuse:
        return False
    try:
        check(owner, f"cannot change a {type(owner).__name__} from another trace")
    except _NotExcusedError:
        return False
    return True
