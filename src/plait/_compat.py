"""Every difference between JAX versions, and every use of JAX's private names.

``trace_state.value`` is the weak reference of the trace that is current in this thread; reading it costs about 30 ns,
keeps no trace alive, and its identity tells one trace from another.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import jax
from jax._src import core as _core
from jax._src.array import ArrayImpl as ArrayImpl

if hasattr(_core, "trace_state"):
    trace_state = _core.trace_state
else:  # JAX versions that keep the trace in a thread-local object

    class _TraceState:
        __slots__ = ()

        @property
        def value(self) -> Any:
            return _core.trace_ctx.trace._weakref

    trace_state = _TraceState()

top_level_trace: Any = _core.eval_trace._weakref

Tracer: Any = _core.Tracer

try:
    from jax._src.prng import PRNGKeyArray  # pyright: ignore[reportMissingImports]

    KeyArray: Any = PRNGKeyArray
except ImportError:  # its name is private
    KeyArray = ArrayImpl


def current_trace() -> Any:
    """A token of the current JAX trace: identical for the same trace, different for another."""
    return trace_state.value


def describe_trace(token: Any) -> str:
    """A trace in words, for errors: ``top level`` or the kind of the trace."""
    if token is top_level_trace:
        return "the top level (no JAX transform)"
    trace = token() if token is not None else None
    if trace is None:
        return "a JAX trace that has ended"
    kind = type(trace).__name__
    words = {
        "DynamicJaxprTrace": "a function being traced to a jaxpr (jit, scan, cond, …)",
        "BatchTrace": "a function under vmap",
        "JVPTrace": "a function under forward differentiation (grad, jvp)",
        "LinearizeTrace": "a function under linearization (grad, vjp)",
    }
    return words.get(kind, f"a {kind}")


def is_mutable_array(value: Any) -> bool:
    """Whether ``value`` is a JAX reference (``jax.new_ref``), or a tracer of one."""
    if isinstance(value, Tracer):
        return isinstance(value.aval, _AbstractRef)
    return isinstance(value, _Ref)


try:
    from jax._src.core import Ref as _Ref
    from jax._src.state.types import AbstractRef as _AbstractRef
except ImportError:  # JAX versions without references
    _AbstractRef = _Ref = ()  # type: ignore[assignment,misc]


def refuses_shared_donation() -> bool:
    """Whether the runtime refuses, losing nothing, to run with a buffer that is donated and used a second time.

    Seen on the CPU runtime; until it is seen on others, buffers are compared before each call there.
    """
    return jax.default_backend() == "cpu"


def frame_locals(frame: Any) -> dict[str, Any]:
    """The local variables of a running function.

    Before Python 3.13 the frame keeps the dict that it was asked for, and with it every object in it, until the
    function returns; it is emptied here. (A debugger writes that dict back into the function; then it is left alone.)
    """
    found = dict(frame.f_locals)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.gettrace() is None:
        frame.f_locals.clear()
    return found


def new_ref(value: Any) -> Any:
    """A JAX reference that holds ``value``."""
    return jax.new_ref(value)
