"""Arguments that JAX refuses because they are not arrays: which one it was, and what to do instead of passing it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ...core.objects.nodes import jax_key_to_key
from ...errors import ArgumentTypeError, PlaitError
from ...words import describe_type
from .body import Body, guarded
from .gather import Gathered, Structure
from .names import ParameterNames, argument_name, is_name, name_in_code, parameter_names

_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)

# The options by which a transform leaves out an argument, given its number.
_OPTIONS = {
    **dict.fromkeys(("jit", "remat", "make_jaxpr"), "static_argnums={}"),
    "pmap": "static_broadcasted_argnums={}",
    **dict.fromkeys(("custom_vjp", "custom_jvp"), "nondiff_argnums=({},)"),
}
_LOOPS = ("scan", "while_loop", "fori_loop", "lax_map", "Stack")


def check_plain_arguments(transform: str, f: Callable[..., Any], gathered: Gathered, error: Exception) -> None:
    """If JAX refused an argument that is not an array, raise an error that names it.

    Raises:
        ArgumentTypeError: names the argument, its type, and what to do about it.
    """
    if isinstance(error, PlaitError) or _was_called(error):
        return
    structure = gathered.structure
    plain = [path for path, graphdef in zip(structure.places(), structure.graphdefs, strict=True) if graphdef is None]
    names = parameter_names(f)
    for path, value in zip(plain, gathered.plain, strict=True):
        if isinstance(value, _NUMBERS) or hasattr(value, "__jax_array__"):
            continue
        raise ArgumentTypeError(
            f"{transform}: {getattr(f, '__name__', 'f')} was called with an argument that is not an array",
            at=f"argument {argument_name(path, names)}",
            found=f"{describe_type(value)}: {value!r:.60}",
            expected="arrays, numbers, modules, and containers of them",
            do=_instead(transform, f, path, names, structure),
        ) from error


def _was_called(error: Exception) -> bool:
    """Whether the error comes from the user's function or rule, or from what it called."""
    codes = (Body.call.__code__, guarded.__code__)
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _instead(transform: str, f: Callable[..., Any], path: Any, names: ParameterNames, structure: Structure) -> str:
    """What to do about an argument that is not an array, or contains what is none."""
    if len(path) > 2:
        return ("make the whole argument static, or " if transform in _OPTIONS else "") + "remove such values from it"
    kind, key, *_ = map(jax_key_to_key, path)
    name = names.at(key) if kind == 0 else str(key)
    if transform == "jit" and is_name(name):
        return f"make it static: plait.jit({name_in_code(f)}, static_argnames={name!r})"
    number = key if kind == 0 else names.positional.index(name) if name in names.positional else None
    if transform in _OPTIONS and number is not None:
        how = "make it static" if kind == 0 else "pass it by position, and make it static"
        return f"{how}: plait.{transform}({name_in_code(f)}, {_OPTIONS[transform].format(number)})"
    args, kwargs = jax.tree_util.tree_unflatten(structure.treedef, structure.graphdefs)
    given = [*map(names.at, range(len(args)))]
    if transform in _LOOPS or not all(map(is_name, [*given, *kwargs])):
        return "take it from outside of the function, instead of passing it"
    passed = ", ".join([*given, *(f"{each}={each}" for each in kwargs)])
    taken = ", ".join(each for each in [*given, *kwargs] if each != name)
    return f"take it from outside: {f'lambda {taken}' if taken else 'lambda'}: {name_in_code(f)}({passed})"
