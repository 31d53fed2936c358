"""Why a jitted function was traced again.

The compiled function keeps the signature of every trace: the structure of the arguments, shape, dtype and weak type of
each array, and JAX's settings. ``explain_retraces`` compares the signature of a new trace with the most similar earlier
one of the same function.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from ..core.graph.diff import diff
from ..core.graph.graphdef import LeafDef, VariableDef, iter_places, path_of
from ..core.nodes.nodes import Static
from ..errors import ArgumentTypeError, RetraceError
from ..transforms.call.arguments import argument_name, parameter_names
from ..transforms.jit.compiled import TraceSignature, process_listeners, trace_listeners
from ..util.paths import format_path
from ..util.words import describe_type, with_article


class Explanations(contextlib.ContextDecorator):
    """Listens to the traces of its thread or task while it is active; ``messages`` has the messages so far."""

    def __init__(self, report: Callable[[str], Any], max_traces: int | None) -> None:
        self._report = report
        self._max_traces = max_traces
        self._counts: dict[int, int] = {}
        self._traced: dict[str, bool] = {}  # name → whether its latest trace has not been compiled
        self.messages: list[str] = []

    def __call__(self, func: Any) -> Any:
        if not callable(func):
            raise ArgumentTypeError(
                "explain_retraces decorates a function",
                found=describe_type(func),
                expected="a function; the decorator has parentheses, since its first argument is the report",
                do="@plait.explain_retraces()",
            )
        return super().__call__(func)

    def __enter__(self) -> Explanations:
        self._counts.clear()
        self._traced.clear()
        _hear_compilations()
        trace_listeners.set((*trace_listeners.get(), self))
        return self

    def __exit__(self, *_: Any) -> None:
        listeners = list(trace_listeners.get())
        listeners.remove(self)
        trace_listeners.set(tuple(listeners))

    def everywhere(self) -> None:
        """Listen to the traces of all threads from now on."""
        _hear_compilations()
        process_listeners.append(self)

    def _tell(self, message: str) -> None:
        self.messages.append(message)
        self._report(message)

    def compiled(self, name: str) -> None:
        """XLA has compiled a function of this name."""
        if self._traced.get(name) is False:
            self._tell(f"{name}: compiled again without a new trace, for other shardings or devices of its arguments")
        if name in self._traced:
            self._traced[name] = False

    def traced(self, function: Callable[..., Any], signature: TraceSignature, earlier: list[TraceSignature]) -> None:
        self._tell(explain(function, signature, earlier))
        self._traced[getattr(function, "__name__", type(function).__name__)] = True
        count = self._counts[id(function)] = self._counts.get(id(function), 0) + 1
        if self._max_traces is not None and count > self._max_traces:
            raise RetraceError(
                f"{_name(function)} was traced more often than allowed",
                found=f"trace {count}: {self.messages[-1]}",
                expected=f"at most {self._max_traces}",
                do="keep the arguments' structure, static values, shapes and dtypes the same, or raise max_traces",
            )


@functools.cache
def _hear_compilations() -> None:
    """From now on, tell whoever hears traces of compilations too."""

    def heard(event: str, duration_secs: float, **details: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            name = str(details.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
            for listener in (*process_listeners, *trace_listeners.get()):
                if isinstance(listener, Explanations):
                    listener.compiled(name)

    jax.monitoring.register_event_duration_secs_listener(heard)


def explain_retraces(report: Callable[[str], Any] | None = None, *, max_traces: int | None = None) -> Explanations:
    """Report, for each new trace of a jitted function, what differed from the most similar earlier one, by path; and
    that it was compiled again without one.

    Use it as a context manager or decorator, which hear the traces of their own thread or task, or set
    ``PLAIT_EXPLAIN_RETRACES=1`` in the environment to enable it for a whole program, with all its threads.

    Args:
        report: called with each message; default: it is written to standard error. The context manager also keeps
            them in ``messages``.
        max_traces: the maximum number of traces of one function while this is active.

    Raises:
        ArgumentTypeError: ``report`` cannot be called; or it decorates no function, as without parentheses.
        RetraceError: a function was traced more than ``max_traces`` times; raised by the call that exceeds it.

    Example:
        >>> @plait.jit
        ... def double(x):
        ...     return x * 2
        >>> with plait.explain_retraces(report=print):
        ...     _ = double(jnp.ones(3)), double(jnp.ones(3)), double(jnp.ones(5))
        double: traced for the first time
        double: traced again
          arg x: float32[3] -> float32[5]
    """
    if report is not None and not callable(report):
        raise ArgumentTypeError(
            "the report of explain_retraces is a function",
            at="report",
            found=describe_type(report),
            expected="a function of a text",
            do="plait.explain_retraces(report=print)",
        )
    return Explanations(report or (lambda message: print(message, file=sys.stderr)), max_traces)


def explain(function: Callable[..., Any], signature: TraceSignature, earlier: list[TraceSignature]) -> str:
    """One message: what differs from the most similar earlier trace."""
    if not earlier:
        return f"{_name(function)}: traced for the first time"
    candidates = [  # the latest wins a tie
        [*_differences(function, old, signature)] or [*_containers(function, old, signature)]
        for old in reversed(earlier)
    ]
    nearest = min(candidates, key=len)
    if not nearest:
        nearest = [
            "nothing in the arguments or in the settings of JAX and plait: a cache was cleared, as by jax.clear_caches"
        ]
    return "\n  ".join([f"{_name(function)}: traced again", *nearest])


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__name__).replace("<locals>.", "").split(".")[-1]


def _differences(function: Callable[..., Any], old: TraceSignature, new: TraceSignature) -> Iterator[str]:
    before, after = dict(_arguments(function, old)), dict(_arguments(function, new))
    for name in [*before, *(name for name in after if name not in before)]:
        first, second = before.get(name), after.get(name)
        if first is None:
            yield f"new arg {name}"
        elif second is None:
            yield f"arg {name} is gone"
        elif isinstance(first, tuple) and isinstance(second, tuple):
            if first[0] != second[0]:
                yield from map(str, diff(first[0], second[0], root=name))
            shapes, others = first[1], second[1]
            for path in shapes:
                if path in others and shapes[path] != others[path]:
                    yield f"{format_path((name, *path))}: {shapes[path]} -> {others[path]}"
        elif first != second:
            yield f"arg {name}: {_shown(first)} -> {_shown(second)}"
    for name, value in new.settings.items():
        if old.settings.get(name) != value:
            yield f"{name}: {_setting(old.settings.get(name))} -> {_setting(value)}"


def _containers(function: Callable[..., Any], old: TraceSignature, new: TraceSignature) -> Iterator[str]:
    """Arguments with equal contents in different containers, such as a tuple instead of a list."""
    if old.structure.treedef == new.structure.treedef:
        return
    names = parameter_names(function)
    trees = [
        jax.tree_util.tree_unflatten(each.structure.treedef, [_HIDDEN] * len(each.structure.graphdefs))
        for each in (old, new)
    ]
    (args, kwargs), (others, named) = trees
    pairs = [*enumerate(zip(args, others, strict=False)), *((name, (kwargs[name], named.get(name))) for name in kwargs)]
    for key, (first, second) in pairs:
        if jax.tree_util.tree_structure(first) != jax.tree_util.tree_structure(second):
            name = names.at(key) if isinstance(key, int) else key
            yield f"arg {name}: {first!r:.60} -> {second!r:.60}"


class _Hidden:
    """Takes the place of a value."""

    def __repr__(self) -> str:
        return "*"


_HIDDEN = _Hidden()


def _setting(value: Any) -> str:
    return repr(value.value if isinstance(value, enum.Enum) else value)


def _shown(value: Any) -> str:
    return with_article(value[0].type.__name__) if isinstance(value, tuple) else str(value)


def _arguments(function: Callable[..., Any], signature: TraceSignature) -> Iterator[tuple[str, Any]]:
    """Name → (graphdef, shapes by path) for objects, the shape for arrays, the value for static arguments."""
    structure = signature.structure
    markers = [object() for _ in structure.graphdefs]
    tree = jax.tree_util.tree_unflatten(structure.treedef, markers)
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, Static))[0]
    paths = {id(leaf): path for path, leaf in leaves}
    names = parameter_names(function)
    values, plain = iter(signature.values), iter(signature.plain)
    for marker, graphdef in zip(markers, structure.graphdefs, strict=True):
        name = argument_name(paths[id(marker)], names)
        if graphdef is None:
            yield name, next(plain)
        else:
            links = (link for link, part in iter_places(graphdef) if isinstance(part, (VariableDef, LeafDef)))
            yield name, (graphdef, {path_of(link): next(values) for link in links})
    for path, leaf in leaves:
        if isinstance(leaf, Static):
            yield argument_name(path, names), f"static {leaf.value!r}"
