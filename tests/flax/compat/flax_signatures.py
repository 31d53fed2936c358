"""What a library accepts by position and by name, and where plait accepts less than Flax.

The signatures are those of the installed Flax, so each set of versions is compared with its own.
"""

from __future__ import annotations

import abc
import dataclasses
import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
from inspect import Parameter
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from jax.extend.core import Primitive

from plait.flax.compat.flax_paths import FlaxModule
from plait.flax.compat.flax_settings import FLAGS

# Public modules of ``flax.nnx``; their names are in ``plait`` under the same path, or there under ``plait.as_flax``.
MODULES = ("", "bridge", "filterlib", "graph", "rnglib", "spmd", "statelib", "variablelib")


PARTS = "parts of a structure, which split makes: equal structures are one object"
STEPS = "update_context, split_context and merge_context make these; they take what plait's own mapping needs"

# Name → why plait accepts less.
EXCEPTIONS = {
    "Sequential.__call__": "rngs: one of the keywords that all layers that take it get",  # of Flax 0.12.8
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

# Pattern of names that plait lacks → why: those of modules, attributes and methods of classes, flags.
ABSENT = {
    r"(Dict|List)\.__(eq|hash)__": "compared by identity, as other modules",
    r".*\.__(nnx_repr|setstate|getstate)__": "texts and pickles are made without it",
    r"DiffState\.map_prefix": "a step of Flax's own prefixes",
    r"(GraphDef|graph\.(NodeDef|VariableDef))\..*outer_index": "plait's graphdefs have no outer indices",
    r"(set_graph_mode|set_graph_updates|use_eager_sharding)\.get_(default|stack)": "`current_value()` has it",
    r"GraphState\.__post_init__": "a part of a dataclass",
    r"(Merge|Split|Update)Context\..*": "the steps of `update_context`; their methods are there",
    r"Variable\.(hijax|ref|shape|sharding_names)|RngState\.tag|GraphDef\.attributes|bridge\.ToNNX\.(module|rngs)": (
        "attributes of objects, not of their class"
    ),
    r"bridge\.Scope\.copy": "scopes are not copied",
    r"graph\.(HashableMapping\.update|RefMap\.from_indexmap|NodeDef\.num_attributes|VariableDef\.array_refdef)": (
        "a step of Flax's own walk"
    ),
    r"flax\.config\.(flax_(?!always_shard|hijax).*)": "not read by NNX, but for the text of its objects",
}  # fmt: skip
_INTERNAL = {
    "filterlib": "HasTag filters_to_predicates",
    "graph": (
        "ApplyCaller ArrayRefDef ArrayRefOutput AuxData CallableProxy DelayedAccessor GRAPH_CONTEXT GraphContext "
        "GraphFlatState GraphNodeImpl IndexesPytreeDef KeyT LEAF_ATTR Leaf LeafAttr NODE_ATTR NO_UPDATE NoUpdate Node "
        "NodeAttr NodeImplBase PYTREE_NODE_IMPL PythonRefMap PytreeNodeImpl REPEATED Repeated StaticCache TreeNodeDef "
        "UpdateContextManager compose_mapping compose_mapping_reversed deprecated is_array_ref static_cache"
    ),
    "rnglib": "Fargs KeylessInitializer NotKey SplitBackups",
    "spmd": "deprecated",
    "statelib": "NestedStateRepr create_path_filters",
    "variablelib": (
        "AbstractVariable GetVariable HijaxVariable HijaxVariableMeta NewVariable SetVariable VARIABLE_CONTEXT "
        "VarDefaults VarDefaultsContext VariableContext VariableEffect VariableMeta VariableQDD get_variable_p "
        "is_array_ref new_variable_p set_variable_p variable_effect"
    ),
}
ABSENT |= {
    rf"{module}\.({names.replace(' ', '|')})": "steps of Flax's own walk, types, hijax variables"
    for module, names in _INTERNAL.items()
}
# What Python, dataclasses and abstract classes put into a class.
_PYTHON_S = {
    "__class_getitem__",
    "__orig_bases__",
    "__parameters__",
    "__replace__",
    "__match_args__",
    "__dataclass_transform__",
}


def news(flax: ModuleType, plait: ModuleType) -> list[str]:
    """What Flax has and plait lacks, but for the tables."""
    both = {path: (one, other) for path, one, other in pairs(flax, plait)}
    return [
        *[f"{name}: plait has no such name" for name in absent(flax, plait) if reason(name) is None],
        *[f"{path}: {each}" for path in both if path not in EXCEPTIONS for each in lacking(*both[path])],
        *[f"{path}: {each}" for path in both if path not in DEFAULTS for each in other_defaults(*both[path])],
    ]


def pairs(flax: ModuleType, plait: ModuleType) -> Iterator[tuple[str, Any, Any]]:
    """The public functions, constructors and methods of both, by name: ``Linear.__call__``, ``spmd.get_mesh``.

    Each function is there once, under the first class or module that has it.
    """
    seen = set()
    for module in MODULES:
        ours = _in_plait(plait, module)
        theirs = getattr(flax, module, None) if module else flax
        for name in sorted(set(dir(theirs)) & set(dir(ours))) if theirs and ours else ():
            for path, one, other in _callables(
                f"{module}.{name}".lstrip("."), getattr(theirs, name), getattr(ours, name)
            ):
                key = getattr(one, "__func__", one), getattr(other, "__func__", other)
                if _is_public(path) and key not in seen:
                    seen.add(key)
                    yield path, one, other


def _in_plait(plait: ModuleType, module: str) -> Any:
    return getattr(plait, module, None) or FlaxModule("flax.nnx", module) if module else plait


def reason(name: str) -> str | None:
    """Why plait lacks a name of Flax."""
    return next((why for pattern, why in ABSENT.items() if re.fullmatch(pattern, name)), None)


def absent(flax: ModuleType, plait: ModuleType) -> list[str]:
    """What Flax has and plait lacks: names of ``flax.nnx``, attributes and special methods of its public classes, and
    flags of ``flax.config``, each of which is a variable of the environment too."""
    found = []
    for module in MODULES:
        theirs, ours = getattr(flax, module, None) if module else flax, _in_plait(plait, module)
        for name in dir(theirs) if theirs else ():
            path = f"{module}.{name}".lstrip(".")
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # an old name
                one = getattr(theirs, name)
            # jax2onnx puts primitives there
            if name.startswith("_") or inspect.ismodule(one) or isinstance(one, (Primitive, TypeVar, ParamSpec)):
                continue
            other = getattr(ours, name, getattr(plait, name, None))
            if other is None and (not module or str(getattr(one, "__module__", "")).startswith("flax.nnx")):
                found.append(path)
            elif not (inspect.isclass(one) and inspect.isclass(other) and one.__module__.startswith("flax.")):
                continue
            elif not module or getattr(flax, one.__name__, None) is not one:
                found += [f"{path}.{each}" for each in sorted(_own(one, flax)) if not _has(other, each, one)]
    flags = importlib.import_module("flax.configurations").config
    names = [name for name in dir(flags) if name.startswith(("flax_", "nnx_"))]
    return [*found, *[f"flax.config.{name}" for name in names if name not in FLAGS]]


def _own(cls: type, flax: ModuleType) -> set[str]:
    """The public attributes and special methods that a class does not have from another public class."""
    public = [base for base in cls.__mro__[1:] if getattr(flax, base.__name__, None) is base]
    names = {*dir(cls), *inspect.get_annotations(cls)} - {name for base in public for name in dir(base)}
    compared = {"__eq__", "__hash__"} & {*vars(cls)} if not dataclasses.is_dataclass(cls) else set()
    names = {name for name in names if _is_public(name) or name.startswith("__")}
    return names - _PYTHON_S - {*dir(_Sample)} | compared


def _has(cls: type, name: str, flax: type) -> bool:
    """Whether objects of a class have it: it is there, or declared; ``==`` and hash must not be those of ``object``."""
    if name in ("__eq__", "__hash__"):
        return getattr(cls, name) is not getattr(object, name) or getattr(flax, name) is getattr(object, name)
    declared = {
        each for base in cls.__mro__ for key in ("__annotations__", "__slots__") for each in vars(base).get(key, ())
    }
    stored = inspect.signature(cls).parameters if name in getattr(flax, "__annotations__", ()) else ()
    return hasattr(cls, name) or name in declared or name in stored


@dataclasses.dataclass(frozen=True)
class _Sample(abc.ABC):  # noqa: B024  # all that it has is what Python gives such a class
    """A class of no content."""


def table(flax: ModuleType, plait: ModuleType) -> str:
    """The table of ``docs/flax/names.md``: what differs by name, and why."""
    missing: dict[str, list[str]] = {}
    for name in absent(flax, plait):
        missing.setdefault(reason(name) or "?", []).append(f"`{name}`")
    both = {path: (one, other) for path, one, other in pairs(flax, plait)}
    rows = [(", ".join(names), "missing", why) for why, names in missing.items()]
    rows += [(f"`{path}`", "; ".join(lacking(*both[path])), why) for path, why in EXCEPTIONS.items()]
    rows += [(f"`{path}`", "; ".join(other_defaults(*both[path])), why) for path, why in DEFAULTS.items()]
    return "\n".join(f"| {name} | {what} | {why} |" for name, what, why in rows if what)


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
