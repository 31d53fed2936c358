"""A transformation applied to each layer of a stack as to a parameter of its own. (rule O10)

A ``Stack`` stores the layers of one parameter as one array, but Muon, LAMB, Adafactor, adaptive clipping and masks by
rank look at the shape or the norm of each parameter. Such a transformation is *mapped*: called once for all parameters,
under ``jax.vmap`` over the layers. That is the same as a list of layers if each layer is updated by one function of its
own values, and nothing else depends on a layer. Whether it is so is found out when the optimizer is created, by tracing
the update of two layers: the expressions of both, in terms of their inputs, must be equal, and neither may read the
other's inputs.

All others, such as clipping by the global norm, or a line search, combine parameters, and get the stacked arrays as
they are (*whole*). So a chain of both kinds is a list of transformations, each of which is treated by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core.nodes.nodes import jax_to_nnx_path
from ..core.states.state import State, from_flat_state
from ..util.paths import Path, layers_of

Values = Mapping[Path, Any]


def nested(values: Values) -> Any:
    """A nested ``State`` of values by path; the value itself if its path is that of the root."""
    return values[()] if () in values else from_flat_state(values)


def way_for(tx: Any, values: Values) -> str:
    """How to apply a transformation to these parameters: ``mapped`` or ``whole``."""
    if not any(map(_stacks_of, values)):
        return "whole"
    params = nested({path: _two_layers(path, value) for path, value in values.items()})
    for extra in ({}, {"value": jax.ShapeDtypeStruct((), jnp.float32)}):
        try:
            opt_state = jax.eval_shape(tx.init, params)
            traced = jax.make_jaxpr(lambda *args, **extra: tx.update(*args, **extra), return_shape=True)
            program, shapes = traced(params, opt_state, params, **extra)
        except Exception:  # whatever it raises, it needs more than the usual arguments of a transformation
            continue
        given = [(number, path) for number, tree in enumerate((params, opt_state, params)) for path in _paths(tree)]
        return "mapped" if _is_one_function(program, given, _paths(shapes), values) else "whole"
    return "whole"


def init(tx: Any, values: Values, way: str) -> Any:
    """The state of a transformation; in each ``State`` in it, arrays are stacked as in the model."""
    if way == "mapped":
        return _mapped(tx.init, (nested(values),), values)
    return tx.init(nested(values))


def update(tx: Any, gradients: Values, opt_state: Any, values: Values, extra: dict[str, Any], way: str) -> Any:
    """``tx.update``: a ``State`` of updates and the new state, both stacked as in the model."""
    given = (nested(gradients), opt_state, nested(values))
    if way == "mapped":
        return _mapped(lambda *args: tx.update(*args, **extra), given, values)
    return tx.update(*given, **extra)


def _stacks_of(path: Path) -> tuple[Path, ...]:
    """The paths of the groups of layers that a path runs through, outermost first."""
    return tuple(path[: place + 1] for place, key in enumerate(path) if layers_of(key) is not None)


def _parameter_of(path: Path, values: Values) -> Path:
    """The path of the parameter that a leaf of a ``State`` belongs to; ``()`` if there is none."""
    return next((path[:end] for end in range(len(path), 0, -1) if path[:end] in values), ())


def _is_state(node: Any) -> bool:
    return isinstance(node, State)


def _paths(tree: Any) -> list[Path]:
    """The path of each leaf in its ``State``; ``()`` for a leaf outside any ``State``."""
    found: list[Path] = []
    for node in jax.tree.leaves(tree, is_leaf=_is_state):
        leaves = jax.tree_util.tree_flatten_with_path(node)[0] if _is_state(node) else [((), node)]
        found += [jax_to_nnx_path(path) for path, _ in leaves]
    return found


# Mapped ---------------------------------------------------------------------------------------------------------------


def _mapped(f: Callable[..., Any], trees: tuple[Any, ...], values: Values) -> Any:
    """``f(*trees)``, mapped over the layers of every stack: nested, since an inner stack is in each layer of an outer.

    Each map takes and returns the leaves in two lists for each combination of stacks, those with its axis and those
    without.
    """
    leaves, treedef = jax.tree.flatten(trees)
    structure: Any = None
    groups: list[tuple[Path, ...]] = []

    def grouped(leaves: Sequence[Any], paths: Sequence[Path]) -> dict[tuple[Path, ...], list[Any]]:
        found: dict[tuple[Path, ...], list[Any]] = {group: [] for group in kinds}
        for leaf, path in zip(leaves, paths, strict=True):
            found[_stacks_of(_parameter_of(path, values))].append(leaf)
        return found

    def one_layer(given: list[list[Any]]) -> list[list[Any]]:
        nonlocal structure, groups
        supply = {group: iter(part) for group, part in zip(kinds, given, strict=True)}
        own = [next(supply[_stacks_of(_parameter_of(path, values))]) for path in _paths(trees)]
        result = f(*treedef.unflatten(own))
        results, structure = jax.tree.flatten(result)
        paths = _paths(result)
        groups = [_stacks_of(_parameter_of(path, values)) for path in paths]
        return list(grouped(results, paths).values())

    kinds = list(dict.fromkeys([_stacks_of(path) for path in values] + [()]))
    call: Any = one_layer
    for stack in sorted({stack for group in kinds for stack in group}, key=len, reverse=True):
        axes = [0 if stack in group else None for group in kinds]
        call = jax.vmap(call, in_axes=(axes,), out_axes=axes)
    found = {
        group: iter(part)
        for group, part in zip(kinds, call(list(grouped(leaves, _paths(trees)).values())), strict=True)
    }
    return structure.unflatten([next(found[group]) for group in groups])


# Two layers -----------------------------------------------------------------------------------------------------------


def _two_layers(path: Path, value: Any) -> Any:
    depth = len(_stacks_of(path))

    def one(leaf: Any) -> Any:
        return jax.ShapeDtypeStruct(np.shape(leaf)[depth:], jnp.result_type(leaf))

    return (jax.tree.map(one, value), jax.tree.map(one, value)) if depth else jax.tree.map(one, value)


def _layer_of(path: Path, values: Values) -> tuple[Any, int] | None:
    """The group of layers that a leaf belongs to, and which of the two layers it is from."""
    parameter = _parameter_of(path, values)
    stacks = _stacks_of(parameter)
    return (stacks[-1], path[len(parameter)]) if stacks else None


def _is_one_function(program: Any, given: Sequence[Any], results: Sequence[Path], values: Values) -> bool:
    """Whether both layers of each stack have one expression in their own inputs, and no other result reads a layer.

    Inputs of both layers are the same expression; which layers it reads is noted beside it.
    """
    known: dict[Any, int] = {}
    inputs = []
    for place in range(len(program.jaxpr.invars)):
        argument, path = given[place] if place < len(given) else ("extra", (place,))
        layer, end = _layer_of(path, values), len(_parameter_of(path, values))
        name = (argument, place) if layer is None else (argument, path[:end], path[end + 1 :])
        inputs.append((_numbered(known, name), frozenset() if layer is None else frozenset([layer])))
    of_layer: dict[Any, list[int]] = {}
    outputs = _expressions(known, program.jaxpr, program.consts, inputs)
    for (expression, layers), path in zip(outputs, results, strict=True):
        layer = _layer_of(path, values)
        if not layers <= ({layer} if layer is not None else frozenset()):
            return False
        if layer is not None:
            of_layer.setdefault(layer, []).append(expression)
    return all(expressions == of_layer[stack, 1 - layer] for (stack, layer), expressions in of_layer.items())


# A number for a primitive with its parameters and the expressions of its operands; and the layers that it reads.
Expression = tuple[int, frozenset[Any]]


def _expressions(known: dict[Any, int], jaxpr: Any, consts: Any, inputs: Sequence[Expression]) -> list[Expression]:
    """The expressions of a program's results, calls and branches included."""
    found: dict[Any, Expression] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        found[variable] = (_numbered(known, ("constant", id(value))), frozenset())

    def read(variable: Any) -> Expression:
        if hasattr(variable, "val"):  # a literal
            return _numbered(known, ("literal", str(variable.aval), repr(variable.val))), frozenset()
        return found[variable]

    for equation in jaxpr.eqns:
        operands = [read(variable) for variable in equation.invars]
        name, params = equation.primitive.name, equation.params
        if name in ("jit", "pjit"):
            called = params["jaxpr"]
            results = _expressions(known, called.jaxpr, called.consts, operands)
        elif name == "cond":
            index, *rest = operands
            each = [_expressions(known, branch.jaxpr, branch.consts, rest) for branch in params["branches"]]
            results = [_joined(known, (name,), [index, *choices]) for choices in zip(*each, strict=True)]
        else:
            results = [_joined(known, (name, str(params), i), operands) for i in range(len(equation.outvars))]
        found.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in jaxpr.outvars]


def _joined(known: dict[Any, int], name: tuple[Any, ...], operands: Sequence[Expression]) -> Expression:
    number = _numbered(known, (*name, *(operand for operand, _ in operands)))
    return number, frozenset().union(*(layers for _, layers in operands))


def _numbered(known: dict[Any, int], key: Any) -> int:
    return known.setdefault(key, len(known))
