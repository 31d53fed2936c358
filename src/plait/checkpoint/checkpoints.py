"""The checkpoints of one run: written while training goes on, kept by a rule, and found again after a crash.

    run/
        step-00000100/    checkpoints, each as ``layout.py`` says
        step-00000200/
        run.lock          held by the run that writes here, as long as its process lives

``save`` takes everything from the objects before it returns, so that the next step may change or donate them; a thread
writes it. What goes wrong there is raised by the next call. (``leaf_descriptions.py``, ``orbax.py``)
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

    In a run of several processes all of them make it, with a folder that all of them see, and call its methods in the
    same order.

    Args:
        folder: where; it is made if it is not there.
        keep: which checkpoints stay when a new one is there.
        background: whether ``save`` returns while the arrays are still being written.

    Raises:
        CheckpointError: another run that is alive writes to the folder, or it cannot be written to.

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

    def _open(self) -> str:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            self._lock = hold(self.folder / LOCK, create=True)
        except BlockingIOError as error:
            raise CheckpointError(
                "another run writes its checkpoints to this folder",
                at=str(self.folder),
                found=f"{LOCK}, held by process {_owner(self.folder / LOCK)}",
                expected="a folder of its own for each run",
                do="end the other run, or give this one another folder",
            ) from error
        except OSError as error:
            raise CheckpointError(
                "checkpoints cannot be written into this folder",
                at=str(self.folder),
                found=error.strerror or str(error),
                expected="a folder in which files may be made",
                do="choose a folder that you may write to",
            ) from error
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        return ""

    def save(
        self,
        step: int,
        node: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save what a run is, as the checkpoint of a step. One of the same step is replaced.

        Args:
            step: the number of steps that are done.
            node, metrics, extra: as for ``plait.checkpoint.save``.

        Raises:
            CheckpointError: the one before could not be written, or this one cannot.
            ArgumentTypeError: the graph has a value that a checkpoint cannot hold; the message has its path.
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
            with saving:
                saving.arrive()
                if jax.process_index() == 0:
                    saving.finish()
                    self._drop_old()
        # Raised by the next call, in the thread that saves.
        except BaseException as error:
            self._failed = error

    def _drop_old(self) -> None:
        saved = saved_in(self.folder)
        stay = self.keep.chosen(saved)
        for each in saved:
            if each not in stay:
                remove_whole(each.path)

    def wait(self) -> None:
        """Wait until what was saved is on the disk, by all processes.

        Raises:
            CheckpointError: it could not be written. It is raised once; the checkpoints before it are there.
        """
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        on_first(self._raise_failure)

    def _raise_failure(self) -> str:
        failed, self._failed = self._failed, None
        if isinstance(failed, (CheckpointError, KeyboardInterrupt)):
            raise failed
        if failed is not None:
            raise CheckpointError(
                "a checkpoint could not be written",
                at=str(self.folder),
                found=f"{type(failed).__name__}: {failed}",
                expected="a disk with room, that answers",
                do="the checkpoints before it are whole; make room, and save again",
            ) from failed
        return ""

    def all(self) -> list[Saved]:
        """The checkpoints that are there, the newest last."""
        self.wait()
        return saved_in(self.folder)

    def best(self) -> Saved | None:
        """The best one by the metric of ``keep``; ``None`` where there is none."""
        ranked = self.keep.ranked(self.all())
        return ranked[0] if ranked else None

    def restore(
        self, node: Any, *, step: int | None = None, partial: bool = False, cast: bool = False
    ) -> Manifest | None:
        """Bring objects to the newest whole checkpoint, in place; ``None`` where there is no checkpoint at all.

        Those that are damaged are passed over.

        Args:
            node, partial, cast: as for ``plait.checkpoint.restore``.
            step: that of another one than the newest.

        Raises:
            CheckpointError: there are checkpoints and none is whole, there is none of this step, or it does not fit.
        """
        self.wait()
        found = on_first(lambda: self._newest(step))
        return read_into(Path(found), node, partial=partial, cast=cast, is_whole=True) if found else None

    def _newest(self, step: int | None) -> str:
        broken: list[str] = []
        saved = [each for each in saved_in(self.folder) if step is None or each.step == step]
        for each in reversed(saved):
            try:
                check_whole(each.path)
                return str(each.path)
            except CheckpointError as error:
                broken.append(f"{each.path.name}: {error.parts['found']}")
        if step is None:
            broken += [f"{name}: no manifest that can be read" for name in damaged_in(self.folder)]
        if broken or step is not None:
            others = [str(each.step) for each in saved_in(self.folder) if each.step != step]
            broken += [f"checkpoints of steps {', '.join(others)}"] * (step is not None and bool(others))
            raise CheckpointError(
                "there is no whole checkpoint" + ("" if step is None else f" of step {step}"),
                at=str(self.folder),
                found="; ".join(broken[:4]) or "no checkpoint",
                expected="a folder that save wrote, unchanged",
                do="give another folder or step, or remove the damaged ones to start from the beginning",
            )
        return ""

    def close(self) -> None:
        """Wait for what is being written, and let other runs write here."""
        try:
            self.wait()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                os.close(lock)  # the file stays: one who has just opened it would lock a file that is no longer there

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _owner(lock: Path) -> str:
    with contextlib.suppress(OSError):
        return lock.read_text()
    return "that cannot be told"
