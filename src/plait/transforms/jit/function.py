"""``jit``: a compiled function of objects, as fast as ``jax.jit`` on a flat list of arrays.

A call takes one of two paths, which have the same results by construction and by test:

* **the general path** gathers the arguments (``arguments.py``), finds the compiled function for their structure, runs
  it and writes back the outcome;
* **the fast path** is taken if a call looks like an earlier one that only wrote values and returned arrays, new objects
  or its own arguments. A run that belongs to the walk of these objects checks the walk against the structure clock,
  reads each variable's cell into one list, calls the same compiled function, and writes the returned values into the
  cells of the written variables (``dispatch.py``).

Compiled functions are cached per structure (interned graphdefs, and how the objects are passed), not per object, so
equal models share one (``compiled.py``). (rules U33, U34, X10)

Caches: ``general`` adds compiled functions (by structure) and runs (on the first object); ``find_walk`` adds walks (on
    their first root). Entries are removed when the jitted function or the objects die. They keep no module alive, see
    ``walks.py``.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from ...core.graph.graphdef import GraphDef
from ...core.graph.modes import Crossing
from ...core.graph.untrained import warn_of_flax
from ...core.graph.walks import CachedWalk
from ...core.settings import put_in_force
from ...core.variables.cells import Cell
from ...core.variables.filters import to_predicate
from ...errors import ArgumentError, DispatchError
from ...typing import FilterLiteral, Node, Tree
from ..call.arguments import (
    Gathered,
    argument_name,
    gather,
    parameter_names,
    positional as positional_arguments,
    static_argument,
    with_statics,
)
from ..call.body import Body, Propagation
from ..call.call import carries_structure, check_function, curried
from ..call.enter_leave import CHECK_DISPATCH
from ..call.errors import explain
from .compiled import Compiled, Donation, Layout, TraceSignature
from .dispatch import Entrance
from .shapes import shapes_of_call
from .shardings import Shardings
from .stages import Lowered, Traced

if TYPE_CHECKING:
    from ..signatures import JitOptions, Jitted
from .shardings import JIT

P = ParamSpec("P")
R = TypeVar("R")


@overload
def jit(fun: Callable[P, R], **options: Unpack[JitOptions]) -> Jitted[P, R]: ...
@overload
def jit(fun: None = None, **options: Unpack[JitOptions]) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
@curried
def jit(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    fun: Any = None,
    *,
    in_shardings: Tree = None,
    out_shardings: Tree = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    donate: FilterLiteral = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.jit`` for functions of modules, variables and pytrees of them.

    Changes that the function makes to its arguments (values, attributes, sharing) are applied to the caller's objects.
    The function is traced once per structure of the arguments and shapes of their arrays; equal structures share one
    compiled function, even for different objects.

    Args:
        fun: the function; without it ``jit`` returns a decorator.
        in_shardings, out_shardings: as in ``jax.jit``, a prefix of the arguments (of the output). A module accepts one
            sharding for all its state, a ``StateSharding`` by filter, or a ``State`` of shardings, for example from
            ``get_named_sharding``. Keyword arguments have the position from the signature. With shardings or without,
            written variables keep the sharding of their input, unless ``fun`` gives them another.
        static_argnums: positions of arguments that are part of the compilation key; they must be hashable.
        static_argnames: names of such arguments.
        donate_argnums, donate_argnames: arguments whose buffers are donated: all arrays of a plain argument, and the
            variables of a module that the function writes. Variables that it only reads are not donated.
        donate: a filter that selects written variables of any argument whose buffers are donated; ``True`` selects all.
            If a donating call fails while running, the donated buffers are lost.
        keep_unused, device, backend, inline: as in ``jax.jit``.
        graph: whether shared objects and cycles are allowed or raise an error (tree mode); ``None`` means the thread's
            mode.
        graph_updates: whether structural changes are propagated, or values only; ``None`` means the thread's mode.

    Returns:
        A function with the signature of ``fun``. If ``fun`` raises, no argument is changed. Its ``trace(...)`` and
        ``lower(...)`` return JAX's ahead-of-time stages, whose compiled form accepts modules; ``eval_shape(...)`` is
        ``plait.eval_shape`` of it; ``clear_cache()`` drops its compiled programs.

    Raises:
        ArgumentError: ``fun`` is a bound method of a module, a static argument cannot be hashed, or two variables share
            a donated buffer.

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
    crossing = Crossing(graph, graph_updates)
    check_function(fun, JIT)
    chosen = {"keep_unused": keep_unused, "device": device, "backend": backend, "inline": inline}
    options = {name: value for name, value in chosen.items() if value}
    shardings = None
    if in_shardings is not None or out_shardings is not None:
        shardings = Shardings(in_shardings, out_shardings, crossing)
    donation = None
    donated = _argument_positions(fun, donate_argnums, donate_argnames)
    if any(donated) or donate not in (None, False):
        donation = Donation(*donated, to_predicate(donate))
    statics = _argument_positions(fun, static_argnums, static_argnames)
    return JittedFunction(fun, statics, options, donation, shardings, crossing).make_entrance()


def _argument_positions(fun: Any, argnums: Any, argnames: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Arguments both by position and by name, as far as the signature allows."""
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


def _check_named_arguments(
    fun: Any, parameters: list[inspect.Parameter], numbers: set[int], names: set[str], count: int
) -> None:
    """Raise for static or donated arguments that the function does not have."""
    kinds = {parameter.kind for parameter in parameters}
    unknown: list[int | str] = []
    if parameters and inspect.Parameter.VAR_POSITIONAL not in kinds:
        unknown += sorted(n for n in numbers if not -count <= n < count)
    if parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
        unknown += sorted(names - {parameter.name for parameter in parameters})
    if unknown:
        raise ArgumentError(
            "jit options refer to arguments that the function does not have",
            found=f"{', '.join(map(repr, unknown))}, for {getattr(fun, '__name__', fun)}",
            expected=f"positions below {count}, or names of {[parameter.name for parameter in parameters]}",
            do="correct static_argnums, static_argnames, donate_argnums or donate_argnames, or add the parameter",
        )


class JittedFunction:
    """The object behind one jitted function: its options and its compiled programs.

    The jitted function itself is a small generated function, the entrance (``dispatch.py``), which references this
    object.

    Attributes:
        compiled: the compiled functions, by the structure of the objects and how they are passed.
        history: the signatures of all traces since the cache was cleared.
        entrance: the generated function, and the layouts that it knows.
    """

    def __init__(
        self,
        f: Any,
        statics: tuple[frozenset[int], frozenset[str]],
        options: dict[str, object],
        donation: Donation | None,
        shardings: Shardings | None,
        crossing: Crossing,
    ) -> None:
        self.f, self.options, self.donation, self.shardings, self.crossing = f, options, donation, shardings, crossing
        self.statics = statics
        self.compiled: dict[Hashable, Compiled] = {}
        self.history: list[TraceSignature] = []
        self.entrance = Entrance(f)

    def make_entrance(self) -> Any:
        """The jitted function."""
        wrapper = self.entrance.make(self.general)
        functools.update_wrapper(wrapper, self.f)
        wrapper.trace, wrapper.lower, wrapper.eval_shape = self.trace, self.lower, self.eval_shape
        wrapper.clear_cache, wrapper.jitted_fn = self.clear_cache, self
        return wrapper

    def __reduce__(self) -> tuple[object, ...]:  # without its compiled programs
        return JittedFunction, (self.f, self.statics, self.options, self.donation, self.shardings, self.crossing)

    def general(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
        """The general path of a call."""
        if self.entrance.function() is None:  # unpickled
            self.entrance.find(sys._getframe(1))
        args, kwargs = self.prepare(args, kwargs)
        gathered, settings = gather((args, kwargs), self.f), put_in_force()
        try:
            compiled = self.find(args, kwargs, gathered)
            positional, named = compiled.arguments(gathered, args, kwargs)
            with gathered.scope([lambda: gathered.structure.labels(self.f)[0]]):
                returned = compiled.jitted(*positional, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            explain(JIT, self.f, gathered, error)
            if self.shardings is not None and not isinstance(error, TypeError):
                self.shardings.explain(error, self.f, args)
            raise
        result = compiled.finish(gathered, returned)
        if gathered.walk is not None and compiled.fits_fast_path:
            check = check_cells if CHECK_DISPATCH else None
            self.entrance.remember(compiled, gathered.walk, gathered.roots, settings, check)
        return result

    def prepare(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
        """The arguments of a call, with static ones wrapped."""
        if self.shardings is not None:
            args, kwargs = positional_arguments(self.f, args, kwargs)
        if not any(self.statics):
            return args, kwargs
        numbers, names = self.statics
        return (
            with_statics(JIT, self.f, args, numbers),
            {name: static_argument(JIT, value, name) if name in names else value for name, value in kwargs.items()},
        )

    def preparing(self, lowered_args: tuple[Tree, ...], lowered_kwargs: dict[str, Tree]) -> Callable[..., Tree]:
        """``prepare`` for calls of what was lowered for these; calls may leave out the static ones, as in JAX."""
        numbers, names = self.statics
        statics = {i: value for i, value in enumerate(lowered_args) if i in numbers}
        named = {name: value for name, value in lowered_kwargs.items() if name in names}

        def prepare(args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Tree:
            if statics and len(args) == len(lowered_args) - len(statics):
                rest = iter(args)
                args = tuple(statics[i] if i in statics else next(rest) for i in range(len(lowered_args)))
            return self.prepare(args, {**named, **kwargs})

        return prepare

    def find(self, args: tuple[Tree, ...], kwargs: dict[str, Tree], gathered: Gathered) -> Compiled:
        """The compiled function for the structure of a call."""
        structure, structural = gathered.structure, carries_structure(self.crossing, gathered, self.f)
        layout = None if any(self.statics) else Layout.of(args, kwargs, len(gathered.roots))
        objects = (structure.treedef, structure.graphdefs) if layout is None else (layout, structure.roots)
        key: Hashable = *objects, structural
        compiled = self.compiled.get(key)
        if compiled is None:
            if "flax.nnx" in sys.modules:
                warn_of_flax((args, kwargs), lambda path: argument_name(path, parameter_names(self.f)))
            propagation = Propagation(structural, returns_inputs=True)
            if self.shardings is None:
                body = Body.of(JIT, self.f, gathered, propagation=propagation)
            else:
                body = self.shardings.call(self.f, args, kwargs, gathered).body
            given = self.options, self.history, self.donation, layout, self.shardings
            compiled = self.compiled.setdefault(key, Compiled(self.f, body, gathered, *given))
        return compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        return self.general(args, kwargs)

    def _cache_size(self) -> int:
        """The number of cached programs; JAX's own jitted functions have a method of this name."""
        return sum(compiled.jitted._cache_size() for compiled in self.compiled.values())

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """JAX's stage of a traced function."""
        return Traced(*self.stage("trace", args, kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """JAX's stage of a lowered function."""
        return Lowered(*self.stage("lower", args, kwargs))

    def stage(self, kind: str, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> Any:
        """JAX's own stage of that name, with what plait needs to call it with objects."""
        prepare = self.preparing(args, kwargs)
        args, kwargs = self.prepare(args, kwargs)
        gathered = gather((args, kwargs), self.f)
        compiled = self.find(args, kwargs, gathered)
        positional, named = compiled.arguments(gathered, args, kwargs)
        try:
            stage = getattr(compiled.jitted, kind)(*positional, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            explain(JIT, self.f, gathered, error)
            raise
        return stage, compiled, gathered.structure, prepare

    def eval_shape(self, *args: Any, **kwargs: Any) -> Tree:
        """``plait.eval_shape`` of the function."""
        args, kwargs = self.prepare(args, kwargs)
        return shapes_of_call(self.f, args, kwargs, self.crossing)

    def clear_cache(self) -> None:
        """Forget what was compiled."""
        for compiled in self.compiled.values():
            compiled.clear()
        self.compiled.clear()
        self.entrance.clear()
        self.history.clear()


def check_cells(graphdefs: Sequence[GraphDef], cells: Sequence[Cell], roots: Sequence[Node]) -> None:
    """Compare the results of a cached walk with those of a fresh one (``PLAIT_CHECK_DISPATCH=1``).

    Raises:
        DispatchError: they differ; the fast path would have returned the result for a different structure.
    """
    fresh = CachedWalk(tuple(roots))
    same_cells = len(fresh.cells) == len(cells) and all(
        new is old or (not hasattr(new, "metadata") and new.raw is old.raw)
        for new, old in zip(fresh.cells, cells, strict=True)
    )
    if fresh.graphdefs != tuple(graphdefs) or not same_cells:
        raise DispatchError(
            "a cached walk differs from a fresh one",
            at=", ".join(f"a {type(root).__name__}" for root in roots),
            found="a change of structure that did not advance the structure clock",
            expected="changes by assignment; writing to obj.__dict__ bypasses the hooks",
            do="assign attributes instead of writing to __dict__; otherwise this is a bug in plait",
        )
