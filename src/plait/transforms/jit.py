"""``jit``: a compiled function of objects that costs what ``jax.jit`` on a flat list of arrays costs.

A call takes one of two ways, with the same answers by construction and by test:

* **the general way** gathers the arguments (``crossing.py``), finds the compiled function for their structure, runs it
  and writes the outcome back;
* **the fast way** is taken when a call looks like an earlier one whose outcome was plain. It looks up the walk that the
  first module keeps, checks it against the structure clock, reads each variable's cell into one list, calls the same
  compiled function, and writes the returned values into the cells that were written.

Compiled functions are kept per structure (interned graphdefs and the treedef of the arguments), not per object, so
equal models share one. What a trace wrote is known only to that trace, and another trace (other shapes) may write
other variables. The first outcome of a compiled function returns its values as a plain list; a later, different one
returns a dict whose only key is the number of its outcome. (rules U33, U34, X10)

Who fills the caches: ``_general`` (compiled functions, by structure) and ``find_walk`` (walks, on their first root).
What empties them: the death of the jitted function, and of the root. What they hold: no module, see ``walks.py``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import numpy as np

from .._compat import ArrayImpl, top_level_trace, trace_state
from ..core.clock import clock
from ..core.nodes import Static
from ..core.statics import static_key
from ..core.walks import CachedWalk
from ..errors import ArgumentError, DispatchError
from ..paths import describe_path
from .crossing import Gathered, Outcome, Structure, check_function, gather, run_inside, write_back

P = ParamSpec("P")
R = TypeVar("R")

CHECK_DISPATCH = os.environ.get("PLAIT_CHECK_DISPATCH", "0") not in ("", "0")
_LEAF_TYPES = frozenset({ArrayImpl, np.ndarray, bool, int, float, complex})


@dataclasses.dataclass(frozen=True)
class TraceSignature:
    """What a trace depended on: the structure of the arguments, and shape and dtype of each array in them."""

    structure: Structure
    values: tuple[str, ...]
    plain: tuple[str, ...]


# Called at each trace with the function, the signature of the trace, and those of its earlier traces.
trace_listeners: list[Callable[[Callable[..., Any], TraceSignature, list[TraceSignature]], Any]] = []


def _short_aval(value: Any) -> str:
    return ", ".join(jax.typeof(leaf).str_short(short_dtypes=False) for leaf in jax.tree.leaves(value))


class Compiled:
    """One compiled function: the transformed function for one structure of arguments.

    Attributes:
        call: the function, of (values, plain leaves).
        outcomes: what its traces did, in the order of the first trace of each kind.
    """

    __slots__ = ("call", "outcomes")

    def __init__(
        self, f: Callable[..., Any], structure: Structure, options: dict[str, Any], history: list[TraceSignature]
    ) -> None:
        self.outcomes: list[Outcome] = []
        outcomes = self.outcomes

        def pure(values: list[Any], plain: list[Any]) -> Any:
            signature = TraceSignature(structure, tuple(map(_short_aval, values)), tuple(map(_short_aval, plain)))
            for listener in list(trace_listeners):
                listener(f, signature, history)
            result = run_inside(f, structure, values, plain, "jit")
            history.append(signature)
            outcome = result.outcome
            if outcome not in outcomes:
                outcomes.append(outcome)
            number = outcomes.index(outcome)
            if number == 0 and outcome.is_plain:
                return result.plain, result.values
            return result.plain, {number: result.values}

        pure.__name__ = pure.__qualname__ = getattr(f, "__name__", type(f).__name__)
        self.call = jax.jit(pure, **options)

    def outcome_of(self, returned: Any) -> tuple[Outcome, list[Any]]:
        """Which outcome the second part of a result belongs to, and its values."""
        if type(returned) is list:
            return self.outcomes[0], returned
        ((number, values),) = returned.items()
        return self.outcomes[number], values


class _Entry:
    """What the fast way needs for one walk: the compiled function, and the cells that its first outcome writes."""

    __slots__ = ("call", "cells", "compiled", "written")

    def __init__(self, compiled: Compiled, walk: CachedWalk) -> None:
        self.compiled = compiled
        self.call = compiled.call
        self.cells = walk.cells
        self.written = [walk.cells[position] for position in compiled.outcomes[0].written]


class _Layout:
    """Which positional arguments are modules and which are single arrays, as in the latest general call."""

    __slots__ = ("arrays", "count", "first", "others")

    def __init__(self, count: int, objects: Sequence[int]) -> None:
        self.count = count
        self.first = objects[0]
        self.others = tuple(objects[1:])
        self.arrays = tuple(i for i in range(count) if i not in objects)


@overload
def jit(fun: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...
@overload
def jit(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(
    fun: Any = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.jit`` for functions of modules, variables and pytrees of them.

    Changes that the function makes to its arguments (values, attributes, sharing) are made to the caller's own objects.
    The function is traced once per structure of the arguments and shapes of their arrays; equal structures share one
    compiled function, whichever objects they come from.

    Args:
        fun: the function; without it ``jit`` returns a decorator.
        static_argnums: positions of arguments that are part of the compile key; they must be hashable.
        static_argnames: names of such arguments.
        keep_unused, inline: as in ``jax.jit``.

    Returns:
        A function with the signature of ``fun``. If ``fun`` raises, no argument is changed.

    Raises:
        ArgumentError: ``fun`` is a bound method of a module, or a static argument cannot be hashed.

    Example:
        >>> class Counter(plait.Module):
        ...     def __init__(self):
        ...         self.count = plait.Variable(jnp.zeros((), jnp.int32))
        >>> @plait.jit
        ... def step(counter, x):
        ...     counter.count += 1
        ...     return x * counter.count
        >>> counter = Counter()
        >>> float(step(counter, 2.0)), float(step(counter, 2.0)), int(counter.count)
        (2.0, 4.0, 2)
    """
    given = {"static_argnums": static_argnums, "static_argnames": static_argnames}
    options = {"keep_unused": keep_unused, "inline": inline}
    if fun is None:
        return lambda fun: jit(fun, **given, **options, graph=graph, graph_updates=graph_updates)
    check_function(fun, "jit")
    return _make_jitted(fun, _static_positions(fun, **given), {k: v for k, v in options.items() if v})


def _static_positions(fun: Any, static_argnums: Any, static_argnames: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Static arguments, each both by position and by name where the signature tells."""
    numbers = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums or ())
    names = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames or ())
    if numbers or names:
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        numbers = {n + len(positional) if n < 0 else n for n in numbers}
        names |= {positional[n] for n in numbers if n < len(positional)}
        numbers |= {positional.index(name) for name in names if name in positional}
    return frozenset(numbers), frozenset(names)


def _make_jitted(f: Any, statics: tuple[frozenset[int], frozenset[str]], options: dict[str, Any]) -> Any:
    compiled_functions: dict[Any, Compiled] = {}
    history: list[TraceSignature] = []
    layout: _Layout | None = None
    token = object()
    static_numbers, static_names = statics

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        plan = layout
        if plan is None or kwargs or len(args) != plan.count or trace_state.value is not top_level_trace:
            return general(args, kwargs)
        try:
            walk = args[plan.first]._walks[tuple([id(args[i]) for i in plan.others])]
            entry = walk.entries[token]
        except (AttributeError, KeyError):
            return general(args, kwargs)
        if (walk.stamp != clock.now or walk.containers) and not walk.is_current():
            return general(args, kwargs)
        plain = [args[i] for i in plan.arrays]
        for value in plain:
            if type(value) not in _LEAF_TYPES:
                return general(args, kwargs)
        if CHECK_DISPATCH:
            check_walk(walk, [args[plan.first], *(args[i] for i in plan.others)])
        out, values = entry.call([cell.raw for cell in entry.cells], plain)
        if type(values) is list:
            for cell, value in zip(entry.written, values):  # noqa: B905 - strict costs 30 ns
                cell.raw = value
            return out
        outcome, values = entry.compiled.outcome_of(values)
        return write_back(outcome, gather((args, kwargs)), values, out)

    def wrap_static(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (
            tuple(_static(value, i) if i in static_numbers else value for i, value in enumerate(args)),
            {name: _static(value, name) if name in static_names else value for name, value in kwargs.items()},
        )

    def general(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal layout
        if static_numbers or static_names:
            args, kwargs = wrap_static(args, kwargs)
        gathered = gather((args, kwargs))
        compiled = find_compiled(gathered)
        try:
            plain, returned = compiled.call(gathered.values(), gathered.plain)
        except TypeError as error:
            explain_bad_values(error, gathered)
            raise
        outcome, values = compiled.outcome_of(returned)
        result = write_back(outcome, gathered, values, plain)
        if compiled.outcomes[0].is_plain and not kwargs and not static_numbers:
            layout = remember(args, gathered, compiled) or layout
        return result

    def find_compiled(gathered: Gathered) -> Compiled:
        structure = gathered.structure
        key = (structure.treedef, structure.graphdefs)
        compiled = compiled_functions.get(key)
        if compiled is None:
            compiled = compiled_functions.setdefault(key, Compiled(f, structure, options, history))
        return compiled

    def remember(args: tuple[Any, ...], gathered: Gathered, compiled: Compiled) -> _Layout | None:
        walk = gathered.walk
        if walk is None or walk.stamps is None:
            return None
        objects = [i for i, value in enumerate(args) if any(value is root for root in gathered.roots)]
        if len(objects) != len(gathered.roots) or len(gathered.plain) != len(args) - len(objects):
            return None
        walk.entries[token] = _Entry(compiled, walk)
        return _Layout(len(args), objects)

    functools.update_wrapper(wrapper, f)
    wrapper.clear_cache = compiled_functions.clear  # type: ignore[attr-defined]
    return wrapper


def _static(value: Any, argument: int | str) -> Static:
    try:
        static_key(value)
    except TypeError as error:
        raise ArgumentError(
            "a static argument cannot be hashed",
            at=f"argument {argument!r}",
            found=f"a {type(value).__name__}",
            expected="a hashable value",
            do="pass a tuple instead of a list, or a frozen dataclass, or do not mark the argument static",
        ) from error
    return Static(value)


def explain_bad_values(error: TypeError, gathered: Gathered) -> None:
    """Name the variable whose value JAX could not take.

    Raises:
        ArgumentError: some variable holds neither arrays nor numbers.
    """
    if gathered.walk is None:
        return
    bad = []
    for cell, path in zip(gathered.walk.cells, gathered.walk.paths(), strict=True):
        for leaf in jax.tree.leaves(cell.raw):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
                bad.append((path, leaf))
    if bad:
        raise ArgumentError(
            "a variable holds a value that is no array",
            at=', '.join(describe_path(path) for path, _ in bad),
            found=f"a {type(bad[0][1]).__name__}",
            expected="arrays, or numbers",
            do="keep such values as plain attributes, which are static",
        ) from error


def check_walk(walk: CachedWalk, roots: Sequence[Any]) -> None:
    """Compare a cached walk with a fresh one (``PLAIT_CHECK_DISPATCH=1``).

    Raises:
        DispatchError: they differ; the fast way would have answered for another structure.
    """
    fresh = CachedWalk(tuple(roots))
    same_cells = len(fresh.cells) == len(walk.cells) and all(
        new is old or (not hasattr(new, "metadata") and new.raw is old.raw)
        for new, old in zip(fresh.cells, walk.cells, strict=True)
    )
    if fresh.graphdefs != walk.graphdefs or not same_cells:
        raise DispatchError(
            "a cached walk differs from a fresh one",
            at=", ".join(f"a {type(root).__name__}" for root in roots),
            found="a change of structure that did not move the structure clock",
            expected="changes by assignment; writing through obj.__dict__ goes round the hooks",
            do="assign attributes instead of writing to __dict__; otherwise this is a bug in plait",
        )

