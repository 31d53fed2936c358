"""Shows the progress of a long run: a progress bar on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    import rich.progress


ENDLESS = sys.maxsize  # steps, of a run that something else ends


class Progress:
    """What ``progress`` yields. By itself it shows nothing."""

    def advance(self) -> None:
        """Advance by one step."""

    def say(self, text: str) -> None:
        """Print a permanent line."""


@contextlib.contextmanager
def progress(total: int, *, done: int = 0) -> Iterator[Progress]:
    """Show progress on standard output while the body runs.

    Args:
        total: the total number of steps; ``ENDLESS`` if it is not known.
        done: the number of steps that an earlier run completed.

    Example:
        >>> from plait.training.loop.progress import progress
        >>> with progress(2) as show:
        ...     for epoch in range(2):
        ...         show.advance()
        ...         show.say(f"epoch {epoch}")
        epoch 0
        epoch 1
    """
    if not sys.stdout.isatty():
        yield _Plain()
        return
    import rich.progress

    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    display = rich.progress.Progress(*columns, transient=True)
    known = total if total < ENDLESS else None
    display.start()
    try:
        yield _Bar(display, display.add_task("training", total=known, completed=done))
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone; what was shown is over
            display.stop()


class _Plain(Progress):
    def say(self, text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # which may not have the letters of a metric's name
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class _Bar(Progress):
    def __init__(self, display: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self.display = display
        self.task = task

    def advance(self) -> None:
        self.display.advance(self.task)

    def say(self, text: str) -> None:
        self.display.print(text, markup=False, highlight=False, soft_wrap=True)


class Lines:
    """The lines about the steps of a run."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps = steps
        self.time, self.done = time.perf_counter(), done  # of the last line

    def line(self, step: int, values: Mapping[str, float], when: float) -> str:
        """The step, metrics, steps per second since the last line, the remaining time, and the memory of a device.

        Args:
            when: when the step was done, by ``time.perf_counter``. Its metrics may be read later.
        """
        parts = [f"step {step}", *(f"{name} {value:.4g}" for name, value in values.items())]
        if step > self.done:
            rate = (step - self.done) / max(when - self.time, 1e-9)
            parts.append(f"{rate:.3g} steps/s")
            if step < self.steps < ENDLESS:
                parts.append(f"{clock_time((self.steps - step) / rate)} left")
            self.time, self.done = when, step
        memory = (jax.local_devices()[0].memory_stats() or {}).get("bytes_in_use")
        if memory is not None:
            parts.append(f"{memory / 2**30:.2f} GiB")
        return "  ".join(parts)


def clock_time(seconds: float) -> str:
    """A time as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
