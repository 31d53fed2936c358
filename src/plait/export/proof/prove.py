"""Validates all exports at a path: runs each in a separate process, and compares it with the model or bundle."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import ArgumentError, ArgumentTypeError, ExportError
from ...util.words import describe_type
from ..formats.manifest import read_manifest
from ..formats.stablehlo import described_inputs, load_stablehlo
from ..program.checks import check_equal, check_some
from ..program.program import Program
from .apart import Arrays
from .describe import find_exports
from .report import ExportReport, validate_export
from .runners import exchange

SIZES = (1, 3)  # values of dynamic sizes in generated inputs


def prove(
    path: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    reference: Program | Callable[..., Any] | None = None,
    signature: str | None = None,
    tolerance: float | None = None,
    seed: int = 0,
    steps: int = 1,
    python: str | None = None,
) -> tuple[list[ExportReport], list[float]]:
    """Run every export at ``path`` in a separate process and compare the outputs.

    Args:
        path: one export, or a folder that ``save`` wrote.
        inputs: arrays by name, or a list of such examples; by default generated from the signature, which needs a
            StableHLO bundle. Omitted state has its stored initial value.
        reference: a function from inputs by name to expected outputs; by default the StableHLO bundle at ``path``.
        signature: the function to run; by default the first.
        tolerance: as in ``validate_export``.
        seed: seed of generated inputs.
        steps: how often to run each example of a model with state. Each step gets the state that the reference returned
            for the step before, with the given inputs again, or newly generated ones.
        python: as in ``validate_export``.

    Returns:
        A report for each export, and the time of the jitted reference on each example in milliseconds.

    Raises:
        ExportError: there is no export, or one does not run.
        ArgumentError: there is no reference, or nothing to generate inputs from; or the inputs do not match the
            signature.
    """
    exports = find_exports(path)
    bundle = next((place for row, place in exports if row.name == "stablehlo"), None)
    loaded: Any = None if bundle is None else load_stablehlo(bundle, signature)
    if bundle is not None:
        _check_platform(bundle)
    function = _compiled(reference) if isinstance(reference, Program) else reference or loaded
    if function is None or (inputs is None and loaded is None):
        purpose, lacking = ("compare the exports with", "model") if function is None else ("make inputs from", "inputs")
        raise ArgumentError(
            f"there is nothing to {purpose}",
            at=os.fspath(path),
            found=f"{', '.join(row.name for row, _ in exports)}, and no {lacking}",
            expected="a StableHLO bundle in the same folder, which defines the inputs and outputs",
            do="pass reference=program_of(model, inputs) and inputs={'x': x}, or export formats=['stablehlo', ...] too",
        )
    entries: Sequence[Mapping[str, Any]] | None = None
    state: Mapping[str, Any] = {}
    if loaded is not None:
        entries, state = loaded.signature["inputs"], loaded.state
    elif isinstance(reference, Program):
        entries, state = described_inputs(reference), reference.state
    examples, expected, times = [], [], []
    for step in range(steps):
        given = _examples(made_up(loaded, seed + step) if inputs is None else inputs)
        if step:
            earlier = expected[-len(given) :]
            given = [{**now, **{name: then[name] for name in state}} for now, then in zip(given, earlier, strict=True)]
        examples += given if entries is None else _completed(given, entries, state)
        for example in examples[len(expected) :]:
            expected.append(_on_host(function(**example)))
            times.append(float(np.median(exchange.milliseconds_of(lambda x=example: _on_host(function(**x))))))
    reports = [
        validate_export(row.name, place, examples, expected, tolerance=tolerance, signature=signature, python=python)
        for row, place in exports
    ]
    return reports, times


def _check_platform(bundle: Path) -> None:
    """Raise for a bundle that was not written for a platform of this machine."""
    written = read_manifest(bundle).get("platforms", [])
    here = {"gpu": {"cuda", "rocm"}}.get(jax.default_backend(), {jax.default_backend()})
    if not here & set(written):
        raise ExportError(
            "the bundle does not run on this machine",
            at=os.fspath(bundle),
            found=f"written for {', '.join(written)}",
            expected=" or ".join(sorted(here)),
            do="validate it on the machine where it will run, or export with platforms=('cpu', ...) too",
        )


def _examples(inputs: Any) -> list[dict[str, Any]]:
    several = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(several, (list, tuple)) or not all(isinstance(each, Mapping) for each in several):
        raise ArgumentTypeError(
            "inputs must be arrays by name",
            found=describe_type(inputs),
            expected="a dictionary, or a list of dictionaries",
            do="inputs={'x': x}",
        )
    check_some("no example to compare", "inputs", several, "inputs={'x': x}, or omit inputs to generate them")
    return [dict(each) for each in several]


def _completed(examples: list[Arrays], entries: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> list[Arrays]:
    """The examples, checked, with the initial values of omitted state."""
    examples = [{**_first_state(example, entries, state), **example} for example in examples]
    for example in examples:
        check_example(example, entries)
    return examples


def _first_state(example: Arrays, entries: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> Arrays:
    """The initial values of the state, for the batch size of an example."""
    shapes = {entry["name"]: entry["shape"] for entry in entries}
    sizes: dict[Any, int] = {}
    for name, array in example.items():
        sizes |= dict(zip(shapes.get(name, ()), np.shape(array), strict=False))
    return {
        name: np.broadcast_to(array, [sizes.get(size, 1) if isinstance(size, str) else size for size in shapes[name]])
        for name, array in state.items()
    }


def check_example(example: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
    """Raise for arrays whose names, shapes or dtypes do not match a signature.

    Raises:
        ArgumentError: names the input, and what was found and expected.
    """
    names = [entry["name"] for entry in entries]
    found, expected = (f"arrays {', '.join(sorted(given)) or '(none)'}" for given in (example, names))
    advice = f"np.savez('data.npz', {', '.join(f'{name}=...' for name in names)})"
    check_equal("the inputs do not match the export's signature", found, expected, advice)
    sizes: dict[str, int] = {}
    for entry in entries:
        array, shape = np.asarray(example[entry["name"]]), entry["shape"]
        fits = len(shape) == array.ndim and all(
            size == (want if isinstance(want, int) else sizes.setdefault(want, size))
            for size, want in zip(array.shape, shape, strict=True)
        )
        if not fits or array.dtype.name != entry["dtype"]:
            raise ArgumentError(
                "an input does not fit the export",
                at=entry["name"],
                found=f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"
                + (f" with {', '.join(f'{name}={size}' for name, size in sizes.items())}" if sizes else ""),
                expected=f"{entry['dtype']}[{', '.join(map(str, shape))}]",
                do=f"pass an array of this shape, or array.astype({entry['dtype']!r})",
            )


def _compiled(program: Program) -> Callable[..., Arrays]:
    compiled, weights = jax.jit(program.call), jax.device_put(program.weights)
    return lambda **inputs: compiled(weights, inputs)


def _on_host(outputs: Any) -> Arrays:
    found = outputs if isinstance(outputs, Mapping) else {"y": outputs}
    return {name: np.asarray(array) for name, array in found.items()}


def made_up(loaded: Any, seed: int) -> list[Arrays]:
    """Random inputs for a loaded function, except its state: normal floats, small integers."""
    draw = np.random.default_rng(seed)
    return [
        {
            entry["name"]: random_array(
                draw, [one if isinstance(one, int) else size for one in entry["shape"]], entry["dtype"]
            )
            for entry in loaded.signature["inputs"]
            if entry["name"] not in loaded.state
        }
        for size in SIZES
    ]


def random_array(draw: np.random.Generator, shape: Sequence[int], dtype: Any) -> np.ndarray:
    """Normal floats, and 0 and 1 for integers and booleans."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.inexact):
        return draw.normal(size=shape).astype(dtype)
    return draw.integers(0, 2, shape).astype(dtype)
