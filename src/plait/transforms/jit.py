"""``jit``: a compiled function of objects that costs what ``jax.jit`` on a flat list of arrays costs.

A call takes one of two ways, with the same answers by construction and by test:

* **the general way** gathers the arguments (``crossing.py``), finds the compiled function for their structure, runs it
  and writes the outcome back;
* **the fast way** is taken when a call looks like an earlier one whose outcome was plain. It looks up the walk that the
  first module keeps, checks it against the structure clock, reads each variable's cell into one list, calls the same
  compiled function, and writes the returned values into the cells that were written.

Compiled functions are kept per structure (interned graphdefs and the treedef of the arguments), not per object, so
equal models share one (``compiled.py``). (rules U33, U34, X10)

Who fills the caches: ``_general`` (compiled functions, by structure) and ``find_walk`` (walks, on their first root).
What empties them: the death of the jitted function, and of the root. What they hold: no module, see ``walks.py``.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

import jax
import numpy as np

from .._compat import ArrayImpl, Tracer, top_level_trace, trace_state
from ..core.clock import clock
from ..core.filters import to_predicate
from ..core.modes import check_mode, graph_updates_mode, in_default_modes, touched
from ..core.nodes import Static
from ..core.statics import static_key
from ..core.walks import CachedWalk
from ..errors import ArgumentError, DispatchError, TraceContextError
from ..paths import describe_path
from ..typing import FilterLiteral
from .arguments import check_plain_arguments
from .captures import warn_about_captures
from .compiled import Compiled, Donation, SharedBufferError, TraceSignature, name_shared_buffer
from .crossing import Gathered, check_function, check_no_duplicates, gather, write_back
from .stages import Lowered, Traced

P = ParamSpec("P")
R = TypeVar("R")

CHECK_DISPATCH = os.environ.get("PLAIT_CHECK_DISPATCH", "0") not in ("", "0")
_LEAF_TYPES = frozenset({ArrayImpl, np.ndarray, bool, int, float, complex})


class _Entry:
    """What the fast way needs for one walk: the compiled function, and the cells that its first outcome writes."""

    __slots__ = ("call", "cells", "compiled", "guard", "written")

    def __init__(self, compiled: Compiled, walk: CachedWalk, layout: _Layout) -> None:
        self.guard = weakref.ref(layout, _drop_entry(weakref.ref(walk), layout.number))
        self.compiled = compiled
        self.call = compiled.run
        self.cells = walk.cells
        self.written = [walk.cells[position] for position in compiled.outcomes[0].written]


def _drop_entry(walk: weakref.ref[CachedWalk], number: int) -> Callable[[Any], None]:
    def callback(_: Any) -> None:
        living = walk()
        if living is not None:
            living.entries.pop(number, None)

    return callback


class _Layout:
    """Which positional arguments are modules and which are single arrays, as in the latest general call.

    There is one for each way to call a jitted function, and it is the key of the entries on walks: another way to pass
    the same modules has another compiled function. Entries go when the layout does, which is when the jitted function
    does.
    """

    __slots__ = ("__weakref__", "arrays", "count", "first", "number", "others")
    _numbers = itertools.count()

    def __init__(self, count: int, objects: Sequence[int]) -> None:
        self.count = count
        self.first = objects[0]
        self.others = tuple(objects[1:])
        self.arrays = tuple(i for i in range(count) if i not in objects)
        self.number = next(_Layout._numbers)


@overload
def jit(fun: Callable[P, R], /, **options: Any) -> Callable[P, R]: ...
@overload
def jit(**options: Any) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def jit(  # pyright: ignore[reportInconsistentOverload] - the overloads keep the signature, the options stand here
    fun: Any = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    donate: FilterLiteral = None,
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
        donate_argnums, donate_argnames: arguments whose buffers the call may take over: all arrays of a plain argument,
            and of a module the variables that the function writes. Those that it only reads stay as they are.
        donate: a filter: which written variables, of any argument, the call may take over; ``True`` for all of them.
            After a donating call that fails while running, the donated buffers are gone.
        keep_unused, inline: as in ``jax.jit``.
        graph_updates: ``False`` carries only values out, no changes of structure; by default the mode of
            ``plait.set_graph_updates``.

    Returns:
        A function with the signature of ``fun``. If ``fun`` raises, no argument is changed. Its ``trace(...)`` and
        ``lower(...)`` give JAX's ahead-of-time stages, whose compiled form takes modules; ``clear_cache()`` forgets
        what was compiled.

    Raises:
        ArgumentError: ``fun`` is a bound method of a module, a static argument cannot be hashed, or two variables hold
            one buffer that is to be donated.

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
    given = {
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
        "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames,
        "donate": donate,
        "keep_unused": keep_unused,
        "inline": inline,
        "graph": graph,
        "graph_updates": graph_updates,
    }
    if fun is None:
        return lambda fun: jit(fun, **given)
    check_function(fun, "jit")
    options = {name: True for name, value in (("keep_unused", keep_unused), ("inline", inline)) if value}
    donation = None
    if donate_argnums is not None or donate_argnames is not None or donate not in (None, False):
        predicate = None if donate is None else to_predicate(donate)
        donation = Donation(*_argument_positions(fun, donate_argnums, donate_argnames), predicate)
    statics = _argument_positions(fun, static_argnums, static_argnames)
    return _make_jitted(fun, statics, options, donation, graph, graph_updates)


def _argument_positions(fun: Any, argnums: Any, argnames: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Arguments both by position and by name, as far as the signature tells."""
    numbers: set[int] = {argnums} if isinstance(argnums, int) else set(argnums or ())
    names: set[str] = {argnames} if isinstance(argnames, str) else set(argnames or ())
    if numbers or names:
        try:
            parameters = list(inspect.signature(fun).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        _check_named_arguments(fun, parameters, numbers, names, len(positional))
        numbers = {n + len(positional) if n < 0 else n for n in numbers}
        names |= {positional[n] for n in numbers if n < len(positional)}
        numbers |= {positional.index(name) for name in names if name in positional}
    return frozenset(numbers), frozenset(names)


def _check_named_arguments(fun: Any, parameters: list[Any], numbers: set[int], names: set[str], count: int) -> None:
    """Refuse static or donated arguments that the function does not have."""
    kinds = {parameter.kind for parameter in parameters}
    unknown: list[Any] = []
    if parameters and inspect.Parameter.VAR_POSITIONAL not in kinds:
        unknown += sorted(n for n in numbers if not -count <= n < count)
    if parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        unknown += sorted(names - {parameter.name for parameter in parameters})
    if unknown:
        raise ArgumentError(
            "jit was told about arguments that the function does not have",
            found=f"{', '.join(map(repr, unknown))}, for {getattr(fun, '__name__', fun)}",
            expected=f"positions below {count}, or names of {[parameter.name for parameter in parameters]}",
            do="correct static_argnums, static_argnames, donate_argnums or donate_argnames",
        )


def _make_jitted(
    f: Any,
    statics: tuple[frozenset[int], frozenset[str]],
    options: dict[str, Any],
    donation: Donation | None,
    graph: bool | None,
    graph_updates: bool | None,
) -> Any:
    compiled_functions: dict[Any, Compiled] = {}
    history: list[TraceSignature] = []
    layout: _Layout | None = None
    layouts: dict[Any, _Layout] = {}
    static_numbers, static_names = statics

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        plan = layout
        if plan is None or kwargs or len(args) != plan.count or trace_state.value is not top_level_trace:
            return general(args, kwargs)
        if touched.ever and not in_default_modes(graph, graph_updates):
            return general(args, kwargs)
        others = plan.others
        try:
            walk = args[plan.first]._walks[tuple([id(args[i]) for i in others]) if others else ()]
            entry = walk.entries[plan.number]
            for current, saved in walk.lists:
                if current != saved:
                    return general(args, kwargs)
        except (AttributeError, KeyError, TypeError, ValueError):  # the last two: compared with another kind
            return general(args, kwargs)
        if (walk.stamp != clock.now or walk.containers) and not walk.is_current():
            return general(args, kwargs)
        plain = []
        for i in plan.arrays:
            value = args[i]
            if type(value) is not ArrayImpl and type(value) not in _LEAF_TYPES:
                return general(args, kwargs)
            plain.append(value)
        if CHECK_DISPATCH:
            check_walk(walk, [args[plan.first], *(args[i] for i in plan.others)])
        try:
            out, values = entry.call([cell.raw for cell in entry.cells], plain)
        except SharedBufferError as error:
            raise name_shared_buffer(error, gather((args, kwargs))) from None
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
        updates = graph_updates_mode(graph_updates)
        if not updates:
            check_no_duplicates(gathered, "jit")
        check_mode(list(gathered.roots), graph)
        try:
            compiled = find_compiled(gathered, updates)
            plain, returned = compiled.run(gathered.values(), gathered.plain)
        except (TypeError, jax.errors.UnexpectedTracerError) as error:
            explain_bad_values(error, gathered)
            check_plain_arguments(f, gathered, error)
            raise
        except SharedBufferError as error:
            raise name_shared_buffer(error, gathered) from None
        outcome, values = compiled.outcome_of(returned)
        result = write_back(outcome, gathered, values, plain)
        if (
            compiled.outcomes[0].is_plain
            and not kwargs
            and not static_numbers
            and in_default_modes(graph, graph_updates)
        ):
            layout = remember(args, gathered, compiled) or layout
        return result

    def find_compiled(gathered: Gathered, updates: bool) -> Compiled:
        structure = gathered.structure
        key = (structure.treedef, structure.graphdefs, updates)
        compiled = compiled_functions.get(key)
        if compiled is None:
            if not compiled_functions:
                warn_about_captures(f, "jit")
            made = Compiled(f, gathered, options, history, donation, updates)
            compiled = compiled_functions.setdefault(key, made)
        return compiled

    def remember(args: tuple[Any, ...], gathered: Gathered, compiled: Compiled) -> _Layout | None:
        walk = gathered.walk
        if walk is None or walk.stamps is None:
            return None
        objects = [i for i, value in enumerate(args) if any(value is root for root in gathered.roots)]
        arrays = [value for i, value in enumerate(args) if i not in objects]
        if len(objects) != len(gathered.roots) or len(arrays) != len(gathered.plain):
            return None
        if any(value is not leaf for value, leaf in zip(arrays, gathered.plain, strict=True)):
            return None  # as many leaves as arguments, but not one each: (None, [x, y])
        key = (len(args), *objects)
        plan = layouts.get(key) or layouts.setdefault(key, _Layout(len(args), objects))
        walk.entries[plan.number] = _Entry(compiled, walk, plan)
        return plan

    def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return wrap_static(args, kwargs) if static_numbers or static_names else (args, kwargs)

    def stage(kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gathered = gather(prepare(args, kwargs))
        compiled = find_compiled(gathered, graph_updates_mode(graph_updates))
        made = getattr(compiled.jitted, kind)(*compiled.arguments(gathered.values(), gathered.plain))
        return made, compiled, gathered.structure, prepare

    def clear_cache() -> None:
        for compiled in compiled_functions.values():
            compiled.jitted.clear_cache()
        compiled_functions.clear()
        history.clear()

    functools.update_wrapper(wrapper, f)
    wrapper.trace = lambda *args, **kwargs: Traced(*stage("trace", args, kwargs))  # type: ignore[attr-defined]
    wrapper.lower = lambda *args, **kwargs: Lowered(*stage("lower", args, kwargs))  # type: ignore[attr-defined]
    wrapper.clear_cache = clear_cache  # type: ignore[attr-defined]
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


def explain_bad_values(error: Exception, gathered: Gathered) -> None:
    """Name the variable whose value JAX could not take.

    Raises:
        TraceContextError: a variable holds a value of a trace that has ended.
        ArgumentError: some variable holds neither arrays nor numbers.
    """
    if gathered.walk is None:
        return
    if isinstance(error, jax.errors.UnexpectedTracerError):
        leaked = [
            describe_path(path)
            for cell, path in zip(gathered.walk.cells, gathered.walk.paths(), strict=True)
            if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(cell.raw))
        ]
        if leaked:
            raise TraceContextError(
                "a variable holds a value of a JAX trace that has ended",
                at=", ".join(leaked),
                found="a tracer, left behind by a function that changed a captured container while it was traced",
                expected="arrays",
                do="take the object out again, and pass the model to the function that adds it as an argument",
            ) from error
        return
    bad = []
    for cell, path in zip(gathered.walk.cells, gathered.walk.paths(), strict=True):
        for leaf in jax.tree.leaves(cell.raw):
            if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
                bad.append((path, leaf))
    if bad:
        raise ArgumentError(
            "a variable holds a value that is no array",
            at=", ".join(describe_path(path) for path, _ in bad),
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
