"""The checkpoints of one run: written in the background, kept by a rule, and restored after a crash.

    run/
        step-00000100/    checkpoints, in the format of ``layout.py``
        step-00000200/
        run.lock          held by the run that writes here, while its process lives

``save`` copies everything from the objects before it returns, so the next step may change or donate them; a thread
writes the copy. The next call raises any error of that thread. (``leaf_descriptions.py``, ``orbax.py``)
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from ..errors import CheckpointError
from ..scratch import hold, remove_abandoned
from ..whole_writes import remove_whole
from .keep import Keep
from .layout import Manifest, Saved, check_whole, damaged_in, saved_in
from .orbax import Saving, read_into
from .together import on_first

LOCK = "run.lock"


class Checkpoints:
    """A folder of checkpoints that one run writes.

    In a multi-process run, every process creates one, with a folder on a shared file system, and all call its methods
    in the same order.

    Args:
        folder: the folder; it is created if missing.
        keep: which checkpoints to keep after a save.
        background: whether ``save`` returns while the arrays are still being written.

    Raises:
        CheckpointError: another running process writes to the folder, or it is not writable.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> with plait.checkpoint.Checkpoints("run", keep=plait.checkpoint.Keep(last=2)) as checkpoints:
        ...     for step in (10, 20, 30):
        ...         checkpoints.save(step, {"model": model}, metrics={"loss": 1 / step})
        >>> [saved.step for saved in checkpoints.all()]
        [20, 30]
        >>> checkpoints.restore({"model": plait.Linear(2, 3, rngs=plait.Rngs(1))}).step
        30
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: Keep | None = None, background: bool = True) -> None:
        self.folder = Path(folder).absolute()
        self.keep = Keep() if keep is None else keep
        self.background = background
        self._writing: threading.Thread | None = None
        self._failed: BaseException | None = None
        self._lock: int | None = None
        on_first(self._open)

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            self._lock = hold(self.folder / LOCK, create=True)
        except BlockingIOError as error:
            raise CheckpointError(
                "another run is writing its checkpoints to this folder",
                at=str(self.folder),
                found=f"{LOCK}, held by process {_owner(self.folder / LOCK)}",
                expected="a separate folder for each run",
                do="end the other run, or choose another folder for this one",
            ) from error
        except OSError as error:
            raise CheckpointError(
                "checkpoints cannot be written into this folder",
                at=str(self.folder),
                found=error.strerror or str(error),
                expected="a folder with write permission",
                do="choose a writable folder",
            ) from error
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def save(
        self,
        step: int,
        node: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a checkpoint of this step; one of the same step is replaced.

        Args:
            step: the number of completed steps.
            node, metrics, extra: as for ``plait.checkpoint.save``.

        Raises:
            CheckpointError: the previous checkpoint, or this one, could not be written.
            ArgumentTypeError: the graph has a value that a checkpoint cannot store; names its path.
        """
        self.wait()
        path = self.folder / f"step-{int(step):08}"
        saving = Saving(path, node, step=step, metrics=metrics, extra=extra, overwrite=True)
        if not self.background:
            self._write(saving)
            self.wait()
            return
        self._writing = threading.Thread(target=self._write, args=(saving,), name=f"plait saves step {step}")
        self._writing.start()

    def _write(self, saving: Saving) -> None:
        try:
            with contextlib.closing(saving):
                saving.arrive()
                if jax.process_index() == 0:
                    saving.finish()
                    self._drop_old()
        # The next call raises it, in the thread that calls save.
        except BaseException as error:
            self._failed = error

    def _drop_old(self) -> None:
        saved = saved_in(self.folder)
        stay = self.keep.chosen(saved)
        for each in saved:
            if each not in stay:
                remove_whole(each.path)

    def wait(self) -> None:
        """Wait until all processes have written their part of the last save to disk.

        Raises:
            CheckpointError: the checkpoint could not be written. Raised once; earlier checkpoints are intact.
        """
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        on_first(self._raise_failure)

    def _raise_failure(self) -> None:
        failed, self._failed = self._failed, None
        if isinstance(failed, (CheckpointError, KeyboardInterrupt)):
            raise failed
        if failed is not None:
            raise CheckpointError(
                "a checkpoint could not be written",
                at=str(self.folder),
                found=f"{type(failed).__name__}: {failed}",
                expected="a working disk with free space",
                do="earlier checkpoints are intact; free some space, and save again",
            ) from failed

    def all(self) -> list[Saved]:
        """The existing checkpoints, the newest last."""
        self.wait()
        return saved_in(self.folder)

    def best(self) -> Saved | None:
        """The best checkpoint by the metric of ``keep``; ``None`` if there is none."""
        ranked = self.keep.ranked(self.all())
        return ranked[0] if ranked else None

    def restore(
        self, node: Any, *, step: int | None = None, partial: bool = False, cast: bool = False
    ) -> Manifest | None:
        """Restore the newest intact checkpoint into objects, in place; return ``None`` if there is no checkpoint.

        Damaged checkpoints are skipped.

        Args:
            node, partial, cast: as for ``plait.checkpoint.restore``.
            step: the step to restore; ``None`` means the newest.

        Raises:
            CheckpointError: all checkpoints are damaged, there is none of this step, or it does not match the objects.
        """
        self.wait()
        found = on_first(lambda: self._newest(step))
        return read_into(Path(found), node, partial=partial, cast=cast, is_whole=True) if found else None

    def _newest(self, step: int | None) -> str | None:
        broken: list[str] = []
        saved = [each for each in saved_in(self.folder) if step is None or each.step == step]
        for each in reversed(saved):
            try:
                check_whole(each.path)
                return str(each.path)
            except CheckpointError as error:
                broken.append(f"{each.path.name}: {error.parts['found']}")
        if step is None:
            broken += [f"{name}: no readable manifest" for name in damaged_in(self.folder)]
        if broken or step is not None:
            others = [str(each.step) for each in saved_in(self.folder) if each.step != step]
            broken += [f"checkpoints of steps {', '.join(others)}"] * (step is not None and bool(others))
            raise CheckpointError(
                "there is no intact checkpoint" + ("" if step is None else f" of step {step}"),
                at=str(self.folder),
                found="; ".join(broken[:4]) or "no checkpoint",
                expected="a folder that save wrote, unchanged",
                do="pass another folder or step, or remove the damaged ones to start from the beginning",
            )
        return None

    def close(self) -> None:
        """Wait for the last save, and release the folder's lock."""
        try:
            self.wait()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)  # the file is kept, because a process that has just opened it would lock a deleted file

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _owner(lock: Path) -> str:
    with contextlib.suppress(OSError):
        return lock.read_text()
    return "unknown"
