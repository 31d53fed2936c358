"""``plait.cache``: JAX's compilation cache, for every program, in a folder that only the user can enter.

``PLAIT_CACHE=folder`` calls it while plait is imported (``inspect/hooks.py``), before anything is compiled.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import stat
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from ..errors import ArgumentError, MissingDependencyError, ProgramCacheError
from .files import given_path, is_address

_FOLDER, _LIMIT = "jax_compilation_cache_dir", "jax_compilation_cache_max_size"
_EVERY_PROGRAM = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}
_before: dict[str, Any] = {}  # JAX's settings as they were when the first folder was named


def cache(folder: str | os.PathLike[str] | None, *, limit: int | None = None) -> None:
    """Keep every program that is compiled from now on in a folder, where later processes find it.

    This is JAX's compilation cache, for programs of any size and compile time. A later process traces its functions as
    before, but XLA compiles only what has changed. ``PLAIT_CACHE=folder`` in the environment does the same without a
    change of the program.

    Args:
        folder: created if needed, with mode 0700. A program is machine code: whoever can write to the folder can run
            code in your processes. ``None`` gives JAX back the settings that it had before.
        limit: the maximum size of the folder in bytes; JAX removes the least recently used programs. This needs the
            package ``filelock``. ``None`` leaves JAX's own setting, which is no limit.

    Raises:
        ProgramCacheError: the folder is not on this machine or cannot be created; its mode gives anything to its group
            or others; or it, or something in it, belongs to another user.
        ArgumentError: ``limit`` is not a whole number of bytes, 1 or more.
        MissingDependencyError: ``limit`` without ``filelock``.

    Example:
        >>> plait.cache("programs")
        >>> float(plait.jit(lambda x: 2 * x)(1.0))
        2.0
        >>> plait.cache(None)
    """
    if limit is not None and (not isinstance(limit, (int, np.integer)) or limit < 1):
        raise ArgumentError(
            "this is not a number of bytes",
            at="limit",
            found=repr(limit),
            expected="an integer of 1 or more, or None",
            do="for example limit=10 * 2**30",
        )
    wanted: dict[str, Any] = {}
    if folder is not None:
        if limit is not None and importlib.util.find_spec("filelock") is None:  # JAX would keep nothing, without a word
            raise MissingDependencyError(
                "a limit of plait.cache needs the package filelock", found="no such package", do="pip install filelock"
            )
        wanted = {_FOLDER: str(_checked(folder)), **_EVERY_PROGRAM, **({} if limit is None else {_LIMIT: int(limit)})}
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
    if is_address(given):
        do = f'jax.config.update("{_FOLDER}", "{os.fspath(given)}"), if you trust all who can write there'
        raise _refused(os.fspath(given), "a folder in a remote store, whose permissions plait cannot check", do)
    folder = given_path(given, ProgramCacheError).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        if os.name != "nt":  # there, the mode does not show who can write
            _check(folder)
    except OSError as error:
        raise _refused(folder, error.strerror or str(error)) from error
    return folder


def _check(folder: Path) -> None:
    for parent in folder.parents:
        mode = _mode_of(parent)
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:  # in a sticky folder nobody can replace what others made
            raise _refused(parent, f"others can write to it (mode {mode:04o})")
    mode = _mode_of(folder)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        do = f"chmod 700 {shlex.quote(str(folder))}"
        raise _refused(folder, f"its group or others have permissions (mode {mode:04o})", do)
    for place, folders, files in os.walk(folder):  # what others put here before the mode was 0700
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):  # another process has removed it since
                _mode_of(Path(place, name))


def _mode_of(path: Path) -> int:
    """The mode of a file or folder that belongs to the user or root, and is no symbolic link."""
    status = path.lstat()
    if status.st_uid not in (os.geteuid(), 0):
        raise _refused(path, f"it belongs to another user ({status.st_uid})")
    if stat.S_ISLNK(status.st_mode):
        raise _refused(path, "a symbolic link")
    return stat.S_IMODE(status.st_mode)


def _refused(
    path: str | Path,
    found: str,
    do: str = "name a new folder in your home directory, in plait.cache or PLAIT_CACHE; plait makes it for you alone",
) -> ProgramCacheError:
    return ProgramCacheError(
        "plait.cache cannot use the folder",
        at=str(path),
        found=found,
        expected="a folder in which nobody else can put programs: they would run in your processes",
        do=do,
    )
