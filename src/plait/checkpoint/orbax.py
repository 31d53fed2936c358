"""Save and restore through Orbax, which writes arrays of any size and sharding in parallel.

``layout.py`` says what surrounds Orbax's folder, ``leaves.py`` what a leaf is called. Where several processes make up
one run, all of them call ``save`` and ``restore``: each writes and reads the parts of arrays that its devices hold, and
process 0 does the rest for all.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.functional.calls import update
from ..errors import ArgumentTypeError
from .layout import ARRAYS, Manifest, check_whole, manifest_of, new_folder, read_manifest_text, write_manifest
from .leaves import (
    check_same_leaves,
    describe,
    from_array,
    is_in_arrays,
    named_leaves,
    stored_names,
    to_array,
    to_target,
)
from .together import on_first


def save(
    path: str | os.PathLike[str],
    node: Any,
    *,
    step: int | None = None,
    metrics: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the values of a graph to the folder ``path``, whole or not at all.

    In a run of several processes all of them call it, with a path that all of them see. An array that lies on the
    devices of one process only is taken from process 0: it is to be the same on all.

    Args:
        path: the folder to be made; its parents are made too.
        node: a module, variable or state, or a dict of several: ``{"model": model, "optimizer": optimizer}``.
        step: a number that orders checkpoints; ``latest`` finds the highest.
        metrics: numbers and strings to be kept with it, by name.
        overwrite: whether a checkpoint at ``path`` is replaced.

    Returns:
        The absolute path.

    Raises:
        CheckpointError: there is something at ``path``, or it cannot be written.
        ArgumentTypeError: the graph has a value that a checkpoint cannot hold; the message has its path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> path = plait.checkpoint.save("run/step-1", {"model": model}, step=1)
        >>> other = plait.Linear(2, 3, rngs=plait.Rngs(7))
        >>> plait.checkpoint.restore(path, {"model": other}).step
        1
        >>> bool((other.kernel[...] == model.kernel[...]).all())
        True
    """
    target = Path(path).absolute()
    values, _ = named_leaves(node)
    leaves = {name: describe(value, name) for name, value in values.items()}
    manifest = Manifest(_whole_number(step), _plain_metrics(metrics or {}), leaves)
    arrays = {name: to_array(values[name], name) for name, leaf in leaves.items() if is_in_arrays(leaf)}
    with contextlib.ExitStack() as held:

        def begin() -> str:
            return str(held.enter_context(new_folder(target, overwrite=overwrite)))

        def finish() -> str:
            write_manifest(draft, manifest)
            held.close()  # moves the folder to its place
            return ""

        draft = Path(on_first(begin))
        if arrays:
            with _checkpointer() as checkpointer:
                checkpointer.save(draft / ARRAYS, arrays)
        on_first(finish)
    return target


def restore(path: str | os.PathLike[str], node: Any, *, partial: bool = False, cast: bool = False) -> Manifest:
    """Read a checkpoint into the given objects, in place.

    Every leaf must be there with the same name, dtype and shape, and nothing else; arrays get the sharding of those
    that they replace, whatever sharding they were saved with, on however many processes. Everything is read before
    anything is changed. In a run of several processes all of them call it.

    Args:
        path: a folder that ``save`` wrote.
        node: what was saved, or something of the same structure; shapes without values get values. A state, such as
            ``plait.state(model)``, is detached: then it has the values, and the model does not. To restore a part of a
            model in place, give ``plait.variables(model, filter)`` and ``partial=True``.
        partial: whether to pass over leaves of the checkpoint that ``node`` lacks, such as those of the optimizer.
        cast: whether floats and complex numbers may be stored with another dtype; they get that of ``node``.

    Returns:
        The manifest, with the ``step`` and ``metrics`` that were saved.

    Raises:
        CheckpointError: the folder is no whole checkpoint, or does not fit; the message names the paths that differ.
        ArgumentError: a shape without values has a sharding that cannot cut it; the message names the path.
        GraphError: an array lies in an immutable container, such as a tuple, where it cannot be replaced.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.adam(1e-3), wrt=plait.Param)
        >>> path = plait.checkpoint.save("run/whole", {"model": model, "optimizer": optimizer})
        >>> half = plait.Linear(2, 3, param_dtype=jnp.bfloat16, rngs=plait.Rngs(1))
        >>> _ = plait.checkpoint.restore(path, {"model": half}, partial=True, cast=True)
        >>> half.kernel.dtype.name, bool((half.kernel[...] == model.kernel[...].astype(jnp.bfloat16)).all())
        ('bfloat16', True)
    """
    source = Path(path).absolute()

    def check() -> str:
        check_whole(source)
        return ""

    on_first(check)  # it is enough that one process reads every file once more
    manifest = manifest_of(read_manifest_text(source))
    values, state_of = named_leaves(node)
    stored_as = stored_names(node, values, manifest.leaves)
    leaves = {name: manifest.leaves[stored] for name, stored in stored_as.items()}
    if not partial:
        used = set(stored_as.values())
        leaves |= {name: leaf for name, leaf in manifest.leaves.items() if name not in used}
    own = {name: describe(value, name) for name, value in values.items()}
    check_same_leaves(leaves, own, at=str(source), cast=cast)
    in_arrays = [name for name, leaf in leaves.items() if is_in_arrays(leaf)]
    targets = {stored_as[name]: to_target(values[name], name) for name in in_arrays}
    arrays = {}
    if targets:
        arrays = _read(source / ARRAYS, targets)
    restored = {name: from_array(arrays.get(stored_as[name]), leaf, values[name]) for name, leaf in leaves.items()}
    update(node, state_of(restored))
    return manifest


def _checkpointer() -> Any:
    import orbax.checkpoint

    return orbax.checkpoint.StandardCheckpointer()


def _read(path: Path, targets: Mapping[str, Any]) -> Mapping[str, Any]:
    """These of the arrays that are stored, each with the sharding and dtype of its target."""
    import orbax.checkpoint as ocp

    arguments = ocp.checkpoint_utils.construct_restore_args(targets)
    wanted = ocp.args.PyTreeRestore(item=targets, restore_args=arguments, partial_restore=True)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(path, args=wanted)


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
