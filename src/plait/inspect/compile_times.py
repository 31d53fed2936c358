"""Where the time of a first call goes: tracing by module, lowering, compiling, and how large the program is."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from ..core.module_calls.method_observers import MethodCall, observed_methods
from ..transforms.call.captures import named_captures
from ..transforms.call.gather import gather
from ..transforms.jit.function import jit
from ..util.jax_versions import compiled_by_xla, traced_afresh
from ..util.paths import Path, format_path
from .cost import called
from .module_operations import ModuleOperations
from .observe.module_names import module_places, path_in_program
from .retrace import explain_retraces
from .tables import Row, folded, in_words, rendered


@dataclasses.dataclass(frozen=True)
class ModuleCompile:
    """The part of one module, without the modules below it.

    Attributes:
        path: the path of the module in the arguments; empty for the outermost one, and for what belongs to none.
        kind: its class.
        trace_seconds: the time that its methods took while they were traced.
        operations: the number of its equations in the traced program; the body of a loop counts once.
    """

    path: str
    kind: str
    trace_seconds: float
    operations: int


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What a first call does before it runs. ``str`` gives a table.

    Attributes:
        modules: the modules that take part, in the order of the arguments.
        trace_seconds: running the Python code of the function.
        lower_seconds: writing the program in StableHLO.
        compile_seconds: XLA's part; no cache on disk is used.
        change: what differs from the most similar earlier trace of the function, by path.
    """

    modules: tuple[ModuleCompile, ...]
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    change: str

    @property
    def operations(self) -> int:
        """Of the whole program."""
        return sum(row.operations for row in self.modules)

    @property
    def seconds(self) -> float:
        """Of the three parts together."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds

    def __str__(self) -> str:
        return rendered(self)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title="what a first call does", title_justify="left")
        for column in ("module", "type", "traced, s", "operations"):
            table.add_column(column, justify="left" if column in ("module", "type") else "right", overflow="fold")
        rows = [Row(row.path, row.kind, (), (row.trace_seconds, row.operations)) for row in self.modules]
        for row in folded(rows):
            seconds, operations = row.numbers
            table.add_row(*map(Text, (row.path, row.kind, f"{seconds:.2f}", in_words(operations))))
        table.add_section()
        table.add_row("all", "", f"{self.trace_seconds:.2f}", in_words(self.operations))
        return Group(table, Text(self._caption()))

    def _caption(self) -> str:
        parts = (
            f"traced {self.trace_seconds:.2f}, lowered {self.lower_seconds:.2f}, compiled {self.compile_seconds:.2f}"
        )
        return f"{self.seconds:.2f} s: {parts}\n{self.change}"


def explain_compile(f: Callable[..., Any], /, *args: Any, **kwargs: Any) -> CompileReport:
    """Trace, lower and compile a call, and say how long each takes, and to which modules time and program belong.

    Nothing is run, and no program is taken from a cache. Use it when a first call is slow: a large part of tracing
    points to Python code, many operations to a loop that a ``Stack`` or ``scan`` would keep small.

    Args:
        f: a function of modules and arrays, or a module; the options of a jitted function, such as donation, apply.
        *args, **kwargs: its arguments; abstract values, such as those of ``plait.eval_shape``, are enough.

    Returns:
        A ``CompileReport``: seconds of tracing and operations for each module, seconds of the three parts, and what
        differs from the most similar earlier trace if ``f`` is a jitted function that was called before.

    Raises:
        ArgumentTypeError: ``f`` is neither a function nor a module.

    Example:
        >>> model = plait.Sequential(plait.Linear(4, 8, rngs=plait.Rngs(0)), plait.Linear(8, 2, rngs=plait.Rngs(1)))
        >>> report = plait.explain_compile(model, jnp.ones((3, 4)))
        >>> [row.path for row in report.modules if row.operations]
        ['layers[0]', 'layers[1]']
        >>> report.seconds > report.compile_seconds > 0
        True
    """
    f, args = called(f, args, who="explain_compile")
    jitted: Any = f if hasattr(f, "jitted_fn") else jit(f)
    gathered = gather((args, kwargs))
    places = module_places(gathered.roots, lambda: gathered.structure.labels(f)[0], lambda: named_captures(f))
    history, clock, changes = jitted.jitted_fn.history, _Clock(), list[str]()
    before = [*history]
    try:
        with observed_methods([module for _, module in places], clock.observe):
            with explain_retraces(changes.append), traced_afresh():
                start = time.perf_counter()
                traced = jitted.trace(*args, **kwargs)
                trace_seconds = time.perf_counter() - start
                lowered = traced.lower()
                lower_seconds = time.perf_counter() - start - trace_seconds
            with compiled_by_xla():
                start = time.perf_counter()
                lowered.compile()
                compile_seconds = time.perf_counter() - start
        if any(new == old and new.settings == old.settings for new in history[len(before) :] for old in before):
            changes = [f"{getattr(f, '__name__', type(f).__name__)}: compiled for such arguments before"]
    finally:
        history[:] = before  # what is traced only to be looked at explains no later trace
    kinds = {(): "", **{path: type(module).__name__ for path, module in places}}
    counts = collections.Counter(each.path for each in ModuleOperations(kinds).of(traced.jaxpr, choose=list))
    seconds = clock.seconds(trace_seconds, [*kinds])
    rows = tuple(
        ModuleCompile(format_path(path), kind, seconds.get(path, 0.0), counts.get(path, 0))
        for path, kind in kinds.items()
        if path in seconds or path in counts
    )
    return CompileReport(rows, trace_seconds, lower_seconds, compile_seconds, "\n".join(changes))


class _Clock:
    """The time of each module's methods, without that of the methods that they call."""

    def __init__(self) -> None:
        self._own: collections.Counter[Path] = collections.Counter()
        self._inner: list[float] = []

    def observe(self, module: Any, name: str, call: MethodCall) -> Any:
        """Make a call and measure it."""
        path = path_in_program(module)
        self._inner.append(0.0)
        start = time.perf_counter()
        try:
            return call()
        finally:
            took = time.perf_counter() - start
            self._own[path or ()] += took - self._inner.pop()  # type: ignore[assignment]
            if self._inner:
                self._inner[-1] += took

    def seconds(self, whole: float, known: list[Path]) -> dict[Path, float]:
        """By path; what no known module took belongs to the root."""
        found = {path: own for path, own in self._own.items() if path in known and path}
        return {(): whole - sum(found.values()), **found}
