"""Save and restore through Orbax, which writes arrays of any size and sharding in parallel.

``layout.py`` defines the files around Orbax's folder, ``leaf_descriptions.py`` the names of leaves. In a multi-process
run all processes call ``save`` and ``restore``: each writes and reads the shards on its devices, and process 0 does the
rest for all.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..core.functional.update import update
from ..core.variables.variable_kinds import Remainder
from ..errors import ArgumentTypeError, CheckpointError
from ..partitioning.processes.all_processes import run_on_all, run_on_process_0
from ..util.files import given_path
from ..util.schemas import fits
from ..util.words import text_of
from .layout import (
    ARRAYS,
    Manifest,
    check_arrays,
    check_path,
    check_whole,
    manifest_at,
    new_folder,
    write_manifest,
)
from .leaf_descriptions import (
    Description,
    check_same_leaves,
    describe,
    is_in_arrays,
    is_same_kind,
    like_stored,
    named_leaves,
    on_devices,
    optional,
    stored_names,
    to_array,
    zeros,
)
from .positions import encoded, read_positions, separated, write_positions
from .reading import raise_interrupt, read_values
from .stacked_leaves import left_over, shape_of_stored, sources

_BETWEEN_LOOKS = 2.0  # seconds
_LIMIT = 7 * 24 * 3600  # seconds for the arrays of one checkpoint; with Orbax's own 1,200, a slow disk is an error


def save(
    path: str | os.PathLike[str],
    node: Any,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Save the values of a graph to the folder ``path``, atomically.

    In a multi-process run, all processes call it, with a path on a shared file system. If each process has its own copy
    of an array, on its own devices, process 0 saves its copy: the copies must be equal.

    Args:
        path: the folder to create; its parents are created too.
        node: a module, variable or state, or a dict of several: ``{"model": model, "optimizer": optimizer}``. It may
            include data iterators with ``get_state`` and ``set_state``: their position is saved.
        step: a number that orders checkpoints; ``latest`` finds the highest.
        metrics: numbers and strings to store with it, by name.
        extra: any JSON data, by name; ``restore`` returns it in the manifest.
        overwrite: whether to replace a checkpoint at ``path``.

    Returns:
        The absolute path.

    Raises:
        CheckpointError: ``path`` exists, it cannot be written, or it has ``[...]``, which Orbax takes for a pattern.
        ArgumentTypeError: the graph has a value that a checkpoint cannot store; names its path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> path = plait.checkpoint.save("run/step-1", {"model": model}, step=1)
        >>> other = plait.Linear(2, 3, rngs=plait.Rngs(7))
        >>> plait.checkpoint.restore(path, {"model": other}).step
        1
        >>> bool((other.kernel[...] == model.kernel[...]).all())
        True
    """
    saving = Saving(path, node, step=step, metrics=metrics, extra=extra, overwrite=overwrite)
    with contextlib.closing(saving), written(saving.target):
        run_on_all(saving.arrive, may_wait=True)
        run_on_process_0(saving.finish)
    return saving.target


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise what fails meanwhile as an error of the checkpoint that is written.

    Raises:
        CheckpointError: instead of any other exception.
    """
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise_interrupt(error)
        raise CheckpointError(
            "a checkpoint could not be written",
            at=str(path),
            found=f"{type(error).__name__}: {text_of(error):.500}",  # TensorStore's may be of many thousand letters
            expected="a working disk with free space",
            do="earlier checkpoints are intact; free some space, and save again",
        ) from error


class Saving:
    """A checkpoint that is being written.

    The constructor copies everything from the objects, so they may change, or be donated, while the rest is written.
    Then ``arrive`` waits for the arrays, and ``finish``, which only process 0 calls, completes the checkpoint and
    moves it to its path. ``close`` removes an incomplete checkpoint.

    Args:
        path, node, step, metrics, extra, overwrite: as for ``save``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        node: Any,
        *,
        step: Any,
        metrics: Mapping[str, Any] | None,
        extra: Mapping[str, Any] | None,
        overwrite: bool,
    ) -> None:
        self.target = given_path(path).absolute()
        check_path(self.target)
        self._held = contextlib.ExitStack()
        self._checkpointer: Any = None
        self._arrays: dict[str, Any] = {}
        self._has_arrays = False
        self._positions: dict[str, Any] = {}
        try:
            run_on_all(lambda: self._copy(node, step, metrics or {}, extra or {}))
            self._draft = Path(
                run_on_process_0(lambda: str(self._held.enter_context(new_folder(self.target, overwrite=overwrite))))
            )
            self._folder = _identity(self._draft.parent)
            run_on_all(self._begin, may_wait=True)
        except BaseException:
            self._checkpointer = None  # it may wait for a process that has failed
            self.close()
            raise

    def _copy(self, node: Any, step: Any, metrics: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        step, metrics = _whole_number(step), _plain_metrics(metrics)
        values, leaves, extra, self._positions = described(node, extra)
        self.manifest = Manifest(step, metrics, leaves, extra, time.time())
        self._arrays = {name: to_array(values[name], name) for name, leaf in leaves.items() if is_in_arrays(leaf)}

    def _begin(self) -> None:
        with written(self.target):
            self._begin_to_write()

    def _begin_to_write(self) -> None:
        arrays, self._arrays = self._arrays, {}  # Orbax has its own copies
        if self._positions:
            write_positions(self._draft, self._positions)
        if arrays:
            checkpointer = _checkpointer(self._draft.parent.name)
            checkpointer.save(self._draft / ARRAYS, arrays)
            self._checkpointer, self._has_arrays = checkpointer, True

    def arrive(self) -> None:
        """Wait until all processes have written their arrays.

        Raises:
            CheckpointError: in process 0, the folder was moved or removed: TensorStore may wait for it without end.
        """
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is None:
            return
        if jax.process_index() > 0:  # process 0 waits for the others, and looks
            _wait_for(checkpointer)
            return
        waiting = _in_thread(_wait_for, checkpointer)
        while not wait([waiting], timeout=_BETWEEN_LOOKS).done:
            if _identity(self._draft.parent) != self._folder:
                raise CheckpointError(
                    "the folder of a checkpoint was moved or removed while it was written",
                    at=str(self.target),
                    found=f"no {self._draft.parent}, or another folder there",
                    expected="the folder, until the checkpoint is whole",
                    do="leave the folder of a run where it is until the run has ended",
                )
        waiting.result()

    def finish(self) -> None:
        """Write the manifest and move the folder to its path.

        Raises:
            CheckpointError: Orbax wrote no index of the arrays.
        """
        if self._has_arrays:
            check_arrays(self._draft, self.target)
        write_manifest(self._draft, self.manifest)
        self._held.close()

    def close(self) -> None:
        """Remove an incomplete checkpoint."""
        checkpointer, self._checkpointer = self._checkpointer, None
        with contextlib.ExitStack() as last:
            last.callback(self._held.pop_all().__exit__, NotWhole, NotWhole(), None)
            if checkpointer is not None:
                checkpointer.close()


class NotWhole(Exception):
    """Raised to abort writing a folder and remove it."""


def restore(path: str | os.PathLike[str], node: Any, *, partial: bool = False, cast: bool = False) -> Manifest:
    """Restore a checkpoint into the given objects, in place.

    The leaves must match exactly: same names, dtypes and shapes. Only what was sown need not be there, in the
    checkpoint or in the objects; and what ``eval_shape`` or a jitted step makes of a Python number or a 64-bit NumPy
    array, an array with a dtype of JAX, may be stored for it, or it for that: then the objects get what is stored.
    Metrics and averages are also read from checkpoints of earlier versions, which have no ``Remainder``s.
    Arrays get the sharding of those that they replace; they may have been saved with any sharding and number of
    processes. Everything is read before any object changes. In a multi-process run, all processes call it.

    Args:
        path: a folder that ``save`` wrote.
        node: the saved objects, or others with the same structure; shapes without values get values. A state, such as
            ``plait.state(model)``, is detached: it gets the values, but the model does not. To restore a part of a
            model in place, pass ``plait.variables(model, filter)`` and ``partial=True``. Saved iterators are set to
            their positions, after all values.
        partial: whether to skip leaves of the checkpoint that ``node`` lacks, such as those of the optimizer.
        cast: whether floats and complex numbers may be stored with a different dtype; they get the dtype of ``node``.

    Returns:
        The manifest, with the saved ``step``, ``metrics`` and ``extra``.

    Raises:
        CheckpointError: the folder is not an intact checkpoint, or does not match; names the paths that differ.
        ArgumentError: a shape without values has a sharding that does not divide it, or one on an abstract mesh that is
            not the current one; names the path.
        GraphError: an array is in an immutable container, such as a tuple, and cannot be replaced.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)
        >>> path = plait.checkpoint.save("run/whole", {"model": model, "optimizer": optimizer})
        >>> half = plait.Linear(2, 3, param_dtype=jnp.bfloat16, rngs=plait.Rngs(1))
        >>> _ = plait.checkpoint.restore(path, {"model": half}, partial=True, cast=True)
        >>> half.kernel.dtype.name, bool((half.kernel[...] == model.kernel[...].astype(jnp.bfloat16)).all())
        ('bfloat16', True)
    """
    return read_into(given_path(path).absolute(), node, partial=partial, cast=cast)


def check_whole_together(source: Path) -> None:
    """Check every file against the manifest; each process reads its part of them.

    Raises:
        CheckpointError: on all processes, if the checkpoint is not intact.
    """
    part = (jax.process_index(), jax.process_count())
    run_on_all(lambda: check_whole(source, part=part))


def read_into(source: Path, node: Any, *, partial: bool, cast: bool, is_whole: bool = False) -> Manifest:
    """The implementation of ``restore``; ``is_whole`` means that the files were already compared with the manifest."""
    manifest = manifest_at(source)
    node, iterators = separated(node)
    values, kinds, state_of = named_leaves(node)
    own = {name: describe(value, name) for name, value in values.items()}
    stored = manifest.leaves
    for name, kind in kinds.items():
        if name in stored and stored[name].get("dtype") == getattr(kind, "earlier_dtype", None) is not None:
            own[name] = {**own[name], "dtype": kind.earlier_dtype}
    # Where the checkpoint does not have the same, the objects keep what was sown, which is of one call, and remainders
    # are 0.
    other = {
        name for name in optional(kinds) if name not in stored or not is_same_kind(stored[name], own[name], cast=cast)
    }
    kept = {name: values.pop(name) for name in other}
    kept |= {name: zeros(value, name) for name, value in kept.items() if issubclass(kinds[name], Remainder)}
    own = {name: own[name] for name in values}
    stored = {name: leaf for name, leaf in stored.items() if name in values or "sown" not in leaf}
    stored_as = stored_names(node, values, stored)
    layers = sources((name for name in values if name not in stored_as), stored)
    leaves = {name: stored[each] for name, each in stored_as.items()}
    leaves |= {name: source.description(stored) for name, source in layers.items()}
    if not partial:
        used = {*stored_as.values(), *(each for source in layers.values() for each, _ in source.layers)}
        leaves |= {name: leaf for name, leaf in stored.items() if name not in used}
        leaves |= left_over(layers.values(), stored)
    check_same_leaves(leaves, own, at=str(source), cast=cast)  # before any array is read
    if not is_whole:
        check_whole_together(source)
    positions = read_positions(source, iterators, partial=partial)
    values = {name: on_devices(like_stored(value, leaves[name], cast=cast), name) for name, value in values.items()}
    likes = {
        each: shape_of_stored(values[name], source, each, stored[each])
        for name, source in layers.items()
        for each in dict(source.layers)
    }
    likes |= {each: values[name] for name, each in stored_as.items()}
    found = read_values(source, {each: stored[each] for each in likes}, likes)
    restored = {
        name: layers[name].put_together(found, values[name]) if name in layers else found[stored_as[name]]
        for name in leaves
    }
    update(node, state_of(restored | kept))
    for name, position in positions.items():
        iterators[name].set_state(position)
    return manifest


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from a later one at the same path, as for TensorStore; ``None`` if there is no folder."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _wait_for(checkpointer: Any) -> None:
    with contextlib.closing(checkpointer):
        checkpointer.wait_until_finished()


def _in_thread(act: Callable[..., None], *arguments: Any) -> Future[None]:
    """Act in a thread that the end of the program does not wait for."""
    outcome: Future[None] = Future()

    def attempt() -> None:
        try:
            outcome.set_result(act(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=attempt, daemon=True, name="plait waits for Orbax").start()
    return outcome


def _checkpointer(draft: str) -> Any:
    import orbax.checkpoint as ocp

    many = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1:
        # With the processes named, Orbax waits for them without a device: one may be stuck in a step. If this save
        # fails in one of them, others may be left behind where they wait: the next save must not meet them there.
        everyone = set(range(jax.process_count()))
        many = ocp.options.MultiprocessingOptions(active_processes=everyone, barrier_sync_key_prefix=f"plait{draft}")
    # Compression takes most of the time of a save and of a restore. It would save a twelfth of the space of float32
    # weights, and a quarter of that of bfloat16.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=many)
    patient = ocp.options.AsyncOptions(timeout_secs=_LIMIT)
    return ocp.AsyncCheckpointer(handler, async_options=patient, multiprocessing_options=many)


def _whole_number(step: Any) -> int | None:
    if step is None or (isinstance(step, int) and not isinstance(step, bool)):
        return step
    if getattr(step, "shape", None) == () and np.issubdtype(np.asarray(step).dtype, np.integer):
        return int(step)
    raise ArgumentTypeError(
        "the step of a checkpoint is a whole number",
        found=f"{step!r:.80} of type {type(step).__name__}",
        expected="an int, or None",
        do="save(path, model, step=epoch)",
    )


def described(
    node: Any, extra: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Description], dict[str, Any], dict[str, Any]]:
    """What ``save`` stores of an object or a dict of objects: values, their descriptions, extra data, and positions.

    Raises:
        ArgumentTypeError: a part of them cannot be saved.
    """
    node, iterators = separated(node)
    values, kinds, _ = named_leaves(node)
    leaves: dict[str, Description] = {name: describe(value, name) for name, value in values.items()}
    for name in optional(kinds):
        leaves[name] = {**leaves[name], "sown": True}
    return values, leaves, plain_extra(extra), encoded(iterators)


def plain_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the user's extra data, as it is now: the file may be written later.

    Raises:
        ArgumentTypeError: it does not survive a JSON round trip.
    """
    plain: dict[str, Any] = {}
    for name, value in extra.items():
        try:
            plain[name] = json.loads(json.dumps(value))
            same = isinstance(name, str) and plain[name] == value and fits(plain[name], Any)
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            raise ArgumentTypeError(
                "a checkpoint cannot store this extra data",
                at=f"extra[{name!r}]",
                found=f"{value!r:.80} of type {type(value).__name__}",
                expected="JSON data, up to 100 levels: finite numbers, strings, None, lists, and dicts of strings",
                do="convert it to such data; arrays belong in the objects: plait.Variable(array)",
            )
    return plain


def _plain_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in metrics.items():
        if getattr(value, "shape", None) == ():
            value = value.item()
        if not isinstance(name, str) or not isinstance(value, (bool, int, float, str, type(None))):
            raise ArgumentTypeError(
                "the metrics of a checkpoint are numbers and strings by name",
                at=f"metrics[{name!r}]",
                found=f"{value!r:.80} of type {type(value).__name__}",
                expected="a bool, int, float, str or None under a string",
                do="save(path, model, metrics={'loss': float(loss)})",
            )
        plain[name] = value
    return plain
