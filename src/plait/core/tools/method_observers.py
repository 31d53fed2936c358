"""Observing the public methods of modules while a block runs.

The methods are replaced on the classes, since Python looks up ``__call__`` there, and restored when the last block that
observes a class ends. Calls on other objects of the class, or in other threads, are unaffected unless the observer
handles the object. The replacement of a method is created once and cached: JAX's caches have functions as keys, so they
need the same ``Block.__call__`` in each trace.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Generic

from ..objects.containers import Dict, List
from ..objects.module import Module


class MethodCall:
    """A pending call. Calling it runs it, through the other observers if there are any.

    Attributes:
        args, kwargs: the arguments of the method, without the module.
    """

    __slots__ = ("args", "kwargs", "run")

    def __init__(self, run: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs

    def __call__(self) -> Any:
        return self.run()


Observer = Callable[[Any, str, MethodCall], Any]
"""Takes a module, the name of its method and the call; returns the result of the call."""

NOT_OBSERVED: frozenset[Any] = frozenset({*Module.__mro__, *List.__mro__, *Dict.__mro__, Generic})
_ABSENT: Any = object()
_lock = threading.Lock()
# Class → (its observers, each with the number of blocks that use it; its original methods).
_observed: dict[type, tuple[dict[Observer, int], dict[str, Any]]] = {}
# Class → {name: (method, replacement)}. ``_replace_methods`` adds entries; an entry is removed when its class dies.
_replacements: weakref.WeakKeyDictionary[type, dict[str, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
_recording = 0  # the number of blocks that observe every call


def is_observing() -> bool:
    """Whether some block must observe every call now, so that cached traces must not be reused."""
    return _recording > 0


@contextlib.contextmanager
def observed_methods(
    modules: Iterable[Any], observer: Observer, *, records: bool = True, except_of: frozenset[Any] = NOT_OBSERVED
) -> Iterator[None]:
    """Inside the block, calls of public methods and of ``__call__`` of these modules go through ``observer``.

    So do calls on other objects of the same classes. An observer that is registered twice is called once.

    Args:
        modules: the modules to observe.
        observer: called with each call.
        records: whether it must observe every call, including calls inside functions that JAX has already traced.
        except_of: classes whose methods are not observed, such as the base class of all modules of a library.
    """
    global _recording
    classes = {type(module) for module in modules}
    with _lock:
        _recording += records
        for cls in classes:
            if cls not in _observed:
                observers: dict[Observer, int] = {}
                _observed[cls] = observers, _replace_methods(cls, except_of)
            observers = _observed[cls][0]
            observers[observer] = observers.get(observer, 0) + 1
    try:
        yield
    finally:
        with _lock:
            _recording -= records
            for cls in classes:
                observers, own = _observed[cls]
                observers[observer] -= 1
                if not observers[observer]:
                    del observers[observer]
                if not observers:
                    del _observed[cls]
                    _restore_methods(cls, own)


def _replace_methods(cls: type, except_of: frozenset[Any]) -> dict[str, Any]:
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base not in except_of:
            methods.update((n, f) for n, f in vars(base).items() if n == "__call__" or not n.startswith("_"))
    own = {}
    kept = _replacements.setdefault(cls, {})
    for name, method in methods.items():
        if _takes_self(method):
            own[name] = vars(cls).get(name, _ABSENT)
            if name not in kept or kept[name][0] is not method:
                kept[name] = method, _replacement(cls, name, method)
            setattr(cls, name, kept[name][1])
    return own


def _takes_self(method: Any) -> bool:
    """Whether this is a method, or method-like, such as the result of ``jit``."""
    if isinstance(method, FunctionType):
        return True
    return callable(method) and hasattr(method, "__get__") and not isinstance(method, type | staticmethod | classmethod)


def _replacement(cls: type, name: str, method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = MethodCall(functools.partial(method.__get__(self, cls), *args, **kwargs), args, kwargs)
        if type(self) is cls and cls in _observed:  # super() calls a method of a class that is not the object's own
            for observer in tuple(_observed[cls][0]):
                call = MethodCall(functools.partial(observer, self, name, call), args, kwargs)
        return call()

    return wrapper


def _restore_methods(cls: type, own: dict[str, Any]) -> None:
    for name, method in own.items():
        if method is _ABSENT:
            delattr(cls, name)
        else:
            setattr(cls, name, method)
