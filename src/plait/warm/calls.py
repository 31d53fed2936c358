"""The calls of a thread: each function that is entered, and functions written in C that are called.

From Python 3.12 on, ``sys.monitoring`` reports them: code of which nothing more is to be learned is switched off, and
calls of functions in C are reported only where they may count. In 3.11 a profiler hears every call and every return.
(rule W4)
"""

from __future__ import annotations

import sys
import threading
from io import FileIO
from types import CodeType, MethodDescriptorType
from typing import Any, Protocol

from .outside import IN_C, never_asks

_MONITORING: Any = getattr(sys, "monitoring", None)
_EVENTS: Any = getattr(_MONITORING, "events", None)
_BUILTIN = type(len)
_LOCK = threading.Lock()
_listening: dict[int, tuple[Listener, ...]] = {}  # by the identity of the thread
_asking: dict[int, CodeType] = {}  # the code in which calls are reported, by identity: equal code may be two objects
_tool: list[int] = []  # the number under which Python knows this file, while somebody listens
# The types of what a function in C is bound to, if that decides whether it counts.
_BOUND_TO = frozenset({FileIO, type})


class Listener(Protocol):
    """Who is told of the calls."""

    def entered(self, frame: Any) -> bool:
        """A function was entered. Returns whether nothing can be learned from later calls of its code."""
        ...

    def called(self, frame: Any, function: Any) -> None:
        """A function written in C, of those that may count, is called from a frame."""
        ...


def _may_count(function: Any) -> bool:
    """Whether a function written in C is one to be told of. ``_Profiled`` saves this call, for each of millions."""
    return function in IN_C or type(function.__self__) in _BOUND_TO


class _Monitored:
    """The calls of this thread, from ``start`` to ``stop``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._profilers: list[Any] = []

    def start(self) -> bool:
        """Begin to tell the listener. Returns whether it can be told: Python gives a number to six tools."""
        with _LOCK:
            if not _tool and not _start():
                return False
            here = threading.get_ident()
            _listening[here] = (*_listening.get(here, ()), self._listener)
            _MONITORING.restart_events()  # what was switched off may be new to this listener
        self._profilers.append(sys.getprofile())
        return True

    def stop(self) -> bool:
        """Tell no more. Returns whether a profiler was started or stopped meanwhile."""
        if not self._profilers:  # it did not start
            return False
        is_other = sys.getprofile() != self._profilers.pop()
        here = threading.get_ident()
        with _LOCK:
            _listening[here] = _listening[here][:-1]
            if not _listening[here]:
                del _listening[here]
            if not _listening:
                _stop(_tool.pop())
        return is_other


def _start() -> bool:
    free = [number for number in range(6) if _MONITORING.get_tool(number) is None]
    if not free:
        return False
    _tool.append(free[-1])  # the first ones are meant for debuggers, coverage and profilers
    _MONITORING.use_tool_id(free[-1], __name__)
    _MONITORING.register_callback(free[-1], _EVENTS.PY_START, _entered)
    _MONITORING.register_callback(free[-1], _EVENTS.PY_RESUME, _entered)
    _MONITORING.register_callback(free[-1], _EVENTS.PY_THROW, _thrown)
    _MONITORING.register_callback(free[-1], _EVENTS.CALL, _called)
    _MONITORING.set_events(free[-1], _EVENTS.PY_START | _EVENTS.PY_RESUME | _EVENTS.PY_THROW)
    return True


def _stop(tool: int) -> None:
    _MONITORING.set_events(tool, 0)
    while _asking:
        _MONITORING.set_local_events(tool, _asking.popitem()[1], 0)
    for event in (_EVENTS.PY_START, _EVENTS.PY_RESUME, _EVENTS.PY_THROW, _EVENTS.CALL):
        _MONITORING.register_callback(tool, event, None)
    _MONITORING.free_tool_id(tool)


def _entered(code: CodeType, _: int) -> Any:
    return _MONITORING.DISABLE if _hear(code, sys._getframe(1)) and len(_listening) == 1 else None


def _hear(code: CodeType, frame: Any) -> bool:
    """Tell the listeners of this thread. Returns whether they need not hear of this code again."""
    listeners = _listening.get(threading.get_ident())
    if listeners is None:
        return False
    if id(code) not in _asking and not never_asks(frame.f_globals.get("__name__")):
        _asking[id(code)] = code
        _MONITORING.set_local_events(_tool[0], code, _EVENTS.CALL)
    known = [listener.entered(frame) for listener in listeners]  # each of them hears
    return all(known)


def _thrown(code: CodeType, _: int, __: BaseException) -> None:
    """A generator goes on with an error. Python does not let this event be switched off."""
    _hear(code, sys._getframe(1))


def _called(_: CodeType, __: int, function: Any, first: Any) -> None:
    listeners = _listening.get(threading.get_ident())
    if listeners is None:
        return
    if type(function) is MethodDescriptorType and first is not _MONITORING.MISSING:
        function = function.__get__(first, type(first))
    if type(function) is _BUILTIN and _may_count(function):
        for listener in listeners:
            listener.called(sys._getframe(1), function)


class _Profiled:
    """The calls of this thread, from ``start`` to ``stop``. A profiler that is active goes on."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._known: set[int] = set()  # code, by identity, because comparing code is slower
        self._profilers: list[tuple[Any, Any]] = []

    def start(self) -> bool:
        """Begin to tell the listener. Returns whether it can be told."""
        before = sys.getprofile()
        hears = self._with(before) if callable(before) else self._hears()
        self._profilers.append((before, hears))
        sys.setprofile(hears)
        return True

    def stop(self) -> bool:
        """Tell no more. Returns whether a profiler was started or stopped meanwhile."""
        before, hears = self._profilers.pop()
        is_other = sys.getprofile() != hears
        sys.setprofile(None)
        if hasattr(before, "enable"):  # a profiler in C, which Python cannot set
            before.enable()
        else:
            sys.setprofile(before)
        return is_other

    def _hears(self) -> Any:
        """The profile function. Of millions of events nearly all are calls of code that is known."""
        known, listener = self._known, self._listener

        def hears(frame: Any, event: str, argument: Any) -> None:
            if event == "call":
                if id(frame.f_code) not in known and listener.entered(frame):
                    known.add(id(frame.f_code))
            elif event == "c_call" and (argument in IN_C or type(argument.__self__) in _BOUND_TO):
                listener.called(frame, argument)

        return hears

    def _with(self, before: Any) -> Any:
        hears = self._hears()

        def both(frame: Any, event: str, argument: Any) -> None:
            before(frame, event, argument)
            hears(frame, event, argument)

        return both


Calls = _Profiled if _MONITORING is None else _Monitored
