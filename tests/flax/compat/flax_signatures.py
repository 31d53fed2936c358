"""What a library accepts by position and by name, and where plait accepts less than Flax.

The signatures are those of the installed Flax, so each set of versions is compared with its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from inspect import Parameter
from types import ModuleType
from typing import Any

from jax.extend.core import Primitive

# Public modules of ``flax.nnx``; their names are in ``plait`` under the same path.
MODULES = ("", "bridge", "filterlib", "graph", "rnglib", "spmd", "statelib", "variablelib")


PARTS = "parts of a structure, which split makes: equal structures are one object"
STEPS = "update_context, split_context and merge_context make these; they take what plait's own mapping needs"

# Name → why plait accepts less.
EXCEPTIONS = {
    "GraphDef.__init__": PARTS,
    "graph.NodeDef.__init__": PARTS,
    "graph.NodeRef.__init__": PARTS,
    "graph.VariableDef.__init__": PARTS,
    "MergeContext.__init__": STEPS,
    "SplitContext.__init__": STEPS,
    "UpdateContext.__init__": STEPS,
    "flatten": "ref_outer_index: the outer indices are one mapping on the root, which update_context makes",
    "bridge.ToLinen.__init__": "parent and name: fields that a Linen module puts after its own; by name they work",
    "bridge.ToLinen.metadata_fn": "a default of Flax's class that is seen as its method",
}
# Name → defaults that differ, and why.
DEFAULTS = {
    "merge": "copy: what is merged never shares variables with the state",
    "tabulate": "compute_flops: plait counts without compiling",
    "bridge.Module.init_with_output": "mutable: what a Linen module's own method takes",
}

LOWER = "a step of Flax's own walk; plait's graphdefs have no outer indices"
STACKS = "the stack of a context manager, for Flax's own tests"
# Names and methods that plait lacks, and why.
ABSENT = {
    "Bidirectional.merge_fn": "a default that is seen as a method",
    "DiffState.map_prefix": "a step of Flax's own prefixes",
    "FlatState.from_sorted_keys_values": "a step of Flax's own walk",
    **{f"GraphDef.with_{which}_outer_index": LOWER for which in ("matching", "no", "same")},
    **{
        f"{setting}.{method}": STACKS
        for setting in ("set_graph_mode", "set_graph_updates", "use_eager_sharding")
        for method in ("get_default", "get_stack")
    },
}


def news(flax: ModuleType, plait: ModuleType) -> list[str]:
    """What Flax has and plait lacks, but for the tables."""
    both = {path: (one, other) for path, one, other in pairs(flax, plait)}
    return [
        *[f"{name}: plait has no such name" for name in absent(flax, plait) if name not in ABSENT],
        *[f"{path}: {each}" for path in both if path not in EXCEPTIONS for each in lacking(*both[path])],
        *[f"{path}: {each}" for path in both if path not in DEFAULTS for each in other_defaults(*both[path])],
    ]


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


def absent(flax: ModuleType, plait: ModuleType) -> list[str]:
    """Public names of ``flax.nnx``, and methods of its classes, that plait lacks."""
    found = []
    for name in dir(flax):
        one, other = getattr(flax, name), getattr(plait, name, None)
        if name.startswith("_") or inspect.ismodule(one) or isinstance(one, Primitive):  # jax2onnx puts its own there
            continue
        if not hasattr(plait, name):
            found.append(name)
        elif inspect.isclass(one) and one.__module__.startswith("flax."):
            methods = [each for each in vars(one) if _is_public(each) and callable(getattr(one, each))]
            found += [f"{name}.{each}" for each in methods if not hasattr(other, each)]
    return found


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
    takes_any = _any(ours.values(), Parameter.VAR_KEYWORD)
    if takes_any and not _any(theirs.values(), Parameter.VAR_KEYWORD):
        return
    named = {
        name for name, each in ours.items() if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    }
    if _any(theirs.values(), Parameter.VAR_KEYWORD) and not takes_any:
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
