"""Watching the public methods of modules while a block runs, without editing their classes.

The methods are replaced on the classes, since that is where Python looks up ``__call__``, and restored when the last
block that watches a class ends. Calls on other objects of the class, or in other threads, are unaffected unless the
observer knows the object. What replaces a method is made once and kept, so that JAX's
caches, whose keys are functions, find ``Block.__call__`` in one trace as in the one before.
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
    """A call that is about to run. Calling it runs it, through the other observers if there are any.

    Attributes:
        args, kwargs: what the method was given, without the module.
    """

    __slots__ = ("args", "kwargs", "run")

    def __init__(self, run: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs

    def __call__(self) -> Any:
        return self.run()


Observer = Callable[[Any, str, MethodCall], Any]
"""Takes a module, the name of its method and the call; returns what the call is to return."""

NOT_OBSERVED: frozenset[Any] = frozenset({*Module.__mro__, *List.__mro__, *Dict.__mro__, Generic})
_ABSENT: Any = object()
_lock = threading.Lock()
# Class → (its observers, each with the number of blocks that asked for it; what its own methods were).
_observed: dict[type, tuple[dict[Observer, int], dict[str, Any]]] = {}
# Class → {name: (method, what replaces it)}. Who fills it: ``_replace_methods``. What empties it: the death of a class.
_replacements: weakref.WeakKeyDictionary[type, dict[str, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
_recording = 0  # blocks that look at each call


def is_observing() -> bool:
    """Whether any block has to see every call now, so that no traced function may be used a second time."""
    return _recording > 0


@contextlib.contextmanager
def observed_methods(
    modules: Iterable[Any], observer: Observer, *, records: bool = True, except_of: frozenset[Any] = NOT_OBSERVED
) -> Iterator[None]:
    """Calls of public methods of these modules, and of ``__call__``, go through ``observer`` inside the block.

    Objects of the same classes that are not among the modules go through it too. An observer that is given twice is
    called once.

    Args:
        modules: those to watch.
        observer: called with each call.
        records: whether it has to see every call, also those of functions that JAX has traced before.
        except_of: classes whose methods are not watched: those that belong to every module of a library.
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
    """Whether this is a method, or something like one, such as what ``jit`` returns."""
    if isinstance(method, FunctionType):
        return True
    return callable(method) and hasattr(method, "__get__") and not isinstance(method, type | staticmethod | classmethod)


def _replacement(cls: type, name: str, method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = MethodCall(functools.partial(method.__get__(self, cls), *args, **kwargs), args, kwargs)
        if type(self) is cls and cls in _observed:  # a class reached through super() is not the class of the object
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
