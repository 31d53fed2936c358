"""What a run has saved, and what is still to be saved."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from ...checkpoint.checkpoints import Checkpoints
from ...checkpoint.layout import Manifest
from ...errors import CheckpointError, NonFiniteError
from .step_results import restored_numbers, stored_numbers

EVALUATION = "eval/"  # the beginning of the names of an evaluation's metrics
_EVALUATED = "evaluated"  # the name of the step of the last evaluation in checkpoints
_VALUES = "values"  # and of the last metrics


class Saves:
    """The checkpoints of a run; ``None`` if it saves nothing.

    Attributes:
        step: of the newest checkpoint.
        evaluated: metrics of evaluations since that one.
        error: why nothing more is saved; ``None`` if that may be.
    """

    def __init__(self, checkpoints: Checkpoints | None) -> None:
        self.checkpoints = checkpoints
        self.step = 0
        self.evaluated: dict[str, float] = {}
        self.error: BaseException | None = None

    def restore(self, objects: Mapping[str, Any]) -> Manifest | None:
        """Restore the newest checkpoint, if there is one."""
        manifest = None if self.checkpoints is None else self.checkpoints.restore(objects)
        if manifest is not None:
            self.step = manifest.step or 0
        return manifest

    def save(self, step: int, objects: Mapping[str, Any], metrics: dict[str, float], extra: dict[str, Any]) -> None:
        """Begin a checkpoint of this step."""
        assert self.checkpoints is not None
        self.checkpoints.save(step, objects, metrics=metrics | self.evaluated, extra=extra)
        self.step, self.evaluated = step, {}

    def wait(self) -> None:
        """Wait until the last save is on disk."""
        if self.checkpoints is not None:
            with self.nothing_after():
                self.checkpoints.wait()

    @contextlib.contextmanager
    def nothing_after(self) -> Iterator[None]:
        """Inside ``with``, a NaN or a failed write forbids later saves. The user's own code may raise them too."""
        try:
            yield
        except (NonFiniteError, CheckpointError) as error:
            self.error = self.error or error
            raise

    @contextlib.contextmanager
    def again_if_failed(self) -> Iterator[None]:
        """A save that may fail, since the same is saved again later."""
        kept = self.step, self.evaluated, self.error
        try:
            yield
        except Exception:
            self.step, self.evaluated, self.error = kept


def stored_metrics(values: Mapping[str, float], evaluated_at: int) -> dict[str, Any]:
    """The last metrics, and the step of the last evaluation, as extra data of a checkpoint."""
    return {_EVALUATED: evaluated_at, _VALUES: stored_numbers(values)}


def restored_metrics(manifest: Manifest) -> tuple[dict[str, float], int]:
    """The last metrics, and the step of the last evaluation, from a checkpoint."""
    values = {name: value for name, value in manifest.metrics.items() if type(value) in (int, float)}
    values |= restored_numbers(manifest.extra.get(_VALUES, {}))
    was_evaluated = any(name.startswith(EVALUATION) for name in values)
    return values, manifest.extra.get(_EVALUATED, (manifest.step or 0) if was_evaluated else 0)
