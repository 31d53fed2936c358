"""What a library accepts by position and by name, and where plait accepts less than Flax.

The signatures are those of the installed Flax, so each set of versions is compared with its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from inspect import Parameter
from types import ModuleType
from typing import Any

# Public modules of ``flax.nnx``; their names are in ``plait`` under the same path.
MODULES = ("", "bridge", "filterlib", "graph", "rnglib", "spmd", "statelib", "tracers", "variablelib")


def pairs(flax: ModuleType, plait: ModuleType) -> Iterator[tuple[str, Any, Any]]:
    """The public functions, constructors and methods of both, by name: ``Linear.__call__``, ``spmd.get_mesh``.

    Each function is there once, under the first class or module that has it.
    """
    seen = set()
    for module in MODULES:
        ours = getattr(plait, module, None) if module else plait
        theirs = getattr(flax, module, None) if module else flax
        for name in sorted(set(dir(theirs)) & set(dir(ours))) if theirs and ours else ():
            for path, one, other in _callables(
                f"{module}.{name}".lstrip("."), getattr(theirs, name), getattr(ours, name)
            ):
                key = getattr(one, "__func__", one), getattr(other, "__func__", other)
                if _is_public(path) and key not in seen:
                    seen.add(key)
                    yield path, one, other


def _is_public(path: str) -> bool:
    last = path.rsplit(".", 1)[-1]
    return not last.startswith("_") or last in ("__init__", "__call__")


def _callables(path: str, flax: Any, plait: Any) -> Iterator[tuple[str, Any, Any]]:
    if not inspect.isclass(flax):
        if callable(flax) and getattr(flax, "__module__", "").startswith("flax"):
            yield path, flax, plait
        return
    for name in dir(flax) if flax.__module__.startswith("flax") else ():
        one = getattr(flax, name)
        if callable(one) and one is not getattr(object, name, None) and hasattr(plait, name):
            yield f"{path}.{name}", one, getattr(plait, name)


def lacking(flax: Any, plait: Any) -> list[str]:
    """What the one accepts and the other does not: ``by position 2: decode``, ``by name: inputs``, ``needs: name``."""
    try:
        theirs, ours = inspect.signature(flax).parameters, inspect.signature(plait).parameters
    except (TypeError, ValueError):  # of a class made in C, or of an alias of a type
        return []
    return [*_by_position(list(theirs.values()), list(ours.values())), *_by_name(theirs, ours), *_needed(theirs, ours)]


def _placed(parameters: list[Parameter]) -> list[Parameter]:
    return [each for each in parameters if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]


def _any(parameters: Any, kind: Any) -> bool:
    return any(each.kind is kind for each in parameters)


def _by_position(theirs: list[Parameter], ours: list[Parameter]) -> Iterator[str]:
    if _any(ours, Parameter.VAR_POSITIONAL):
        return
    placed = _placed(ours)
    for number, one in enumerate(_placed(theirs)):
        if one.name.startswith("_") or (one.name in ("self", "key") and not number):
            continue
        if number >= len(placed) or (one.kind is not Parameter.POSITIONAL_ONLY and placed[number].name != one.name):
            yield f"by position {number}: {one.name}"
    if _any(theirs, Parameter.VAR_POSITIONAL):
        yield "by position: any number"


def _by_name(theirs: Any, ours: Any) -> Iterator[str]:
    if _any(ours.values(), Parameter.VAR_KEYWORD):
        return
    named = {
        name for name, each in ours.items() if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    if _any(theirs.values(), Parameter.VAR_KEYWORD):
        yield "by name: any"
    for name, one in theirs.items():
        can_be_named = one.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        if can_be_named and name not in named and name != "self" and not name.startswith("_"):
            yield f"by name: {name}"


def _needed(theirs: Any, ours: Any) -> Iterator[str]:
    """Arguments that plait alone needs."""
    count = sum(each.default is Parameter.empty for each in _placed(list(theirs.values())))
    for number, one in enumerate(_placed(list(ours.values()))):
        if one.default is Parameter.empty and number >= count and not _any(theirs.values(), Parameter.VAR_POSITIONAL):
            yield f"needs: {one.name}"
    for name, one in ours.items():
        is_needed = one.kind is Parameter.KEYWORD_ONLY and one.default is Parameter.empty
        if is_needed and (name not in theirs or theirs[name].default is not Parameter.empty):
            yield f"needs: {name}"


def other_defaults(flax: Any, plait: Any) -> list[str]:
    """Arguments whose defaults differ; only numbers, strings, ``None`` and tuples of them are compared."""
    try:
        theirs, ours = inspect.signature(flax).parameters, inspect.signature(plait).parameters
    except (TypeError, ValueError):
        return []
    return [
        f"{name}={ours[name].default!r}, not {one.default!r}"
        for name, one in theirs.items()
        if name in ours
        and _is_plain(one.default)
        and _is_plain(ours[name].default)
        and (one.default, type(one.default)) != (ours[name].default, type(ours[name].default))
    ]


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))
