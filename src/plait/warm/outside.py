"""What a trace reads from outside the program: files, the clock, the environment, random numbers.

A program with such a value as a constant would be stale in a later process. Reads by names in the user's code are found
in its bytecode (``reads.py``). Reads through a library, such as a file through ``numpy.load``, are found when they
happen: Python's profiler reports each call of a function written in C. Reads by JAX and plait themselves, by logging
and by imports do not count, since no value of the program comes from them.

Functions that reach any module, global or frame (``sys._getframe``, ``pickle.loads``) and those that run code in other
threads are found in the same way: what is read through them has no name in the bytecode. (rule W4)
"""

from __future__ import annotations

import _pickle  # type: ignore[import-not-found]
import _socket  # type: ignore[import-not-found]
import _thread
import builtins
import datetime
import functools
import gc
import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import linecache
import logging
import os
import pickle
import pkgutil
import platform
import random
import runpy
import socket
import sys
import tempfile
import threading
import time
import types
import typing
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from types import BuiltinFunctionType
from typing import Any

import jax.numpy as jnp
import numpy as np

from .origins import Origin, is_own, origin_of

_SYSTEM = sys.modules[os.name if os.name in sys.modules else "posix"]  # the module that defines the functions of os
_HARMLESS = frozenset({"fspath", "_path_normpath", "_path_splitroot"})


def _functions_of(module: Any) -> list[BuiltinFunctionType]:
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, BuiltinFunctionType) and name not in _HARMLESS
        if (value.__module__ or module.__name__) == module.__name__  # defined there, not imported
    ]


# Functions in C whose results may differ in another process.
ASKING: frozenset[Any] = frozenset({
    *_functions_of(_SYSTEM), *_functions_of(time), *_functions_of(random), *_functions_of(_socket),
    io.open, io.open_code, np.fromfile,
    datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today,
})  # fmt: skip


def _codes(functions: Iterable[Any]) -> dict[int, str]:
    """The identity of the code of functions (hashing code is slow) → their names."""
    return {id(function.__code__): f"{function.__module__}.{function.__qualname__}" for function in functions}


# The same, in Python.
ASKING_CODE: dict[int, str] = {
    id(os.getenv.__code__): "os.getenv",
    id(type(os.environ).__getitem__.__code__): "os.environ",
    id(jnp.load.__code__): "jax.numpy.load",
    id(importlib.machinery.SourceFileLoader.get_data.__code__): "the data of a package",
    **_codes([pkgutil.get_data, platform.node, socket.socket.__init__, random.Random.seed]),
}

# Functions that reach values without naming them, or run code where it cannot be seen. The first ones count wherever
# the program calls them, the others only if the user's own code does.
_RUNNING = frozenset({
    _thread.start_new_thread, getattr(_thread, "start_joinable_thread", _thread.start_new_thread),
    _pickle.loads, _pickle.load, gc.get_objects, gc.get_referrers,
})  # fmt: skip
_REACHING = frozenset({
    sys._getframe, sys._current_frames, builtins.globals, builtins.eval, builtins.exec, builtins.__import__,
    sys.setprofile, sys.getrecursionlimit,
    *(getattr(_SYSTEM, name) for name in ("get_terminal_size", "getpid", "cpu_count")),  # libraries log these
})  # fmt: skip
_RUNNING_CODE = _codes([ThreadPoolExecutor.submit, threading.Thread.start, pickle._loads])  # type: ignore[attr-defined]
_REACHING_CODE = _codes([
    inspect.currentframe, inspect.stack, inspect.trace, inspect.getmodule, inspect.getsource, inspect.getsourcelines,
    inspect.findsource, inspect.getdoc, inspect.getcomments, inspect.getclosurevars, inspect.get_annotations,
    inspect.signature, inspect.getfullargspec, linecache.getline, linecache.getlines, tempfile.gettempdir,
    importlib.util.find_spec, importlib.reload, importlib.util.module_from_spec, runpy.run_path, runpy.run_module,
    typing.get_type_hints, getattr(types, "get_original_bases", typing.get_type_hints),
])  # fmt: skip
# Functions in C that differ from process to process, if the user's own code calls them: libraries make keys of these.
_OF_THE_PROCESS = frozenset({builtins.id, builtins.hash, _thread.get_ident, _thread.get_native_id})
_IMPORTS = id(importlib.import_module.__code__)
_LOGGERS = id(logging.getLogger.__code__)
_LEVELS = frozenset({"level", "disabled", "isEnabledFor", "getEffectiveLevel"})
_CODE = {**ASKING_CODE, **_RUNNING_CODE, **_REACHING_CODE, _IMPORTS: "an import", _LOGGERS: "a logger"}
IN_C = ASKING | _RUNNING | _REACHING | _OF_THE_PROCESS
_CLOCKS = frozenset({"now", "utcnow", "today"})

# Attributes through which code reaches globals, frames, classes and texts that no description covers.
REACHING_ATTRIBUTES = frozenset({
    "__globals__", "f_globals", "f_locals", "f_builtins", "f_back", "gi_frame", "cr_frame", "tb_frame",
    "__subclasses__", "__annotations__", "__doc__", "__builtins__", "__loader__", "__spec__", "__orig_bases__",
})  # fmt: skip
# Names of standard modules, the same.
REACHING_NAMES = frozenset({
    ("sys", "modules"), ("sys", "_getframe"), ("sys", "_current_frames"), ("io", "FileIO"), ("_io", "FileIO"),
    ("pickle", "loads"), ("pickle", "load"), ("pickle", "Unpickler"), ("gc", "get_objects"), ("gc", "get_referrers"),
})  # fmt: skip

# What a function with cached results may have read before the trace, when nothing was reported.
_READING_MODULES = frozenset({
    "pathlib", "_io", "io", "os", "json", "pickle", "csv", "glob", "shutil", "tempfile", "datetime", "urllib", "http",
    "sqlite3", "configparser", "tomllib", "platform", "locale", "getpass", "zipfile", "gzip", "bz2", "lzma",
    "linecache", "pkgutil", "importlib",
})  # fmt: skip
_READING = frozenset({id(each) for each in (np.load, np.loadtxt, np.genfromtxt, np.fromfile, np.memmap, jnp.load)})
_CALCULATING = frozenset({"flax", "optax", "einops", "chex", "jaxtyping"})


def refusal_of_cached(module: str, name: str, value: Any) -> str | None:
    """Why a program that uses a kept result cannot be stored, if the function that made it uses this value.

    Args:
        module, name: where the function finds the value.
    """
    own = str(getattr(value, "__module__", None) or module)
    top = own.partition(".")[0]
    is_package = origin_of(own) is Origin.PACKAGE and not is_own(own) and top not in _CALCULATING
    if not (id(value) in _READING or top in _READING_MODULES or is_package):
        return None
    return f"a function with cached results uses {module}.{name}, and what that read before the trace was not seen"


# Modules in which nothing of the program is computed; of importlib, only what imports.
_NO_PROGRAM = frozenset({
    "logging", "warnings", "linecache", "traceback", "tokenize", "_frozen_importlib", "_frozen_importlib_external",
})  # fmt: skip
_IMPORTING = frozenset({
    "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "importlib.util", "importlib.machinery",
})  # fmt: skip


def refusal_in_c(frame: Any, function: Any) -> str | None:
    """Why a program that calls a function written in C cannot be stored, if so.

    Args:
        frame: the frame of the caller.
    """
    if function in _OF_THE_PROCESS:  # a method for hashing makes no value of the program
        counts = _is_users(frame) and frame.f_code.co_name != "__hash__"
        return f"{_named(function)} gives a different result in each process" if counts else None
    if function in IN_C:
        return _refusal(_named(function), function in ASKING, function in _REACHING, frame)
    owner = getattr(function, "__self__", None)
    if type(owner) is io.FileIO and function.__name__.startswith("read"):
        return _refusal("io.FileIO", True, False, frame)
    if isinstance(owner, type) and issubclass(owner, datetime.date) and function.__name__ in _CLOCKS:  # of a subclass
        return _refusal(_named(function), True, False, frame)
    return None


def _named(function: Any) -> str:
    return f"{function.__module__ or function.__self__.__module__}.{function.__qualname__}"


def is_refused_code(code: Any) -> bool:
    """Whether a call of a function with this code may be a reason not to store the program."""
    return id(code) in _CODE


def refusal_in_python(frame: Any) -> str | None:
    """The same, for a function written in Python, which was just entered."""
    code, caller = id(frame.f_code), frame.f_back
    if code not in _CODE or caller is None:
        return None
    if code == _LOGGERS:
        asks = _is_users(caller) and not _LEVELS.isdisjoint(caller.f_code.co_names)
        return "the level of a logger is asked for, which any part of a program may change" if asks else None
    if code == _IMPORTS:
        module = importlib.util.resolve_name(frame.f_locals["name"], frame.f_locals["package"])
        return _UNSEEN.format("importlib.import_module") if origin_of(module) is Origin.USER else None
    return _refusal(_CODE[code], code in ASKING_CODE, code in _REACHING_CODE, caller)


def _refusal(name: str, is_asking: bool, is_reaching: bool, caller: Any) -> str | None:
    """Why a program with this call cannot be stored; what only reaches other values counts in the user's own code."""
    counts = _is_users(caller) if is_reaching else asks_for_the_program(caller)
    return (_VARIES if is_asking else _UNSEEN).format(name) if counts else None


_VARIES = "{} gives a different result in each call"
_UNSEEN = "{} is called, and what is read through it cannot be seen"


def _is_users(frame: Any) -> bool:
    """Whether a frame runs a function of the user's; the code of a module runs only when it is imported."""
    return frame.f_code.co_name != "<module>" and origin_of(frame.f_globals.get("__name__")) is Origin.USER


@functools.lru_cache(maxsize=4096)
def never_asks(module: str | None) -> bool:
    """Whether the code of a module is JAX's or plait's, whose own calls do not count."""
    return str(module).partition(".")[0] in ("jax", "jaxlib", __name__.partition(".")[0])


def asks_for_the_program(frame: Any) -> bool:
    """Whether the call comes from the user's code or a package, directly or through Python's library and NumPy.

    Args:
        frame: the frame of the caller.
    """
    if only_listens(frame):
        return False
    found = False
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        top = module.partition(".")[0]
        if top in _NO_PROGRAM or module in _IMPORTING:
            return False
        if never_asks(module):
            return found
        found = found or origin_of(module) is not Origin.VERSION
        frame = frame.f_back
    return found


_LISTENING = ("jax._src.monitoring", "logging", f"{__name__.partition('.')[0]}.inspect.retrace")


def only_listens(frame: Any) -> bool:
    """Whether code is independent of the trace: a listener of JAX's events or of traces, a handler of log records, a
    finalizer."""
    collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or any(code is each for each in collecting):
            return True
        if frame.f_globals.get("__name__") in _LISTENING:
            return True
        frame = frame.f_back
    return False
