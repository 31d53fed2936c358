"""What the methods of a model's modules take and return for given inputs, without computing anything."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from ...core.intermediates.sowing import RECORD, what_shuts_in
from ...core.module_calls.method_observers import MethodCall
from ...core.nodes.module import Module
from ...core.nodes.pytree import Pytree
from ...core.variables.variables import Variable
from ...errors import ArgumentTypeError
from ...transforms.jit.shapes import eval_shape
from ...util.paths import Path
from ...util.words import describe_type
from ..observe.capture import recording
from ..sharding import item_size
from ..tabulate import on_arrays
from .outline import Call


class _Seen(Variable[Any]):
    """The arrays that a method took, and those that it returned."""


def calls_of(model: Any, inputs: tuple[Any, ...], options: Mapping[str, Any]) -> dict[Path, list[Call]]:
    """The calls of a model's methods while ``model(*inputs, **options)`` runs, by the path of the module.

    It runs as in ``eval_shape``: nothing is computed, and the model does not change. Layers run by ``scan`` have the
    stacked shapes of all iterations. Calls in a branch, in a loop without outputs, or in one of JAX's own transforms
    are shown with the shapes of one call.

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
    call, given = on_arrays("__call__", (inputs, options))
    paths: list[Path] = []
    shut_in: list[tuple[Path, Call]] = []
    seen = eval_shape(functools.partial(_run, call, paths, shut_in), model, *given, graph=True, graph_updates=True)
    found: dict[Path, dict[Call, int]] = {}
    for (*path, method), variable in zip(paths, seen, strict=True):
        calls = found.setdefault(tuple(path), {})
        for given, returned in variable.get_raw_value():
            call = _call(method, given, returned)
            calls[call] = calls.get(call, 0) + 1
    for path, call in shut_in:
        found.setdefault(path, {})[call] = 1  # the number of runs is unknown, and it may be traced twice
    return {
        path: [dataclasses.replace(call, times=times) for call, times in calls.items()] for path, calls in found.items()
    }


def _run(
    call: Callable[..., Any], paths: list[Path], shut_in: list[tuple[Path, Call]], model: Any, *arrays: Any
) -> Any:
    def observe(module: Any, name: str, observed: MethodCall) -> Any:
        record = module.__dict__.get(RECORD)
        if record is None:  # made during the call
            return observed()
        inside, given = what_shuts_in(module), tuple(_leaves((observed.args, observed.kwargs)))
        output = observed()
        returned = tuple(_leaves(output))
        if inside is None:
            module.sow(_Seen, name, (given, returned))
        else:
            shut_in.append((record["path"], dataclasses.replace(_call(name, given, returned), inside=inside)))
        return output

    with recording(model, _Seen, observe) as recorded:
        call(model, *arrays)
        seen = [(path, variable) for path, variable in recorded() if isinstance(variable, _Seen)]
    paths[:] = [path for path, _ in seen]
    return [variable for _, variable in seen]


def _leaves(value: Any) -> list[Any]:
    leaves = jax.tree.leaves(value, is_leaf=lambda each: isinstance(each, Pytree | Variable))
    return [
        leaf for leaf in leaves if hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, Pytree)
    ]


def _texts(arrays: Iterable[Any]) -> tuple[str, ...]:
    return tuple(f"{array.dtype}[{', '.join(map(str, array.shape))}]" for array in arrays)


def _call(method: str, given: Iterable[Any], returned: Iterable[Any]) -> Call:
    size = sum(math.prod(array.shape) * item_size(array.dtype) for array in returned)
    return Call(method, _texts(given), _texts(returned), output_bytes=size)
