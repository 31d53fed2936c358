"""What an installed package computes in this process: its code in memory, and the settings that its code reads.

A program may replace both: ``library.FLAG = True``, ``library.config.rate = 2.0``, ``library.helper = my_helper``. The
code of each module that was entered is compared as a whole. Of what it reads, plain values are compared, and what
belongs to the user; everything else is made by the package itself, whose files are compared (``sources.py``). (rule W3)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from ..core.objects.named import Sentinel
from .codes import code_token, content_of, digest
from .descriptions import Describer
from .origins import Origin, contents_of, imported, is_own, is_users, origin_of
from .values import PLAIN, held_by, is_plain

Setting = tuple[str, ...]  # a module, and the attributes that lead to a value

_ABSENT: Any = Sentinel(__name__, "_ABSENT", "<absent>")


def setting_of(names: Setting, describer: Describer) -> tuple[Setting, str | None]:
    """The first setting on the way from a module by attributes, and its description; ``None`` if there is none.

    Raises:
        Unrecordable: a value of the user's that cannot be described.
    """
    value: Any = sys.modules.get(names[0])
    is_compared, module = False, None  # plait's settings are compared by themselves, and so are JAX's
    for i, name in enumerate(names[1:], 2):
        if isinstance(value, ModuleType):
            module = contents_of(value).get("__name__")
            is_compared = not is_own(module) and origin_of(module) is not Origin.VERSION
        else:
            module = None
        value = _attribute(value, name)
        users = [("", value)] if is_users(value) or type(value) is functools.partial else [*_users_functions(value)]
        if users or (is_compared and is_plain(value)):
            return names[:i], describer.token(users or value, ".".join(names[:i]))
        if isinstance(module, str) and origin_of(module) is Origin.VERSION and _is_function(value):
            return (module, name), f"{type(value).__name__}:{value.__module__}:{getattr(value, '__qualname__', '')}"
    return names, None


def _is_function(value: Any) -> bool:
    """Whether a value of JAX or NumPy is a function; a program may replace it."""
    return callable(value) and not isinstance(value, type) and isinstance(getattr(value, "__qualname__", None), str)


def _attribute(value: Any, name: str) -> Any:
    """An attribute, without running code of the value."""
    if isinstance(value, ModuleType):
        return contents_of(value).get(name, _ABSENT)
    return inspect.getattr_static(value, name, _ABSENT)


def _users_functions(value: Any) -> Iterator[tuple[str, FunctionType]]:
    """The functions of the user's in a table of a package; what else it contains may be a cache."""
    kind = type(value)
    if kind not in (dict, tuple, list):
        return
    copied = value.copy() if kind is dict else dict(enumerate(value))  # a finalizer may change it meanwhile
    for key, item in copied.items():
        if isinstance(item, FunctionType) and is_users(item):
            yield repr(key) if type(key) in PLAIN else type(key).__name__, item


def package_token(module: str) -> str:
    """The code of an installed module in memory."""
    try:
        found = imported(module)  # a trace may have been the first to need it
    except ImportError:
        return "absent"
    tokens = [str(getattr(sys.modules.get(module.partition(".")[0]), "__version__", ""))]
    for name, value in [*vars(found).items()]:
        if isinstance(value, (FunctionType, type)) and value.__module__ != module:  # imported, or assigned elsewhere
            tokens.append(f"{name}={value.__module__}:{value.__qualname__}")
        else:
            tokens += [f"{name}={_own_token(function)}" for function in _functions(value, module)]
            tokens += [f"{name}.{text}" for text in _constants(value)]
    return digest("package", tokens)


def _own_token(f: FunctionType) -> str:
    """The code of a function, with those of its defaults that are plain."""
    defaults = [*enumerate(f.__defaults__ or ()), *sorted((f.__kwdefaults__ or {}).items())]
    return code_token(f.__code__) + repr([item for item in defaults if type(item[1]) in PLAIN])


def _constants(value: Any) -> list[str]:
    """The plain attributes of a class: a program may set them."""
    items = sorted(vars(value).items()) if isinstance(value, type) else []
    return [f"{name}={item!r}" for name, item in items if type(item) in PLAIN and not name.startswith("__")]


def _functions(value: Any, module: str) -> Iterator[FunctionType]:
    """The functions reached from a value of a module: the value itself, the function that it wraps, or the methods of a
    class."""
    stack, seen = [value], set()
    while stack:
        each = stack.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, FunctionType):
            yield each
            stack.extend(cell for cell in map(content_of, each.__closure__ or ()) if isinstance(cell, FunctionType))
        elif isinstance(each, type):
            if each.__module__ == module:
                stack.extend(vars(each).values())
        elif held := held_by(each):
            stack += held
        elif callable(each) and not isinstance(each, ModuleType):
            with contextlib.suppress(Exception):  # what stands for a missing package may raise anything
                stack.append(getattr(each, "__wrapped__", None))
