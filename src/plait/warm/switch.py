"""One folder for all that a process compiles: ``plait.cache(folder)``, or ``PLAIT_CACHE=folder``. (rules W13 to W16)

Programs of ``plait.jit`` are stored in it as with ``cache=``. What else JAX compiles (initialisers, single operations,
programs that cannot be stored) is kept in a subfolder by JAX's own cache on disk. One limit and one rule for both says
what is removed.

This file is imported with plait if ``PLAIT_CACHE`` is set, before JAX compiles anything; it loads the rest when the
first program is asked for. ``_there`` is what is in force; ``cache`` sets it, and it lives as long as the process.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  # which cannot be imported while Python ends
import contextlib
import functools
import os
import threading
from collections import Counter
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from .._compat import is_traced_afresh
from ..core import seams
from ..errors import ProgramCacheError
from .folder import DEFAULT_LIMIT, OF_JAX, Folder
from .logbook import Logbook

VARIABLE = "PLAIT_CACHE"
_DIRECTORY = "jax_compilation_cache_dir"
_KEEP_ALL = {  # JAX's own defaults, and what also keeps small programs
    "jax_persistent_cache_min_compile_time_secs": (1.0, 0.0),
    "jax_persistent_cache_min_entry_size_bytes": (0, -1),
}
_EVENTS = {
    "/jax/compilation_cache/compile_requests_use_cache": "asked",
    "/jax/compilation_cache/cache_hits": "hits",
    "/jax/compilation_cache/cache_misses": "misses",
}


class Place:
    """The folder that is in force.

    Attributes:
        folder: for the programs of ``plait.jit``; JAX's are in a subfolder.
        log: the report of this process.
        counts: JAX's programs: asked for, found, compiled.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.log = Logbook(folder.path)
        self.counts: Counter[str] = Counter()
        self._programs: Any = None
        self._ahead: Any = None
        self._once = threading.Lock()  # which the first thread that reads ahead keeps

    def programs(self) -> Any:
        """Where the programs of ``plait.jit`` are stored."""
        if self._programs is None:
            from ..observing import module_names  # noqa: F401  # not first in a trace, whose imports are recorded
            from .programs import Programs

            self._programs = Programs(self.folder.path, self.folder.limit, self.log, self._ahead)
        return self._programs

    def read_ahead(self) -> None:
        """Let a thread read the programs that the last process used; JAX has its devices now. (rule W17)"""
        if is_traced_afresh() or not self._once.acquire(blocking=False):  # what a recorded trace does counts
            return
        names = self.log.last_used()
        if names and self._programs is None:
            from .ahead import Ahead
            from .descriptions import Unrecordable

            with contextlib.suppress(Unrecordable, RuntimeError):  # no thread starts while Python ends
                self._ahead = Ahead(self.folder, names)

    def leave(self) -> None:
        """Write what JAX's cache did, and remove what is too much."""
        if self._ahead:
            self._ahead.drop()
        if self.counts:
            self.log.add("jax", counts=dict(self.counts))
            self.counts.clear()
            self.folder.trim()
            self.log.trim()


_there: Place | None = None
_set: dict[str, tuple[Any, Any]] = {}  # settings of JAX: before, and as they were set here


def cache(folder: str | os.PathLike[str] | None, *, limit: int = DEFAULT_LIMIT) -> None:
    """Keep everything that is compiled from now on in a folder, where later processes find it.

    Programs of ``plait.jit`` are stored as with its ``cache=``, without a word in the program: a later process neither
    traces nor compiles them. All else that JAX compiles, such as initialisers when a model is built, is kept by JAX's
    compilation cache in a subfolder. ``PLAIT_CACHE=folder`` in the environment does the same without a change of the
    program; ``plait cache FOLDER`` on the command line lists what is there, and what could not be stored and why.

    Call it at the top of a program. A later call changes to another folder: functions keep the programs that they have,
    and what is compiled after the call goes there. Functions jitted with their own ``cache=`` use that. If you have set
    ``jax_compilation_cache_dir`` yourself, JAX's programs stay there, and JAX's settings are left alone.

    Args:
        folder: created if needed. Whoever can write to it can run code in your processes, so it must belong to you.
            ``None``: nothing is kept from now on, also if ``PLAIT_CACHE`` is set.
        limit: the maximum size of the folder in bytes, JAX's programs included; the default is 10 GiB. The least
            recently used programs are removed, when a program is stored and when the process ends.

    Raises:
        ProgramCacheError: others can write to the folder, or it cannot be created.

    Example:
        >>> plait.cache("programs")
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.jit(lambda model, x: model(x))(model, jnp.ones((1, 2))).shape
        (1, 3)
        >>> plait.cache(None)
    """
    global _there
    place = None if folder is None else Place(_made(folder, limit))
    if _there is not None:
        _there.leave()
    if place is not None:
        _listen()
    _there = place
    seams.programs_in_force = None if place is None else place.programs
    _put_jax(place)


def _made(folder: str | os.PathLike[str], limit: int) -> Folder:
    """The folder, which now exists.

    Raises:
        ProgramCacheError: it cannot be created, or others can write to it.
    """
    given = Folder(os.path.expanduser(folder), limit)
    try:
        return given.made()
    except OSError as error:
        if isinstance(error, ProgramCacheError):
            raise
        raise ProgramCacheError(
            "plait.cache cannot use the folder",
            at=str(given.path),
            found=error.strerror or str(error),
            expected="a folder that can be created, or exists",
            do=f"name another one, in plait.cache or {VARIABLE}; plait.cache(None) keeps nothing",
        ) from error


def _put_jax(place: Place | None) -> None:
    """Let JAX keep its programs there, unless the user has told it where; ``None`` undoes what was set here."""
    current = getattr(jax.config, _DIRECTORY)
    ours = _set.get(_DIRECTORY)
    if current is not None and (ours is None or current != ours[1]):
        return
    wanted: dict[str, Any] = {}
    if place is not None:
        wanted[_DIRECTORY] = str(place.folder.path / OF_JAX)
        for name, (default, value) in _KEEP_ALL.items():
            if name.upper() not in os.environ and getattr(jax.config, name) in (default, value):
                wanted[name] = value
    for name in {*_set, *wanted}:
        now = getattr(jax.config, name)
        before, mine = _set.get(name, (now, now))
        if name in wanted:
            _set[name] = before, wanted[name]
            jax.config.update(name, wanted[name])
        else:
            del _set[name]
            if now == mine:
                jax.config.update(name, before)
    compilation_cache.reset_cache()  # JAX asks where it is when it first compiles, and never again


@functools.cache
def _listen() -> None:
    """Count from now on, until the process ends."""
    jax.monitoring.register_event_listener(_count)
    atexit.register(_at_exit)


def _count(event: str, **_: Any) -> None:
    if _there is not None and event in _EVENTS:
        _there.counts[_EVENTS[event]] += 1
        _there.read_ahead()


def _at_exit() -> None:
    if _there is not None:
        _there.leave()
