"""What a trace reads from outside the program: files, the clock, the environment, random numbers.

A program with such a value as a constant would be stale in a later process. Reads by names in the user's code are found
in its bytecode (``reads.py``). Reads through a library, such as a file through ``numpy.load``, are found when they
happen: Python's profiler reports each call of a function written in C. Reads by JAX and plait themselves, by logging
and by imports do not count, since no value of the program comes from them. (rule W4)
"""

from __future__ import annotations

import datetime
import gc
import io
import os
import random
import sys
import time
from types import BuiltinFunctionType
from typing import Any

import jax.numpy as jnp
import numpy as np

from .descriptions import Origin, origin_of

_SYSTEM = sys.modules[os.name if os.name in sys.modules else "posix"]  # the module that defines the functions of os
_HARMLESS = frozenset({"fspath", "_path_normpath", "_path_splitroot", "get_terminal_size", "getpid", "cpu_count"})


def _functions_of(module: Any) -> list[BuiltinFunctionType]:
    return [
        value
        for name, value in vars(module).items()
        if isinstance(value, BuiltinFunctionType) and name not in _HARMLESS
        if (value.__module__ or module.__name__) == module.__name__  # defined there, not imported
    ]


# Functions in C whose results may differ in another process.
ASKING: frozenset[Any] = frozenset({
    *_functions_of(_SYSTEM), *_functions_of(time), *_functions_of(random),
    io.open, np.fromfile,
    datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today,
})  # fmt: skip

# The same, in Python: the identity of the code (hashing code is slow) → its name.
ASKING_CODE: dict[int, str] = {
    id(os.getenv.__code__): "os.getenv",
    id(type(os.environ).__getitem__.__code__): "os.environ",
    id(jnp.load.__code__): "jax.numpy.load",
}

_NO_PROGRAM = frozenset({
    "logging", "warnings", "linecache", "traceback", "tokenize", "importlib", "_frozen_importlib",
    "_frozen_importlib_external",
})  # fmt: skip


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
        if top in _NO_PROGRAM:
            return False
        if top in ("jax", "jaxlib") or top == __name__.partition(".")[0]:
            return found
        found = found or origin_of(module) is not Origin.VERSION
        frame = frame.f_back
    return found


def only_listens(frame: Any) -> bool:
    """Whether code is independent of the trace: a listener of JAX's events, a handler of log records, a finalizer."""
    collecting = [getattr(callback, "__code__", None) for callback in gc.callbacks]
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__del__" or any(code is each for each in collecting):
            return True
        if frame.f_globals.get("__name__") in ("jax._src.monitoring", "logging"):
            return True
        frame = frame.f_back
    return False


def name_of_asking(function: Any) -> str:
    """The name of a function for error messages."""
    return f"{function.__module__ or function.__self__.__module__}.{function.__qualname__}"
