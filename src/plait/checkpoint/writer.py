"""The thread that writes a checkpoint, and the end of the program, which waits for it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  (before what is registered at the end of this file)
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from ..partitioning.processes.connect import BEFORE_THE_END
from ..partitioning.processes.launched import saving
from ..util.jax_versions import THREADS_CAN_END_A_PROGRAM


class Writer(threading.Thread):
    """A thread that writes, and keeps its error until it is taken.

    Args:
        write: what to do.
        name: the name of the thread.
    """

    def __init__(self, write: Callable[[], None], name: str) -> None:
        # What is registered at the end of this file waits for it at the end of the program, unless it is abandoned.
        super().__init__(name=name, daemon=True)
        self._write: Callable[[], None] | None = write
        self._failed: BaseException | None = None
        self._told: contextlib.ExitStack | None = None  # while ``plait launch`` is told that this process saves
        self.seconds = 0.0  # how long it wrote

    def start(self) -> None:
        """Start to write; write at once if the end of the program could not wait."""
        _WRITERS.add(self)
        self._tell()  # before the caller goes on, who may have told it until now
        if THREADS_CAN_END_A_PROGRAM:
            super().start()
        else:
            self.run()

    def run(self) -> None:
        """Write in the thread that calls it."""
        write, self._write = self._write, None  # the thread must not keep the objects alive
        begun = time.monotonic()
        try:
            if write is not None:
                with self._tell():
                    write()
        except BaseException as error:
            self._failed = error
        self.seconds = time.monotonic() - begun

    def _tell(self) -> contextlib.ExitStack:
        if self._told is None:
            self._told = contextlib.ExitStack()
            self._told.enter_context(saving())
        return self._told

    def take_failure(self) -> BaseException | None:
        """Wait for the end of the writing. Return its error, once."""
        if self.ident is not None:
            self.join()
        _WRITERS.discard(self)
        failed, self._failed = self._failed, None
        return failed

    def abandon(self) -> None:
        """Do not wait for the end of the writing, nor look at its error."""
        _WRITERS.discard(self)


# Those that no one has waited for.
_WRITERS: set[Writer] = set()


def _finish_all() -> None:
    """Wait for all threads; print the errors that nobody will see otherwise."""
    for writer in tuple(_WRITERS):
        failed = writer.take_failure()
        if failed is not None:
            print("a checkpoint could not be written at the end of the program:", file=sys.stderr)
            sys.excepthook(type(failed), failed, failed.__traceback__)


# A thread that writes hands work to the threads of concurrent.futures, through Orbax and asyncio. Those are shut down
# when the main thread ends, before Python waits for other threads, and before the functions of ``atexit`` run: a save
# that is not finished would fail. The functions registered here run in reverse order, so these after the import above.
threading._register_atexit(_finish_all)  # pyright: ignore[reportAttributeAccessIssue]

# So does a process of several that ends at once, because of an error.
BEFORE_THE_END.append(_finish_all)

# A forked child has none of these threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_WRITERS.clear)
