"""Runs a plait model and records its calls, including those inside transforms.

The inputs and outputs of a call are sown, so they come out of ``jit``, ``scan`` and ``vmap``; see
``inspect/observe/capture.py``. The steps of a ``scan`` come out stacked, and are split again: each is a separate call.
The layers of a ``Stack`` come out one by one, at paths of their own, but were traced together: they are put in order
here.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import numpy as np

from ...core.functional.merge import clone
from ...core.graph.traversal import find_duplicates
from ...core.intermediates.sowing import RECORD, sows, what_shuts_in
from ...core.module_calls.method_observers import MethodCall
from ...core.nodes.module import Module
from ...core.nodes.nodes import iter_graph_nodes
from ...core.variables.variable_kinds import Intermediate
from ...util.paths import Path, iter_layer_paths
from ..observe.capture import recording
from .calls import Call, Recorder, Run, arguments, is_array_of_numbers, is_static, leaves_of, numpy_of, owner_of


class _Seen(Intermediate):
    """The arrays of one call."""


@dataclasses.dataclass
class _Traced:
    """The record of a running call; its arrays may be traced."""

    method: str
    inputs: tuple[str, ...]
    statics: dict[str, Any]
    ranks: tuple[int, ...]
    enter: int
    exit: int = 0
    outputs: tuple[str, ...] = ()


def is_plait(model: Any) -> bool:
    return isinstance(owner_of(model), Module)


def run_plait(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Run:
    """Run a copy of the model: its variables, modes and random streams do not change."""
    root, call = _copied(model)
    recorder = Recorder(numpy_of)
    known: dict[str, _Traced] = {}
    unseen: dict[Path, str] = {}

    def observe(module: Any, method: str, run: MethodCall) -> Any:
        if not sows(module):  # made during the call
            return run()
        inside = what_shuts_in(module)
        if inside is not None:
            unseen.setdefault(module.__dict__[RECORD]["path"], inside)
            return run()
        leaves = list(leaves_of(arguments(run.args, run.kwargs)))
        inputs = [(name, leaf) for name, leaf in leaves if is_array_of_numbers(leaf)]
        statics = {name: leaf for name, leaf in leaves if is_static(leaf)}
        traced = _Traced(method, tuple(name for name, _ in inputs), statics, (), recorder.tick())
        output = run()
        outputs = [(name, leaf) for name, leaf in leaves_of(output) if is_array_of_numbers(leaf)]
        traced.outputs = tuple(name for name, _ in outputs)
        traced.exit = recorder.tick()
        if outputs:
            arrays = [leaf for _, leaf in (*inputs, *outputs)]
            traced.ranks = tuple(np.ndim(leaf) for leaf in arrays)
            name = f"{method}@{traced.enter}"  # names of methods come first: `RNN` looks for initialize_carry
            known[name] = traced
            module.sow(_Seen, name, tuple(arrays))
        return output

    places = {path: tuple(paths) for paths in find_duplicates(root) for path in paths}
    enter = recorder.tick()
    inputs, statics = recorder.inputs(args, kwargs)
    with recording(root, _Seen, observe) as recorded:
        output = call(*args, **kwargs)
        values = recorded()
    modules = _by_layer(root)
    calls = []
    for (*prefix, name), variable in values:
        path = tuple(prefix)
        if isinstance(variable, _Seen) and path in modules:
            (values_of_call,) = variable.get_raw_value()
            module, layers = modules[path]
            call, sizes = _call(path, places.get(path, (path,)), module, known[name], values_of_call)
            if layers and sizes:
                unseen.setdefault(path, "a loop around its stack")
            else:
                calls.append((call, sizes))
    own = type(root).__name__
    name = model.__name__ if isinstance(model, MethodType) else "__call__"
    method = "" if name == "__call__" else name
    # The inputs of the model itself are already known; its own call is recorded once.
    inner = [each for each in calls if each[0].path or each[0].method != method]
    whole = Call((), ((),), "", own, root, inputs, statics, recorder.outputs(output), enter, recorder.tick())
    ordered = _in_steps(_one_layer_after_another(inner, modules), whole)
    return Run("plait", tuple(ordered), unseen)


Modules = dict[Path, tuple[Any, tuple[int, ...]]]


def _by_layer(root: Any) -> Modules:
    """Each module, at the path of each of its layers if it is in a stack, with the index of the layer in its arrays."""
    found: Modules = {}
    for path, node in iter_graph_nodes(root):
        if isinstance(node, Module):
            found.update((layer, (node, index)) for layer, index in iter_layer_paths(path))
    return found


def _copied(model: Any) -> tuple[Any, Callable[..., Any]]:
    if isinstance(model, MethodType):
        root = clone(model.__self__, graph=True)
        return root, lambda *args, **kwargs: getattr(root, model.__name__)(*args, **kwargs)
    root = clone(model, graph=True)
    return root, root


def _call(
    path: Path, aliases: tuple[Path, ...], module: Any, traced: _Traced, values: tuple[Any, ...]
) -> tuple[Call, tuple[int, ...]]:
    """The call, and the sizes of the leading axes that transforms added to its arrays."""
    arrays = [np.asarray(value) for value in values]
    more = arrays[-1].ndim - traced.ranks[-1]
    method = "" if traced.method == "__call__" else traced.method
    inputs = dict(zip(traced.inputs, arrays, strict=False))
    outputs = dict(zip(traced.outputs, arrays[len(inputs) :], strict=True))
    call = Call(
        path, aliases, method, type(module).__name__, module, inputs, traced.statics, outputs, traced.enter, traced.exit
    )
    return call, arrays[-1].shape[:more]


def _one_layer_after_another(
    calls: list[Stacked], modules: Mapping[Path, tuple[Any, tuple[int, ...]]]
) -> list[Stacked]:
    """The calls with times as if each layer of a stack had been traced by itself, after the one before."""
    called: dict[Path, list[Call]] = {}
    for call, _ in calls:
        called.setdefault(call.path, []).append(call)

    def depth(path: Path) -> int:
        return len(modules[path][1]) if path in modules else 0

    def time(call: Call, clock: int) -> tuple[int, ...]:
        around: list[int] = []
        for end, key in enumerate(call.path):
            stack, layer = call.path[:end], call.path[: end + 1]
            if depth(layer) > depth(stack) and stack in modules:
                owners = [each.enter for each in called.get(stack, ()) if each.enter < clock < each.exit]
                around += [max(owners), key] if owners else []
        return (*around, clock)

    times = {id(call): (time(call, call.enter), time(call, call.exit)) for call, _ in calls}
    place = {when: number for number, when in enumerate(sorted({each for pair in times.values() for each in pair}))}

    def moved(call: Call) -> Call:
        enter, leave = times[id(call)]
        return dataclasses.replace(call, enter=place[enter], exit=place[leave])

    return [(moved(call), sizes) for call, sizes in calls]


# Steps of loops -------------------------------------------------------------------------------------------------------

Stacked = tuple[Call, tuple[int, ...]]


def _in_steps(calls: list[Stacked], whole: Call) -> list[Call]:
    """All calls in the order in which they ended, with separate calls for each step of a loop."""
    ended: list[Call] = []
    clock = itertools.count()

    def emit(inside: list[Stacked], owner: Call) -> None:
        tops: list[tuple[Stacked, list[Stacked]]] = []
        for each in sorted(inside, key=lambda each: each[0].enter):
            if tops and tops[-1][0][0].encloses(each[0]):
                tops[-1][1].append(each)
            else:
                tops.append((each, []))
        for size, group in itertools.groupby(tops, key=lambda top: top[0][1][:1]):
            loop = list(group)
            if not size:
                for (call, _), below in loop:
                    finish(call, below)
                continue
            steps = range(size[0])
            for step in reversed(steps) if getattr(owner.module, "reverse", False) is True else steps:
                emit([_at_step(*each, step) for top, below in loop for each in (top, *below)], owner)

    def finish(call: Call, inside: list[Stacked]) -> None:
        enter = next(clock)
        emit(inside, call)
        ended.append(dataclasses.replace(call, enter=enter, exit=next(clock)))

    finish(whole, calls)
    return ended


def _at_step(call: Call, sizes: tuple[int, ...], step: int) -> Stacked:
    inputs, outputs = ({name: array[step] for name, array in each.items()} for each in (call.inputs, call.outputs))
    return dataclasses.replace(call, inputs=inputs, outputs=outputs), sizes[1:]
