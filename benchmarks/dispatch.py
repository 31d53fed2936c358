"""Dispatch: what a jitted call costs the calling thread, beside ``jax.jit`` on a flat list of the same arrays."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator, Sequence

from .measure import QUICK, Effort, Loop, compare, fit_line
from .models import STEPS, bound_loop, equinox_loop, floor_loop, functional_loop, in_tree_mode, object_loop
from .table import Table

SIZES = (5, 41, 201, 1_001)
TITLES = {
    "rewrite": "a step that rewrites all its state",
    "donated": "the same, donated",
    "block": "a step that rewrites one block and reads the rest",
    "forward": "forward only",
    "state": "a function that returns a new state, as gradients are returned",
    "sgd": "a training step with SGD",
    "adam": "a training step with Adam",
}
# Contenders that are slow by nature are measured in rounds of their own, so that they do not stretch those of the rest.
SLOW = (
    "Flax nnx.jit",
    "Flax nnx.jit(graph=False)",
    "Flax cached_partial",
    "Flax functional loop",
    "Equinox filter_jit",
)


def contenders(step: str, alone: bool = False) -> tuple[dict[str, Callable[[int], Loop]], list[str]]:
    """By name, what makes the loop for a number of arrays; and remarks on those that are missing."""
    import plait

    makers: dict[str, Callable[[int], Loop]] = {
        "floor: jax.jit, flat list": lambda count: floor_loop(step, count),
        "floor again (noise)": lambda count: floor_loop(step, count),
    }
    remarks = []
    if step not in ("sgd", "adam") or hasattr(plait, "Optimizer"):
        makers["plait.jit"] = lambda count: object_loop(plait, step, count)
        makers["plait.jit(graph_updates=False)"] = lambda count: object_loop(plait, step, count, graph_updates=False)
        makers["plait.jit(graph=False)"] = lambda count: object_loop(plait, step, count, graph=False)
        makers["plait.jit under set_graph_mode(False)"] = lambda count: in_tree_mode(object_loop(plait, step, count))
        if step == "state":
            makers["plait.jit, flat state of values"] = lambda count: object_loop(plait, step, count, flat=True)
        elif step not in ("block", "forward"):  # the whole state is returned
            makers["split, jax.jit, merge"] = lambda count: functional_loop(plait, step, count)
            makers["split, jax.jit, merge; flat state of values"] = lambda count: functional_loop(
                plait, step, count, flat=True
            )
    else:
        remarks.append("plait has no Optimizer yet: left out.")
    if alone:
        return makers, remarks
    try:
        nnx = importlib.import_module("flax.nnx")
        makers["Flax nnx.jit"] = lambda count: object_loop(nnx, step, count)
        makers["Flax nnx.jit(graph=False)"] = lambda count: object_loop(nnx, step, count, graph=False)
        makers["Flax cached_partial"] = lambda count: bound_loop(nnx, step, count)
        makers["Flax functional loop"] = lambda count: functional_loop(nnx, step, count)
    except ImportError:
        remarks.append("Flax is not installed: left out.")
    try:
        importlib.import_module("equinox")
        makers["Equinox filter_jit"] = lambda count: equinox_loop(step, count)
    except ImportError:
        remarks.append("Equinox is not installed: left out.")
    return makers, remarks


def run(*, quick: bool = False, steps: Sequence[str] = STEPS, alone: bool = False) -> Iterator[Table]:
    """One table for each step; ``alone`` leaves the other libraries out."""
    sizes = (5, 9) if quick else SIZES
    for step in steps:
        yield measure_step(step, sizes, QUICK if quick else Effort(), alone)


def measure_step(step: str, sizes: Sequence[int], effort: Effort, alone: bool = False) -> Table:
    makers, remarks = contenders(step, alone)
    floor, *_ = makers
    rows = [row for name in makers for row in ((f"floor beside {name}", name) if name in SLOW else (name,))]
    times: dict[str, list[float]] = {row: [] for row in rows}
    ratios: dict[str, list[str]] = {row: [] for row in rows}
    for size in sizes:
        loops = {name: make(size) for name, make in makers.items()}
        with contextlib.redirect_stderr(io.StringIO()):
            results = compare({name: loop for name, loop in loops.items() if name not in SLOW}, effort)
            for name in SLOW:
                if name in loops:
                    few = Effort(max(effort.rounds // 5, 3), effort.round_us, effort.fewest_calls)
                    beside = compare({floor: loops[floor], name: loops[name]}, few)
                    results[f"floor beside {name}"], results[name] = beside[floor], beside[name]
        for name, result in results.items():
            times[name].append(result.us)
            low, _, high = result.quartiles
            ratios[name].append(f"{result.ratio:.3f} ({low:.2f}-{high:.2f})")
    columns = [
        "contender",
        *(f"{size}" for size in sizes),
        *(f"µs at {size}" for size in sizes),
        "fixed µs",
        "µs/array",
    ]
    table = Table(f"dispatch: {TITLES[step]}; time relative to the floor", columns, remarks=remarks)
    for name in rows:
        table.rows.append([name, *ratios[name], *times[name], *fit_line(sizes, times[name])])
    return table
