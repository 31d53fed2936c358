"""``plait.cache``: JAX's compilation cache, for every program, in a folder that only the user can write to.

``PLAIT_CACHE=folder`` calls it while plait is imported (``inspect/hooks.py``), before anything is compiled.
"""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from ..errors import MissingDependencyError, ProgramCacheError

_FOLDER, _LIMIT = "jax_compilation_cache_dir", "jax_compilation_cache_max_size"
_EVERY_PROGRAM = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}
_before: dict[str, Any] = {}  # JAX's settings as they were when the first folder was named


def cache(folder: str | os.PathLike[str] | None, *, limit: int | None = None) -> None:
    """Keep every program that is compiled from now on in a folder, where later processes find it.

    This is JAX's compilation cache, for programs of any size and compile time. A later process traces its functions as
    before, but XLA compiles only what has changed. ``PLAIT_CACHE=folder`` in the environment does the same without a
    change of the program.

    Args:
        folder: created if needed, for you alone. A program is machine code: whoever can write to the folder can run
            code in your processes. ``None`` gives JAX back the settings that it had before.
        limit: the maximum size of the folder in bytes; JAX removes the least recently used programs. This needs the
            package ``filelock``. ``None`` leaves JAX's own setting, which is no limit.

    Raises:
        ProgramCacheError: the folder cannot be created; or it, or something in it, belongs to another user, or can be
            written by others.
        MissingDependencyError: ``limit`` without ``filelock``.

    Example:
        >>> plait.cache("programs")
        >>> float(plait.jit(lambda x: 2 * x)(1.0))
        2.0
        >>> plait.cache(None)
    """
    wanted: dict[str, Any] = {}
    if folder is not None:
        if limit is not None and importlib.util.find_spec("filelock") is None:  # JAX would keep nothing, without a word
            raise MissingDependencyError(
                "a limit of plait.cache needs the package filelock", found="no such package", do="pip install filelock"
            )
        wanted = {_FOLDER: str(_checked(folder)), **_EVERY_PROGRAM, **({} if limit is None else {_LIMIT: limit})}
    for name in (_FOLDER, _LIMIT, *_EVERY_PROGRAM):
        before = _before.setdefault(name, getattr(jax.config, name))
        jax.config.update(name, wanted.get(name, before))
    if folder is None:
        _before.clear()
    compilation_cache.reset_cache()  # JAX asks for the folder when it first compiles, and not again


def _checked(given: str | os.PathLike[str]) -> Path:
    """The folder, which now exists. The user answers for every program in it.

    Raises:
        ProgramCacheError: see ``cache``.
    """
    folder = Path(given).expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
    except OSError as error:
        raise _refused(folder, error.strerror or str(error)) from error
    if os.name == "nt":  # the mode does not show who can write there
        return folder
    for parent in folder.parents:
        is_sticky = parent.stat().st_mode & stat.S_ISVTX  # there, nobody can replace what others made
        _check(str(parent), 0 if is_sticky else stat.S_IWOTH)
    others = stat.S_IWGRP | stat.S_IWOTH
    _check(str(folder), others)
    is_open = folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)  # if not, nobody else reaches what is in it
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            _check(os.path.join(place, name), others if is_open else 0)
    return folder


def _check(path: str, others: int) -> None:
    """Raise if a file or folder belongs to another user, or has one of these bits of a mode, which let others write.

    Raises:
        ProgramCacheError: names it.
    """
    try:
        status = os.lstat(path)
    except FileNotFoundError:  # another process has removed it since
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"it belongs to another user ({status.st_uid})")
    if stat.S_ISLNK(status.st_mode):
        raise _refused(path, "a symbolic link")
    if status.st_mode & others:
        raise _refused(path, f"others can write to it (mode {stat.S_IMODE(status.st_mode):04o})")


def _refused(path: str | Path, found: str) -> ProgramCacheError:
    return ProgramCacheError(
        "plait.cache cannot use the folder",
        at=str(path),
        found=found,
        expected="a folder in which nobody else can put programs: they would run in your processes",
        do="name a new folder in your home directory, in plait.cache or PLAIT_CACHE; plait makes it for you alone",
    )
