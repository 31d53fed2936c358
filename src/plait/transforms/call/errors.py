"""Values that JAX refuses: which variable or argument holds one that is no array, is deleted, or is of a trace that has
ended, and what to do instead."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable

import jax
import numpy as np
from jax.tree_util import KeyPath

from ...core.nodes.nodes import jax_key_to_key
from ...core.transform import Transformation
from ...core.variables.cells import is_unusable, unusable
from ...errors import ArgumentError, ArgumentTypeError, PlaitError, TraceContextError
from ...typing import Tree, Value
from ...util.jax_versions import Tracer
from ...util.words import describe_type, first_few, text_of
from .arguments import Gathered, Structure, argument_name, parameter_names
from .body import is_from_inside

# Not every error after a donation is one about donated buffers: a callback may have raised.
_DELETED = re.compile("(array|buffer) has been deleted", re.IGNORECASE)
_NUMBERS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex, jax.ShapeDtypeStruct)


def explain(transform: Transformation, f: Callable[..., Tree], gathered: Gathered, error: Exception) -> None:
    """If JAX refused a value of a call, raise an error that names it; not for an error of the user's function."""
    if isinstance(error, PlaitError):
        return
    if says_unusable(error):
        explain_unusable(f, gathered)
    elif not is_from_inside(error) and not isinstance(error, (ValueError, RuntimeError)):
        _explain_bad_values(error, f, gathered)
        _check_plain_arguments(transform, f, gathered, error)


def says_unusable(error: BaseException) -> bool:
    """Whether JAX raised it for an array that was donated to an earlier call, or for a shape without values."""
    if isinstance(error, TypeError):
        return "ShapeDtypeStruct" in text_of(error)
    is_jax_s = isinstance(error, (RuntimeError, ValueError))
    return is_jax_s and _DELETED.search(text_of(error).partition("\n")[0]) is not None


def _check_plain_arguments(
    transform: Transformation, f: Callable[..., Tree], gathered: Gathered, error: Exception
) -> None:
    """Raise an error that names an argument which JAX does not accept.

    Raises:
        ArgumentTypeError: names the argument, its type, and what to do about it.
    """
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
            do=_instead(transform, f, path, structure),
        ) from error


def explain_unusable(f: Callable[..., Tree], gathered: Gathered) -> None:
    """Raise an error that names the variables whose buffers were donated to an earlier call, or that have no values.

    Raises:
        DonatedArrayError, ArgumentError: names their paths.
    """
    found = _holding(f, gathered, is_unusable)
    if found:
        raise unusable(next(iter(found.values())), first_few([*found], 5))


def _explain_bad_values(error: Exception, f: Callable[..., Tree], gathered: Gathered) -> None:
    """Raise an error that names the variable whose value JAX does not accept.

    Raises:
        TraceContextError: a variable has a value from a trace that has ended.
        ArgumentError: a variable has a value that is neither arrays nor numbers.
    """
    if isinstance(error, jax.errors.UnexpectedTracerError):
        leaked = _holding(f, gathered, lambda leaf: isinstance(leaf, Tracer))
        if leaked:
            raise TraceContextError(
                "a variable has a value from a JAX trace that has ended",
                at=", ".join(leaked),
                found="a tracer, stored by a function that changed a captured container while it was traced",
                expected="arrays",
                do="remove the object again, and pass the model as an argument to the function that adds it",
            ) from error
        return
    accepted = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
    bad = _holding(f, gathered, lambda leaf: not isinstance(leaf, accepted))
    if bad:
        raise ArgumentError(
            "a variable has a value that is not an array",
            at=", ".join(bad),
            found=f"a {type(next(iter(bad.values()))).__name__}",
            expected="arrays or numbers",
            do="store such a value as a plain attribute, which is static: model.name = value",
        ) from error


def _holding(f: Callable[..., Tree], gathered: Gathered, is_bad: Callable[[Value], bool]) -> dict[str, Value]:
    """The variables with such a value, by their paths, and the part of the value that is bad."""
    cells = [] if gathered.walk is None else gathered.walk.cells
    bad = {i: leaf for i, cell in enumerate(cells) for leaf in jax.tree.leaves(cell.raw) if is_bad(leaf)}
    labels = gathered.structure.value_labels(gathered.structure.labels(f)[0]) if bad else []
    return {labels[i]: leaf for i, leaf in bad.items()}


def _instead(transform: Transformation, f: Callable[..., Tree], path: KeyPath, structure: Structure) -> str:
    """What to do about an argument that is not an array, or contains what is none."""
    if len(path) > 2:
        return ("make the whole argument static, or " if transform.static else "") + "remove such values from it"
    names, (kind, key, *_) = parameter_names(f), map(jax_key_to_key, path)
    name = names.at(key) if kind == 0 else str(key)
    if transform.static_name and _is_name(name):
        return f"make it static: plait.{transform}({_name_in_code(f)}, {transform.static_name.format(name)})"
    number = key if kind == 0 else names.positional.index(name) if name in names.positional else None
    if transform.static and number is not None:
        how = "make it static" if kind == 0 else "pass it by position, and make it static"
        return f"{how}: plait.{transform}({_name_in_code(f)}, {transform.static.format(number)})"
    args, kwargs = jax.tree_util.tree_unflatten(structure.treedef, structure.graphdefs)
    given = [*map(names.at, range(len(args)))]
    if transform.loops or not all(map(_is_name, [*given, *kwargs])):
        return "take it from outside of the function, instead of passing it"
    passed = ", ".join([*given, *(f"{each}={each}" for each in kwargs)])
    taken = ", ".join(each for each in [*given, *kwargs] if each != name)
    return f"take it from outside: {f'lambda {taken}' if taken else 'lambda'}: {_name_in_code(f)}({passed})"


def _name_in_code(function: Callable[..., Tree]) -> str:
    """The name of a function in advice that is code; ``f`` for one without a name, such as a lambda."""
    name = getattr(function, "__name__", "f")
    return name if _is_name(name) else "f"


def _is_name(text: str) -> bool:
    """Whether a text is the name of a Python variable."""
    return text.isidentifier() and not keyword.iskeyword(text)
