"""The checkpoints of one run: written in the background, kept by a rule, and restored after a crash.

    run/
        step-00000100/    checkpoints, in the format of ``layout.py``
        step-00000200/
        run.lock          held by the run that writes here, while its process lives

``save`` copies everything from the objects before it returns, so the next step may change or donate them; a thread
writes the copy. The next call raises any error of that thread. (``leaf_descriptions.py``, ``orbax.py``) The program
waits for the thread before it ends.

Only real folders with the names above are counted and removed by the rule. Copies under other names, checkpoints that
the user put there, and links can be listed and restored, and are never removed. If a step is saved whose name is taken
by something without a manifest, that is moved aside, to ``step-00000200.damaged-1``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from ..errors import CheckpointError, CheckpointWarning, LostUpdateWarning
from ..partitioning.processes.all_processes import Meeting, run_on_all, run_on_process_0
from ..partitioning.processes.launched import grace
from ..util.files import given_path
from ..util.notices import warn
from ..util.scratch import Lock, hold, is_held_here, remove_abandoned
from ..util.whole_writes import move_aside, remove_whole
from ..util.words import first_few
from .keep import Keep
from .layout import (
    MANIFEST,
    Manifest,
    Saved,
    check_path,
    damaged_in,
    is_taken,
    saved_in,
    written_by_orbax,
)
from .orbax import Saving, check_whole_together, read_into, written
from .writer import Writer

LOCK = "run.lock"
VISIBLE_WITHIN = 60.0  # seconds; network file systems keep what they know of a folder for about 30


class Checkpoints:
    """A folder of checkpoints that one run writes.

    In a multi-process run, every process creates one, with a folder on a shared file system, and all call its methods
    in the same order.

    Args:
        folder: the folder; it is created if missing.
        keep: which checkpoints to keep after a save.
        background: whether ``save`` returns while the arrays are still being written.

    Raises:
        CheckpointError: another running process, or another ``Checkpoints`` of this one, writes to the folder; it is
            not writable; its path has ``[...]``, which Orbax takes for a pattern; or not all processes have the folder
            of process 0.

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
        self.folder = given_path(folder).absolute()
        self.keep = Keep() if keep is None else keep
        self.background = background
        self._writer: Writer | None = None
        self._meeting: Meeting | None = None  # of the writers of all processes
        self._held: Lock | None = None
        self._release: Callable[[], object] | None = None
        self._damaged: set[Path] = set()
        # Of the last save: what process 0 is still to warn of.
        self._not_removed: OSError | None = None
        self._seconds = 0.0
        self._has_warned = self._has_warned_of_grace = False
        check_path(self.folder)
        locked = run_on_process_0(self._locked)
        if locked is not None:
            run_on_all(lambda: self._check_shared(Path(locked)))

    def _lock(self) -> None:
        """Create and lock the folder, unless that is done.

        A forked child does not have its parent's lock, and if the folder was removed, that of a new one is another.
        """
        if self._held is not None and self._held.is_at(self.folder / LOCK):
            return
        self._unlock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            remove_abandoned(self.folder)
            self._held = hold(self.folder / LOCK, create=True)
        except BlockingIOError as error:
            raise _held(self.folder) from error
        except OSError as error:
            raise _not_writable(self.folder, error) from error
        if self._held is not None:
            self._held.write(str(os.getpid()))
            self._release = weakref.finalize(self, self._held.release)

    def _locked(self) -> str | None:
        """Lock the folder; return the path of the file, or ``None`` where there are no locks."""
        self._lock()
        return None if self._held is None else str(self.folder / LOCK)

    def _check_shared(self, lock: Path) -> None:
        """Raise unless this process writes to the folder of process 0."""
        if jax.process_index() == 0:
            return
        _await_lock(lock)
        if self.folder != lock.parent and not (self.folder.is_dir() and self.folder.samefile(lock.parent)):
            raise _not_shared(lock.parent, f"process {jax.process_index()} has {self.folder}")
        try:
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise _not_writable(self.folder, error) from error

    def _unlock(self) -> None:
        release, self._release, self._held = self._release, None, None
        if release is not None:
            release()  # the file is kept, because a process that has just opened it would lock a deleted file

    def save(
        self,
        step: int,
        node: Any,
        *,
        metrics: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a checkpoint of this step; one of the same step is replaced.

        After ``close`` it locks the folder again.

        Args:
            step: the number of completed steps.
            node, metrics, extra: as for ``plait.checkpoint.save``.

        Raises:
            CheckpointError: the previous checkpoint, or this one, could not be written.
            ArgumentTypeError: the graph has a value that a checkpoint cannot store; names its path.

        Warns:
            LostUpdateWarning: the folder has a checkpoint of a later step, from which the next start resumes. Once for
                each object, and not if ``restore`` has found the later ones damaged.
            CheckpointWarning: the folder of this step has no manifest, and was moved aside; or an old checkpoint, which
                ``keep`` does not keep, could not be removed.
        """
        self._wait()
        path = self.folder / _name(int(step))
        run_on_process_0(functools.partial(self._prepare, path, int(step)))
        saving = Saving(path, node, step=step, metrics=metrics, extra=extra, overwrite=True)
        self._meeting = Meeting() if jax.process_count() > 1 else None
        writer = Writer(functools.partial(self._write, saving, self._meeting), f"plait saves step {step}")
        if self.background:
            writer.start()
            self._writer = writer  # another thread may take it at once
        else:
            writer.run()
            self._writer = writer
            self.wait()

    def _prepare(self, path: Path, step: int) -> None:
        self._lock()
        self._warn_of_last()
        self._warn_of_later(step)
        if is_taken(path) and not (path / MANIFEST).is_file():
            aside = move_aside(path, "damaged")
            warn(
                CheckpointWarning,
                "what was at the path of a checkpoint is not a checkpoint, and was moved aside",
                at=str(path),
                found=f"{'a folder' if aside.is_dir() else 'a file'} without a {MANIFEST}, now {aside.name}",
                expected="a checkpoint of this step, or nothing",
                do=f"delete {aside} when you do not need it",
            )

    def _warn_of_later(self, step: int) -> None:
        if self._has_warned:
            return

        def may_be_later(path: Path) -> bool:
            named = _step_of(path.name)  # manifests may be long: in a usual run, none is read here
            return path not in self._damaged and (named is None or named > step)

        later = [each.path.name for each in saved_in(self.folder, may_be_later) if each.step > step]
        if later:
            self._has_warned = True
            warn(
                LostUpdateWarning,
                "a checkpoint is saved, but the next start resumes from a later step",
                at=str(self.folder),
                found=f"{first_few(later, 4)}, and a save of step {step}",
                expected="no checkpoints of later steps",
                do="remove those folders, or save to another folder",
            )

    def _write(self, saving: Saving, meeting: Meeting | None) -> None:
        try:
            with written(self.folder):
                self._finish(saving)
        except BaseException as error:
            if meeting is not None:
                meeting.arrive(error)
            raise
        if meeting is not None:
            meeting.arrive(None)

    def _finish(self, saving: Saving) -> None:
        with contextlib.closing(saving):
            saving.arrive()
            if jax.process_index() == 0:
                saving.finish()
                self._damaged.discard(saving.target)
                try:
                    self._drop_old(saving.target)
                except OSError as error:  # the checkpoint itself is written
                    self._not_removed = error

    def _drop_old(self, written: Path) -> None:
        """Remove what the rule does not keep, but neither the one just written nor those that are known as damaged.

        The damaged ones do not count either: they would take the places of intact ones of lower steps.
        """
        own = [each for each in saved_in(self.folder, _is_own) if each.path.name == _name(each.step)]
        own = [each for each in own if each.path not in self._damaged]
        stay = self.keep.chosen(own)
        for each in own:
            if each not in stay and each.path != written:
                remove_whole(each.path)

    def wait(self) -> None:
        """Wait until all processes have written their part of the last save to disk.

        Raises:
            CheckpointError: the checkpoint could not be written. Raised once, in all processes as soon as one of them
                fails; earlier checkpoints are intact.

        Warns:
            CheckpointWarning: an old checkpoint could not be removed; or the checkpoint took longer than the grace
                period in ``PLAIT_GRACE``, which ``plait launch`` sets.
        """
        self._wait()
        self._warn_of_last()

    def _wait(self) -> None:
        """Wait, without the warnings, which may be errors in process 0, while the others go on and wait for it."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        failed = None if self._meeting is None else self._meeting.outcome()
        if failed is None:
            failed = writer.take_failure()
        else:
            writer.abandon()  # it may wait for the process that failed
        if failed is not None:
            raise failed
        self._seconds = writer.seconds

    def _warn_of_last(self) -> None:
        seconds, self._seconds = self._seconds, 0.0
        self._warn_of_grace(seconds)
        not_removed, self._not_removed = self._not_removed, None
        if not_removed is not None:
            warn(
                CheckpointWarning,
                "an old checkpoint could not be removed; the new one is written",
                at=str(not_removed.filename or self.folder),
                found=f"{type(not_removed).__name__}: {not_removed.strerror}",
                expected="a folder that this process may remove",
                do="check its permissions; it is tried again after the next save",
            )

    def _warn_of_grace(self, seconds: float) -> None:
        """Warn, once and in advance, if the grace period of this run is too short for a checkpoint."""
        allowed = grace()
        if allowed is not None and seconds > allowed and not self._has_warned_of_grace and jax.process_index() == 0:
            self._has_warned_of_grace = True
            warn(
                CheckpointWarning,
                "a checkpoint takes longer than the time between a signal and the end of the process",
                at=str(self.folder),
                found=f"{seconds:.0f} s for the last checkpoint",
                expected=f"at most {allowed:g} s, the grace period",
                do="ask for a longer one: plait launch --grace, --signal=TERM@600 of Slurm with PLAIT_GRACE=600, or "
                "terminationGracePeriodSeconds of Kubernetes; or save more often",
            )

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
            CheckpointError: all checkpoints are damaged, this step has none, or it does not match the objects. Or
                the folder has only checkpoints that another program wrote with Orbax; names the call that reads them.
        """
        self._wait()
        broken: dict[str, str] = {}
        while found := run_on_process_0(lambda: self._newest(step, broken)):
            try:
                check_whole_together(Path(found))
            except CheckpointError as error:
                self._damaged.add(Path(found))
                broken[found] = f"{Path(found).name}: {error.parts['found']}"
            else:
                return read_into(Path(found), node, partial=partial, cast=cast, is_whole=True)
        return None

    def _newest(self, step: int | None, known: Mapping[str, str]) -> str | None:
        """The newest checkpoint that is not known as broken; ``None`` if there was none at all.

        Raises:
            CheckpointError: all are broken.
        """
        self._warn_of_last()
        saved = [each for each in saved_in(self.folder) if step is None or each.step == step]
        for each in reversed(saved):
            if str(each.path) not in known:
                return str(each.path)
        broken = [*known.values()]
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
        by_others = written_by_orbax(self.folder, also="; give this run a folder of its own")
        if by_others is not None:  # a run must not begin again beside what it was to continue
            raise by_others
        return None

    def close(self) -> None:
        """Wait for the last save, and release the folder's lock. A later ``save`` takes the lock again."""
        try:
            self.wait()
        finally:
            self._unlock()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(step: int) -> str:
    """The name of the folder of a step."""
    return f"step-{step:08}"


def _step_of(name: str) -> int | None:
    """The step whose folder has this name."""
    with contextlib.suppress(ValueError):
        step = int(name.removeprefix("step-"))
        return step if name == _name(step) else None
    return None


def _is_own(path: Path) -> bool:
    return _step_of(path.name) is not None and not path.is_symlink()


def _await_lock(lock: Path) -> None:
    """Wait until this process sees the lock of process 0, which a network file system may show late."""
    until = time.monotonic() + VISIBLE_WITHIN
    while not lock.exists():
        if time.monotonic() > until:
            raise _not_shared(lock.parent, f"process {jax.process_index()} does not see the {lock.name} of process 0")
        time.sleep(0.1)


def _not_shared(folder: Path, found: str) -> CheckpointError:
    return CheckpointError(
        "the processes of this run do not share a folder for checkpoints",
        at=str(folder),
        found=found,
        expected="a folder that all processes write to",
        do="pass the absolute path of a folder on a file system that every machine has mounted at the same path",
    )


def _not_writable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        "checkpoints cannot be written into this folder",
        at=str(folder),
        found=error.strerror or str(error),
        expected="a folder with write permission",
        do="choose a writable folder",
    )


def _held(folder: Path) -> CheckpointError:
    if is_held_here(folder / LOCK):
        return CheckpointError(
            "another Checkpoints of this process is writing to this folder",
            at=str(folder),
            found=f"{LOCK}, held by this process",
            expected="one Checkpoints for each folder",
            do="use that one, or end it first: checkpoints.close()",
        )
    return CheckpointError(
        "another run is writing its checkpoints to this folder",
        at=str(folder),
        found=f"{LOCK}, held by process {_owner(folder / LOCK)}",
        expected="a separate folder for each run",
        do="end the other run, or choose another folder for this one",
    )


def _owner(lock: Path) -> str:
    with contextlib.suppress(OSError):
        return lock.read_text()
    return "unknown"
