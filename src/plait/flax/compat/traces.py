"""The trace that an object belongs to, for programs that read Flax's trace states: ``nnx.tracers``."""

from __future__ import annotations

from typing import Any

import jax

from ...util.jax_versions import current_trace


def current_jax_trace() -> Any:
    """A token of JAX's current trace: the same inside one trace, a different one in another."""
    return current_trace()


class TraceState:
    """The trace in which it was made.

    Example:
        >>> from plait.flax.compat.traces import TraceState
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
