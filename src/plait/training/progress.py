"""How a long run shows where it is: a live bar on a terminal, plain lines into a file or pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """What ``progress`` gives."""

    def advance(self, steps: int = 1) -> None:
        """Count steps as done."""
        ...

    def say(self, text: str) -> None:
        """Print a line that stays."""
        ...


@contextlib.contextmanager
def progress(label: str, total: int, *, done: int = 0) -> Iterator[Progress]:
    """Show progress on standard output while the body runs.

    Args:
        label: what is going on, one or two words, shown beside the bar.
        total: how many steps there are.
        done: how many of them were done before, in an earlier run.

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
    with rich.progress.Progress(*columns, transient=True) as display:
        yield _Bar(display, display.add_task(label, total=total, completed=done))


class _Lines:
    def advance(self, steps: int = 1) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, flush=True)


class _Bar:
    def __init__(self, display: rich.progress.Progress, task: rich.progress.TaskID) -> None:
        self.display = display
        self.task = task

    def advance(self, steps: int = 1) -> None:
        self.display.advance(self.task, steps)

    def say(self, text: str) -> None:
        self.display.print(text, markup=False, highlight=False, soft_wrap=True)
