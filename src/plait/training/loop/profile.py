"""The steps of a run that JAX's profiler records."""

from __future__ import annotations

import os
from typing import Any

import jax

from ...errors import LoggerWarning
from ...util.notices import warn
from ...util.words import text_of


class Profile:
    """JAX's profiler, for some steps of a run."""

    def __init__(self, steps: range, folder: str) -> None:
        self.steps, self.folder = steps, os.path.expanduser(folder)
        self.is_on = False

    def begins(self, step: int) -> bool:
        """Whether it is to begin before this step."""
        return step in self.steps and not self.is_on

    def ends(self, step: int) -> bool:
        """Whether it is to end after this step."""
        return step == self.steps.stop - 1

    def begin(self) -> None:
        jax.profiler.start_trace(self.folder)
        self.is_on = True

    def end(self, result: Any) -> None:
        """End after the step with this result."""
        if self.is_on:
            self.is_on = False
            jax.block_until_ready(result)
            jax.profiler.stop_trace()

    def end_with_run(self, result: Any) -> None:
        """As the run ends: how it does is agreed, whatever becomes of the profile."""
        try:
            self.end(result)
        except Exception as error:
            says = f"the profile could not be written: {type(error).__name__}: {text_of(error)}"
            warn(LoggerWarning, says)
