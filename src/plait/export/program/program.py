"""A program: a pure function from named weights and inputs to named outputs.

A module becomes a program through its variables. Each is a *weight*, stored next to the program; or a part of the
*state*, an input and output of every call (a cache, running statistics, random streams); or *frozen*, a weight whose
changes are discarded. A variable that the function changes must be one of the latter two.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.export
import jax.extend.core
import numpy as np

from ...core.functional.merge import merge
from ...core.functional.split import split
from ...core.module_calls.layer_scopes import layer_scopes
from ...core.nodes.nodes import iter_variables
from ...core.nodes.pytree import Pytree
from ...core.states.pure_dicts import plain_value, with_value
from ...core.states.state import FlatState, from_flat_state, to_flat_state
from ...core.variables.filters import to_predicate
from ...edit.views import with_vars
from ...errors import ArgumentError, ArgumentTypeError, ExportError
from ...typing import FilterLiteral
from ...util.paths import Path, describe_path, layers_of
from ...util.words import describe_type, first_few
from .checks import check_different, check_type
from .input_spec import InputSpec, resolve_input_specs
from .numbers import check_numbers
from .weights import by_name, check_distinct, key_name, named_weights, on_host

Arrays = dict[str, Any]
OUTPUT = "y"
SIGNATURE = "serving_default"  # the default name of a signature
Call = tuple[list[Any], dict[str, Any]]  # arguments by position and by name
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Program:
    """A pure function ``(weights, inputs) -> outputs`` of three dictionaries of arrays.

    Attributes:
        call: the function; traceable by JAX.
        weights: arrays of numbers on the host, by name.
        inputs: name, shape and dtype of each input; state comes last.
        state: the initial values of the inputs that are state; each has an output with its name.
        optional: weights that are not stored if the function does not use them.
    """

    call: Callable[[Arrays, Arrays], Arrays]
    weights: dict[str, np.ndarray]
    inputs: tuple[InputSpec, ...]
    state: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    optional: frozenset[str] = frozenset()


def program_of(
    model: Any,
    inputs: Any,
    *,
    method: str = "__call__",
    state: FilterLiteral = (),
    frozen: FilterLiteral = (),
    state_batch: str | None = None,
) -> Program:
    """The program of a module's method, or of a pair ``(params, function)``.

    Args:
        model: a module, or ``(params, function)`` where ``function(params, *inputs)`` is pure.
        inputs: an ``InputSpec``, a shape, a sequence of ``InputSpec``s, one for each argument, or a dictionary: an
            input is passed to the argument with its name, or all in order if the function has other names.
        method: the name of the module's method.
        state: variables that are inputs and outputs of the program.
        frozen: variables whose changes are discarded.
        state_batch: the name of the size of the state's batch axis, which is its first after those of stacks, so that
            any batch size can be run. Make the model with a batch of 1.

    Raises:
        ArgumentTypeError: ``model`` is neither.
        ArgumentError: there is no such method, two inputs have one name, or the state has another batch size than 1.
        ExportError: while tracing: the method changes a variable that is neither state nor frozen.
    """
    specs = resolve_input_specs(inputs)
    if isinstance(model, Pytree):
        return _program_of_module(model, specs, isinstance(inputs, Mapping), method, state, frozen, state_batch)
    if isinstance(model, tuple) and len(model) == 2 and callable(model[1]):
        params, function = model
        apply = by_name(function, params)
        given = _arguments(specs, function, match_names=isinstance(inputs, Mapping))

        def call(weights: Arrays, xs: Arrays) -> Arrays:
            args, kwargs = given(xs)
            return named_outputs(apply(weights, *args, **kwargs))

        return Program(call, named_weights(params), specs)
    raise ArgumentTypeError(
        "an export takes a model",
        found=describe_type(model),
        expected="a module, or a pair (params, function) of a pure function(params, *inputs)",
        do="plait.export.save(model, path, formats=['stablehlo'], inputs=plait.export.InputSpec(('batch', 8)))",
    )


def _program_of_module(
    model: Any,
    specs: tuple[InputSpec, ...],
    named: bool,
    method: str,
    state: FilterLiteral,
    frozen: FilterLiteral,
    batch: str | None,
) -> Program:
    advice, where = "methods={'encode': 'encode'}", type(model).__name__
    check_type("a method must be given by its name", method, str, "the name of a method", advice, at=where)
    if not callable(getattr(type(model), method, None)):
        raise ArgumentError(
            "the model has no such method",
            at=where,
            found=f"method={method!r}",
            expected="the name of a method",
            do=f"define {where}.{method}, or pass the name of an existing method",
        )
    if any(variable.get_metadata("ref", False) for _, variable in iter_variables(model)):
        model = with_vars(model, ref=False, allow_duplicates=True, graph=True)
    graphdef, flat = split(model, graph=True)
    flat = to_flat_state(flat)
    is_state, may_change = to_predicate(state), to_predicate((state, frozen))
    leaves = dict(flat)
    carried = {path: _state_name(path) for path, leaf in leaves.items() if is_state(path, leaf)}
    keys = {path: jax.random.key_impl(plain_value(leaf)) for path, leaf in leaves.items() if _is_key(plain_value(leaf))}
    values = {path: _numbers(plain_value(leaf)) for path, leaf in leaves.items()}
    for path, value in values.items():
        check_numbers(value, describe_path(path))
    first = {name: on_host(values[path], describe_path(path)) for path, name in carried.items()}
    tree = {path: value for path, value in values.items() if path not in carried}
    names = {path: ".".join(map(str, jax.tree.leaves(path))) for path in tree}  # a key may be a path itself
    check_distinct(names)
    states = [(f"the state {describe_path(path)}", name) for path, name in carried.items()]
    _check_names([*((f"input {index}", spec.name) for index, spec in enumerate(specs)), *states])
    arguments_of = _arguments(specs, getattr(type(model), method), match_names=named)

    def call(weights: Arrays, xs: Arrays) -> Arrays:
        given = {}
        for path in leaves:
            raw: Any = xs[carried[path]] if path in carried else weights.get(names[path], tree.get(path))
            given[path] = jax.random.wrap_key_data(raw, impl=keys[path]) if path in keys else raw
        pairs = [(path, with_value(leaf, given[path])) for path, leaf in leaves.items()]
        inner = merge(graphdef, from_flat_state(FlatState(pairs, sort=False)))
        with layer_scopes(inner):
            args, kwargs = arguments_of(xs)
            outputs = named_outputs(getattr(inner, method)(*args, **kwargs))
        after = {path: plain_value(leaf) for path, leaf in to_flat_state(split(inner, graph=True)[1])}
        changed = [path for path in leaves if after.get(path) is not given[path]]
        _check_changes([path for path in changed if not may_change(path, leaves[path])], leaves)
        _check_names([*(("an output", name) for name in outputs), *states])
        return {**outputs, **{name: _numbers(after[path]) for path, name in carried.items()}}

    weights = named_weights({names[path]: value for path, value in tree.items()})
    shapes = {name: _state_shape(path, first[name].shape, batch) for path, name in carried.items()}
    carried_specs = tuple(InputSpec(shapes[name], array.dtype, name) for name, array in first.items())
    return Program(call, weights, (*specs, *carried_specs), first, frozenset(weights))


def _arguments(
    specs: Sequence[InputSpec], function: Callable[..., Any], *, match_names: bool
) -> Callable[[Mapping[str, Any]], Call]:
    """A function from inputs by name to arguments.

    Args:
        specs: the inputs, in order.
        function: the function that takes them, after one parameter.
        match_names: whether to match inputs by name. If ``function`` has none of the names, they are positional anyway,
            and the names are only those of the file.

    Raises:
        ArgumentError: some inputs have the names of parameters, but not all, so that one would be misassigned.
    """
    names = [spec.name for spec in specs]
    positional = lambda xs: ([xs[name] for name in names], {})
    if not match_names:
        return positional
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (TypeError, ValueError):  # a function without a signature
        return positional
    known = [parameter.name for parameter in parameters if parameter.kind in _NAMED]
    if set(names) <= set(known):
        return lambda xs: ([], {name: xs[name] for name in names})
    for index, name in enumerate(names):
        if name in known and parameters[index : index + 1] != [p for p in parameters if p.name == name]:
            raise ArgumentError(
                "the inputs match the arguments of the function neither by name nor by order",
                at=name,
                found=f"inputs {', '.join(names)}",
                expected=f"arguments {', '.join(known)}",
                do="name the inputs like the arguments, or pass them in a list, in order, as InputSpec(..., name=...)",
            )
    return positional


def _is_key(value: Any) -> bool:
    return hasattr(value, "dtype") and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)


def _numbers(value: Any) -> Any:
    """Random keys as their key data; everything else unchanged."""
    return jax.random.key_data(value) if _is_key(value) else value


def _state_name(path: Path) -> str:
    """A path as an identifier, which all formats accept as the name of an input."""
    text = "_".join(map(str, path))
    text = "".join(char if char.isalnum() or char == "_" else "_" for char in text)
    return text if text.isidentifier() else f"state_{text}"


def _state_shape(path: Path, shape: tuple[int, ...], batch: str | None) -> tuple[int | str, ...]:
    """The shape of a state, with the name of its batch size."""
    axis = sum(layers_of(key) is not None for key in path)
    if batch is None or axis >= len(shape):
        return shape
    if shape[axis] != 1:
        raise ArgumentError(
            "a state whose batch size is free begins with a batch of 1",
            at=describe_path(path),
            found=f"shape {shape}, and state_batch={batch!r}",
            expected=f"shape {(*shape[:axis], 1, *shape[axis + 1 :])}",
            do="plait.view(model, decode=True, batch_size=1, max_length=...), or omit state_batch",
        )
    return (*shape[:axis], batch, *shape[axis + 1 :])


def named_outputs(tree: Any) -> Arrays:
    """A function's outputs by name: ``y`` for one array, the keys of a dict, ``y_0`` and so on for positions."""
    if jax.tree_util.all_leaves([tree]):
        return {OUTPUT: tree}
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        words = [key_name(entry) for entry in path]
        name = "_".join(words if not words[0].isdigit() else [OUTPUT, *words])
        found.append((name, leaf))
    _check_names([("an output", name) for name, _ in found])
    if not found:
        raise ExportError(
            "the exported function returns nothing",
            found=f"{tree!r}",
            expected="at least one array",
            do="return the arrays that the file should return",
        )
    return dict(found)


def _check_names(names: Sequence[tuple[str, str]]) -> None:
    message = "two inputs or outputs of an export have the same name"
    advice = "name the inputs: InputSpec(shape, name='tokens'), and return outputs in a dictionary"
    check_different(message, names, advice)


def _check_changes(paths: list[Path], leaves: Mapping[Path, Any]) -> None:
    if not paths:
        return
    kinds = sorted({type(leaves[path]).__name__ for path in paths})
    chosen = f"plait.{kinds[0]}" if len(kinds) == 1 else f"({', '.join(f'plait.{kind}' for kind in kinds)})"
    raise ExportError(
        "the exported function changes variables of the model",
        at=first_few([*map(describe_path, paths)]),
        found=f"changes of {len(paths)} variables: {', '.join(kinds)}",
        expected="a function without changes, or state= or frozen= for them",
        do=f"call model.eval() before the export; or state={chosen} makes them inputs and outputs, and "
        f"frozen={chosen} discards the changes",
    )


def shared_weights(programs: Mapping[str, Program]) -> dict[str, np.ndarray]:
    """The weights of all programs, each once."""
    weights: dict[str, np.ndarray] = {}
    for name, program in programs.items():
        for key, array in program.weights.items():
            known = weights.setdefault(key, array)
            if known is not array and not _same(known, array):
                raise ArgumentError(
                    "two signatures have different weights under one name",
                    at=key,
                    found=f"values in the signature {name!r} that differ from those of an earlier one",
                    expected="functions of one model",
                    do="export them to two folders",
                )
    return weights


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and a.tobytes() == b.tobytes()
