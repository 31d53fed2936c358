"""What the first call of a jitted function is doing, while it traces, lowers and compiles. (rule D14)

Whoever waits in a terminal for more than three seconds is told. Elsewhere nothing is said and no thread is started; a
call costs two look-ups when its program is traced, and nothing later. What JAX has done is what its own events say.

``_here`` is the call of this thread; ``watched`` puts it there, and the event that ends it removes it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from ...transforms.jit.function import JittedFunction

R = TypeVar("R")

SETTING = "PLAIT_PROGRESS"
PATIENCE = 3.0  # seconds, before anything is said
_PHASES = {
    "/jax/core/compile/jaxpr_trace_duration": "traced",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowered",
    "/jax/core/compile/backend_compile_duration": "compiled",
}
_NEXT = {"traced": "lowering", "lowered": "compiling"}
_GENERAL = JittedFunction.general.__code__


class FirstCall:
    """A call that compiles its program.

    Attributes:
        name: the name of the function.
        frame: identifies the call on the stack of its thread.
        phase: what it is doing.
        seconds: how long each phase took that is over.
        took: the seconds of the whole, once it is over.
        is_over: whether the program is compiled, or the call has raised.
    """

    def __init__(self, name: str, frame: int) -> None:
        self.name, self.frame = name, frame
        self.thread = threading.get_ident()
        self.start = time.perf_counter()
        self.phase = "tracing"
        self.seconds: dict[str, float] = {}
        self.took = 0.0
        self.is_over = threading.Event()

    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.start

    def is_running(self) -> bool:
        """Whether its thread is still inside the call."""
        return not self.is_over.is_set() and self.frame in map(id, _calls(sys._current_frames().get(self.thread)))

    def end(self) -> None:
        """The program is compiled, or the call raises."""
        _here.call = None
        self.took = self.elapsed()
        self.is_over.set()


class _Here(threading.local):
    call: FirstCall | None = None


_here = _Here()


def watched(call: Callable[[], R]) -> R:
    """Trace a function, as part of a first call if it is one: ``lower`` and ``trace`` compile nothing."""
    frames = _calls(sys._getframe())
    if not frames:
        return call()
    outermost = frames[-1]
    current = _here.call
    if current is None or current.frame != id(outermost):
        function = outermost.f_locals["self"].f
        current = _here.call = FirstCall(getattr(function, "__name__", type(function).__name__), id(outermost))
        if is_shown:
            threading.Thread(target=_show, args=(current,), daemon=True).start()
    try:
        return call()
    except BaseException:
        current.end()
        raise


def _calls(frame: Any) -> list[Any]:
    """The frames of calls of jitted functions on a stack, innermost first."""
    found: list[Any] = []
    while frame is not None:
        if frame.f_code is _GENERAL:
            found.append(frame)
        frame = frame.f_back
    return found


def _heard(event: str, duration_secs: float, **about: Any) -> None:
    current, phase = _here.call, _PHASES.get(event)
    if current is None or phase is None or about.get("fun_name") not in (current.name, f"jit({current.name})"):
        return
    # The trace of a donating function that finds what it writes has another name, and counts too.
    current.seconds[phase] = current.elapsed() if phase == "traced" else duration_secs
    current.phase = _NEXT.get(phase, current.phase)
    if phase == "compiled":
        current.end()


def _show(call: FirstCall) -> None:
    """Say what a call is doing, if it takes long."""
    if call.is_over.wait(PATIENCE) or not call.is_running():
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{call.name}: {call.phase}, {call.elapsed():.0f} s so far", highlight=False)
    with console.status("") as status:
        while call.is_running():
            status.update(f"{call.name}: {call.phase}, {call.elapsed():.0f} s")
            call.is_over.wait(0.25)
    parts = ", ".join(f"{phase} {call.seconds[phase]:.1f}" for phase in _PHASES.values() if phase in call.seconds)
    console.print(
        f"{call.name}: first call took {call.took or call.elapsed():.1f} s: {parts or call.phase}", highlight=False
    )


def _is_shown() -> bool:
    setting = os.environ.get(SETTING)
    return sys.stderr.isatty() if setting is None else setting not in ("", "0")


is_shown = _is_shown()
jax.monitoring.register_event_duration_secs_listener(_heard)
