"""Shows the progress of a long run: a progress bar on a terminal, plain lines in a file or pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """The object that ``progress`` yields."""

    def advance(self) -> None:
        """Advance by one step."""
        ...

    def say(self, text: str) -> None:
        """Print a permanent line."""
        ...


@contextlib.contextmanager
def progress(label: str, total: int, *, done: int = 0) -> Iterator[Progress]:
    """Show progress on standard output while the body runs.

    Args:
        label: one or two words, shown next to the bar.
        total: the total number of steps.
        done: the number of steps that an earlier run completed.

    Example:
        >>> from plait.training.progress import progress
        >>> with progress("training", total=2) as show:
        ...     for epoch in range(2):
        ...         show.advance()
        ...         show.say(f"epoch {epoch}")
        epoch 0
        epoch 1
    """
    if not sys.stdout.isatty():
        yield _Lines()
        return
    import rich.progress

    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.TaskProgressColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    display = rich.progress.Progress(*columns, transient=True)
    display.start()
    try:
        yield _Bar(display, display.add_task(label, total=total, completed=done))
    finally:
        with contextlib.suppress(OSError):  # the terminal is gone; what was shown is over
            display.stop()


class _Lines:
    def advance(self) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)


class _Bar:
    def __init__(self, display: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self.display = display
        self.task = task

    def advance(self) -> None:
        self.display.advance(self.task)

    def say(self, text: str) -> None:
        self.display.print(text, markup=False, highlight=False, soft_wrap=True)


class Silent:
    """A process that shows nothing."""

    def advance(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def clock_time(seconds: float) -> str:
    """A time as hours, minutes and seconds."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
