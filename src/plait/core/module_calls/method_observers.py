"""Observing the public methods of modules while a block runs.

The methods are replaced on the classes, since Python looks up ``__call__`` there, and restored when the last block that
observes them ends. A method is replaced on the class that defines it, so ``type(self).update is Base.update`` still
says whether a class overrides it. Calls on other objects of the class, or in other threads, are unaffected unless the
observer handles the object. The replacement of a method is created once and cached: JAX's caches have functions as
keys, so they need the same ``Block.__call__`` in each trace.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, Generic

from ...typing import Node, Tree
from .. import hooks
from ..nodes.containers import Dict, List
from ..nodes.module import Module


class MethodCall:
    """A pending call. Calling it runs it, through the other observers if there are any.

    Attributes:
        args, kwargs: the arguments of the method, without the module.
    """

    __slots__ = ("args", "kwargs", "run")

    def __init__(self, run: Callable[[], Tree], args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> None:
        self.run, self.args, self.kwargs = run, args, kwargs

    def __call__(self) -> Tree:
        return self.run()


Observer = Callable[[Node, str, MethodCall], Tree]
"""Takes a module, the name of its method and the call; returns the result of the call."""

NOT_OBSERVED: frozenset[object] = frozenset({*Module.__mro__, *List.__mro__, *Dict.__mro__, Generic})
_UNOBSERVED: tuple[dict[Observer, int], dict[str, type]] = {}, {}
_lock = threading.Lock()
# Class → (its observers, each with the number of blocks that use it; method → the class that defines it).
_observed: dict[type, tuple[dict[Observer, int], dict[str, type]]] = {}
# (class, name) of a replaced method → how many observed classes use it.
_uses: collections.Counter[tuple[type, str]] = collections.Counter()
# Class → {name: (method, replacement)}. ``_replace`` adds entries; an entry is removed when its class dies.
_replacements: weakref.WeakKeyDictionary[type, dict[str, tuple[object, object]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def observed_methods(
    modules: Iterable[Node], observer: Observer, *, records: bool = True, except_of: frozenset[object] = NOT_OBSERVED
) -> Iterator[None]:
    """Inside the block, calls of public methods and of ``__call__`` of these modules go through ``observer``.

    So do calls on other objects of the same classes. An observer that is registered twice is called once.

    Args:
        modules: the modules to observe.
        observer: called with each call.
        records: whether it must observe every call, including calls inside functions that JAX has already traced.
        except_of: classes whose methods are not observed, such as the base class of all modules of a library.
    """
    classes = {type(module) for module in modules}
    with _lock:
        hooks.observers += records
        for cls in classes:
            if cls not in _observed:
                owners = _owners_of_methods(cls, except_of)
                for name, owner in owners.items():
                    _replace(owner, name)
                _observed[cls] = {}, owners
            observers = _observed[cls][0]
            observers[observer] = observers.get(observer, 0) + 1
    try:
        yield
    finally:
        with _lock:
            hooks.observers -= records
            for cls in classes:
                observers, owners = _observed[cls]
                observers[observer] -= 1
                if not observers[observer]:
                    del observers[observer]
                if not observers:
                    del _observed[cls]
                    for name, owner in owners.items():
                        _restore(owner, name)


def _owners_of_methods(cls: type, except_of: frozenset[object]) -> dict[str, type]:
    """The methods of a class to observe, each with the class that defines it."""
    owners: dict[str, type] = {}
    for base in reversed(cls.__mro__):
        owners.update((name, base) for name in vars(base) if name == "__call__" or not name.startswith("_"))
    return {n: base for n, base in owners.items() if base not in except_of and _takes_self(vars(base)[n])}


def _replace(owner: type, name: str) -> None:
    _uses[owner, name] += 1
    if _uses[owner, name] > 1:
        return
    method = vars(owner)[name]
    kept = _replacements.setdefault(owner, {})
    if name not in kept or kept[name][0] is not method:
        kept[name] = method, _replacement(owner, name, method)
    setattr(owner, name, kept[name][1])


def _restore(owner: type, name: str) -> None:
    _uses[owner, name] -= 1
    if not _uses[owner, name]:
        del _uses[owner, name]
        method, replacement = _replacements[owner][name]
        if vars(owner).get(name) is replacement:  # and not something that the block itself put there
            setattr(owner, name, method)


def _takes_self(method: object) -> bool:
    """Whether this is a method, or method-like, such as the result of ``jit``."""
    if isinstance(method, FunctionType):
        return True
    return callable(method) and hasattr(method, "__get__") and not isinstance(method, type | staticmethod | classmethod)


def _replacement(owner: type, name: str, method: Any) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        cls = type(self)
        call = MethodCall(functools.partial(method.__get__(self, cls), *args, **kwargs), args, kwargs)
        observers, owners = _observed.get(cls, _UNOBSERVED)
        if owners.get(name) is owner:  # super() calls a method that is not the one of the object's own class
            for observer in tuple(observers):
                call = MethodCall(functools.partial(observer, self, name, call), args, kwargs)
        return call()

    return wrapper
