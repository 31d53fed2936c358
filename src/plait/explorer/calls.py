"""What the methods of a model's modules take and return for given inputs, found without computing anything."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from ..core.objects.module import Module
from ..core.objects.pytree import Pytree
from ..core.objects.state import to_flat_state
from ..core.objects.variables import Variable
from ..core.objects.visit import iter_graph_nodes
from ..core.tools.capture import capture
from ..core.tools.method_observers import MethodCall, observed_methods
from ..errors import ArgumentTypeError
from ..inspect.sharding import item_size
from ..paths import Path
from ..transforms.jit.shapes import eval_shape
from ..words import describe_type
from .outline import Call

_BEFORE = " takes"  # behind the name of a method; no method has a space in its name


class _Taken(Variable[Any]):
    """The arrays that a method was given."""


class _Returned(Variable[Any]):
    """What a method returned."""


def calls_of(model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> dict[Path, list[Call]]:
    """The calls of a model's methods while ``model(*inputs, **options)`` runs, by the path of the module.

    It runs as in ``eval_shape``, so that nothing is computed and the model stays as it is. Layers run by ``scan`` have
    the shapes of all iterations, stacked.

    Raises:
        ArgumentTypeError: the model cannot be called.
    """
    if not isinstance(model, Module) or not callable(model):
        raise ArgumentTypeError(
            "inputs are for a model that can be called",
            found=describe_type(model),
            expected="a plait.Module with __call__",
            do="plait.explore(model) without inputs, or pass the module that takes them",
        )
    arrays, settings = settings_of(options)
    taken, returned = eval_shape(functools.partial(_run, settings), model, inputs, arrays)
    found: dict[Path, dict[str, dict[str, list[Any]]]] = {}
    for kind, seen in (("inputs", taken), ("outputs", returned)):
        for (*path, name), values in to_flat_state(seen):
            method = found.setdefault(tuple(path), {}).setdefault(name.removesuffix(_BEFORE), {})
            method[kind] = [_leaves(value) for value in values.get_raw_value()]
    return {path: _folded(methods) for path, methods in found.items()}


def settings_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of a call that hold arrays, and the others."""
    arrays = {name: value for name, value in options.items() if _leaves(value)}
    return arrays, {name: value for name, value in options.items() if name not in arrays}


def _run(settings: dict[str, Any], model: Any, inputs: tuple[Any, ...], arrays: dict[str, Any]) -> Any:
    modules = [node for _, node in iter_graph_nodes(model) if isinstance(node, Module)]
    call = capture(model, _Taken, _Returned, method_outputs=_Returned)
    with observed_methods(modules, _record_inputs):
        _, taken, returned = call(*inputs, **arrays, **settings)
    return taken, returned


def _record_inputs(module: Any, name: str, call: MethodCall) -> Any:
    module.sow(_Taken, name + _BEFORE, tuple(_leaves((call.args, call.kwargs))))
    return call()


def _leaves(value: Any) -> list[Any]:
    leaves = jax.tree.leaves(value, is_leaf=lambda each: isinstance(each, Pytree | Variable))
    return [
        leaf for leaf in leaves if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, Pytree)
    ]


def _texts(arrays: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{array.dtype}[{', '.join(map(str, array.shape))}]" for array in arrays)


def _folded(methods: Mapping[str, Mapping[str, list[Any]]]) -> list[Call]:
    """One entry for equal calls of a method."""
    calls: dict[Call, int] = {}
    for name, sides in methods.items():
        pairs = itertools.zip_longest(sides.get("inputs", []), sides.get("outputs", []), fillvalue=())
        for inputs, outputs in pairs:
            size = sum(math.prod(array.shape) * item_size(array.dtype) for array in outputs)
            call = Call(name, _texts(inputs), _texts(outputs), output_bytes=size)
            calls[call] = calls.get(call, 0) + 1
    return [dataclasses.replace(call, times=times) for call, times in calls.items()]
