"""Interrupts (Ctrl-C) at each line of a piece of code, one in each run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plait.core.graph import unflatten
from plait.core.nodes import journal
from plait.edit import pop
from plait.flax.compat import update_context
from plait.transforms.call import outcome

WRITERS = tuple(str(module.__file__) for module in (journal, outcome, unflatten, pop, update_context))
WRITERS += (str(Path(journal.__file__ or "").parents[1] / "functional" / "update.py"),)


def interrupted(make: Callable[[], Any], run: Callable[[Any], Any], *files: str) -> Iterator[tuple[int, Any]]:
    """Run ``run(make())`` again and again, each time interrupted at a later line of these files or folders.

    Yields:
        The number of the line, and the object that the interrupted run was given. The last run is not interrupted.
    """
    for stop in range(1, 5_000):
        given, lines, stopped = make(), 0, False

        def trace(frame: Any, event: str, argument: Any, stop: int = stop) -> Any:
            nonlocal lines, stopped
            if not frame.f_code.co_filename.startswith(files):
                return None
            lines += event == "line"
            if event == "line" and lines == stop:
                stopped = True
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            run(given)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        yield stop, given
        if not stopped:
            return
    raise AssertionError("the code has too many lines")
