"""Functions whose first arguments are bound, which say when a call passes an object of theirs again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..core.objects.visit import has_identity, visit
from ..ground import differences


def bound(f: Callable[..., Any], first: tuple[Any, ...]) -> functools.partial[Any]:
    """``functools.partial(f, *first)``; Flax's ``cached_partial`` gives ``f`` two objects for one passed again."""
    if not differences.asking.on:
        return functools.partial(f, *first)
    known = _identities(first)

    def said(*args: Any, **kwargs: Any) -> Any:
        if known & _identities((args[len(first) :], kwargs)):
            differences.say("one object twice under cached_partial")
        return f(*args, **kwargs)

    return functools.partial(said, *first)


def _identities(node: Any) -> set[int]:
    return {id(place.value) for place in visit(node) if has_identity(place.value, place.kind)}
