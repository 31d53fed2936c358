"""The cost of a program by module: floating-point operations, bytes and memory, from XLA's own analysis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .._compat import buffers_of, program_costs, program_text
from ..errors import ArgumentError
from ..ground.notices import warn
from ..ground.paths import Path, format_path
from ..ground.words import first_few, in_bytes
from ..observing.module_names import module_places, name_of_key
from ..observing.unrolled_loops import only_looked_at
from ..transforms.call.captures import named_captures
from ..transforms.call.functions import check_function
from ..transforms.call.gather import gather
from ..transforms.jit.function import jit
from .buffers import temporary_bytes
from .hlo import CostsByModule, Figures, Modules, Names, Program
from .tables import Row, folded, in_words, remark_on_loops, rendered


@dataclasses.dataclass(frozen=True)
class ModuleCost:
    """The cost of the operations of one module, without those of modules below it.

    Attributes:
        path: the path of the module in the arguments.
        kind: its class; empty for operations that belong to no module.
        flops: floating-point operations, as XLA counts: the body of a loop counts once.
        transcendentals: exponentials, logarithms and the like.
        bytes: bytes read and written.
        written: bytes written; for a program that was not compiled, all that a backward pass might keep.
        executed_flops: like ``flops``, but the body of a loop counts once per iteration.
        temp_bytes: its share of the memory for temporary values; each byte of that memory is attributed to the largest
            value ever stored there.
    """

    path: str
    kind: str
    flops: float = 0.0
    transcendentals: float = 0.0
    bytes: float = 0.0
    written: float = 0.0
    executed_flops: float = 0.0
    temp_bytes: int = 0


@dataclasses.dataclass(frozen=True)
class CostReport:
    """The cost of a program. ``str`` gives a table.

    Attributes:
        modules: the modules with any cost, in the order of the arguments; operations that belong to no module have an
            empty path, like the outermost module.
        argument_bytes: memory of the arguments on one device; ``None`` for a program that was not compiled.
        output_bytes: memory of the results.
        alias_bytes: memory of outputs that reuse the buffers of donated arguments.
        temp_bytes: memory of temporary values.
    """

    modules: tuple[ModuleCost, ...]
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None

    @property
    def flops(self) -> float:
        """Of the whole program."""
        return sum(row.flops for row in self.modules)

    @property
    def executed_flops(self) -> float:
        """Of the whole program."""
        return sum(row.executed_flops for row in self.modules)

    @property
    def transcendentals(self) -> float:
        """Of the whole program."""
        return sum(row.transcendentals for row in self.modules)

    @property
    def bytes(self) -> float:
        """Bytes read and written by the whole program."""
        return sum(row.bytes for row in self.modules)

    @property
    def peak_bytes(self) -> int | None:
        """Memory while it runs: arguments, outputs that do not reuse donated buffers, and temporary values."""
        if self.argument_bytes is None or self.output_bytes is None or self.temp_bytes is None:
            return None
        return self.argument_bytes + self.output_bytes + self.temp_bytes - (self.alias_bytes or 0)

    def below(self, path: str) -> ModuleCost:
        """The cost of a module and all modules below it.

        Raises:
            ArgumentError: no operation comes from a module at this path.

        Example:
            >>> model = plait.Sequential(plait.Linear(4, 8, rngs=plait.Rngs(0)), plait.Linear(8, 2, rngs=plait.Rngs(1)))
            >>> report = plait.cost(model, jnp.ones((3, 4)), compile=False)
            >>> report.below("layers[0]").flops + report.below("layers[1]").flops == report.flops
            True
        """
        rows = [row for row in self.modules if row.path == path or row.path.startswith((f"{path}.", f"{path}["))]
        rows = rows if path else list(self.modules)
        if not rows:
            raise ArgumentError(
                "no operation of the program comes from a module at this path",
                at=path,
                found=f"operations of {first_few([row.path or 'the root' for row in self.modules])}",
                expected="the first path of a module that computes something",
                do="print the report, which has a row for each",
            )
        kind = next((row.kind for row in rows if row.path == path), "")
        sums: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) for name in _FIGURES}
        return ModuleCost(path, kind, **sums)

    def __str__(self) -> str:
        return rendered(self)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="what each module costs", title_justify="left", caption=self._caption())
        table.caption_justify = "left"
        columns = ["module", "type", "FLOPs", "bytes", *(["temporary memory"] if self.temp_bytes is not None else [])]
        for column in columns:
            table.add_column(column, justify="left" if column in ("module", "type") else "right", overflow="fold")
        rows = [Row(row.path, row.kind, (), (row.flops, row.bytes, row.temp_bytes)) for row in self.modules]
        for row in (*folded(rows), Row("all", "", (), (self.flops, self.bytes, self.temp_bytes or 0))):
            if row.path == "all" and not row.kind:
                table.add_section()
            flops, moved, temporary = row.numbers
            cells = (row.path, row.kind, in_words(flops), in_bytes(moved), in_bytes(temporary))
            table.add_row(*map(Text, cells[: len(columns)]))
        return table

    def _caption(self) -> str | None:
        lines = remark_on_loops(self.flops, self.executed_flops)
        if self.peak_bytes is not None:
            sizes = (self.peak_bytes, self.argument_bytes, self.output_bytes, self.temp_bytes, self.alias_bytes)
            peak, given, returned, temporary, alias = (in_bytes(size or 0) for size in sizes)
            lines.append(f"memory: {peak} = {given} of arguments + {returned} of outputs + {temporary} temporary")
            lines[-1] += f" - {alias} of donated arguments" if self.alias_bytes else ""
        return "\n".join(lines) or None


_FIGURES = ("flops", "transcendentals", "bytes", "written", "executed_flops", "temp_bytes")


def cost(f: Callable[..., Any], /, *args: Any, compile: bool = True, **kwargs: Any) -> CostReport:
    """The cost of a call by module: floating-point operations, bytes read and written, memory.

    The figures are XLA's; those of all modules add up to XLA's figures for the whole program. Nothing is run.

    Args:
        f: a function of modules and arrays, or a module; the options of a jitted function, such as donation, apply.
        *args, **kwargs: its arguments; abstract values, such as those of ``plait.eval_shape``, are enough.
        compile: whether to compile the program and analyse what runs, after XLA has fused operations and planned
            memory. ``False`` analyses the program before optimisation, which takes a fraction of the time and gives no
            memory figures. In a compiled program, reads and writes inside a fusion do not count, and a fusion counts
            for the module of its last operation.

    Returns:
        A ``CostReport``: a row for each module, and sums. If a program runs on several devices, those of one device.

    Example:
        >>> model = plait.Linear(256, 128, rngs=plait.Rngs(0))
        >>> report = plait.cost(model, jnp.ones((32, 256)), compile=False)
        >>> report.flops == 2 * 32 * 256 * 128 + 32 * 128
        True
    """
    f, args = called(f, args)
    jitted: Any = f if hasattr(f, "lower") else jit(f)
    with only_looked_at():
        lowered = jitted.lower(*args, **kwargs)
    stage = getattr(lowered, "_stage", lowered)
    gathered = gather((args, kwargs))
    places = module_places(gathered.roots, lambda: gathered.structure.labels(f)[0], lambda: named_captures(f))
    if not compile:
        return report_of(stage, places)
    compiled = stage.compile()
    return report_of(compiled, places, compiled)


def called(f: Any, args: tuple[Any, ...], who: str = "cost") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments; for a module, its ``__call__``."""
    from ..core.objects.pytree import Pytree

    if not isinstance(f, Pytree):
        check_function(f, who)
        return f, args

    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return call, (f, *args)


def report_of(stage: Any, places: list[tuple[Path, Any]], compiled: Any = None) -> CostReport:
    """The report of a lowered or compiled program, with these modules among its arguments.

    What cannot be attributed to a module counts for the root: instructions that XLA does not analyse one by one, and
    those whose text could not be read.
    """
    text = program_text(stage)
    program = Program(text)
    names: dict[Names, tuple[str, str]] = {(): ("", "")}
    for path, module in places:
        names[tuple(map(name_of_key, path))] = format_path(path), type(module).__name__
    failed: list[str] = []

    def measure(text: str) -> Figures:
        try:
            return figures(program_costs(text))
        except ValueError as error:  # an instruction that is not valid on its own
            failed.append(str(error))
            return Figures()

    modules = Modules(names)
    costs = CostsByModule(program, modules, measure)
    spread = costs.spread()
    if failed or program.unread:
        whole = rest = figures(program_costs(text))
        for each in spread.values():
            rest = rest.plus(each, -1.0)
        spread[()] = spread.get((), Figures()).plus(rest)
        if program.unread:
            _warn_about(program.unread, rest.flops, whole.flops)
    memory = _temporary(compiled, costs) if compiled is not None else {}
    rows = tuple(
        ModuleCost(*names[path], *spread.get(path, Figures()), temp_bytes=memory.get(path, 0))
        for path in names
        if path in spread or path in memory
    )
    if compiled is None:
        return CostReport(rows)
    sizes = compiled.memory_analysis()
    return CostReport(
        rows,
        sizes.argument_size_in_bytes,
        sizes.output_size_in_bytes,
        sizes.alias_size_in_bytes,
        sizes.temp_size_in_bytes,
    )


def _warn_about(unread: list[str], rest: float, whole: float) -> None:
    warn(
        UserWarning,
        "the costs of modules are incomplete: what could not be attributed to a module counts for the root",
        found=f"{first_few(unread)} in XLA's text, and {rest:,.0f} of {whole:,.0f} FLOPs without a module",
        expected="the text form of the versions of JAX that plait was tested with",
        do="update plait; the figures of the whole program are right",
    )


def figures(found: Mapping[str, float]) -> Figures:
    """XLA's figures; it reports only those that are not zero."""
    flops = found.get("flops", 0.0)
    moved, written = found.get("bytes accessed", 0.0), found.get("bytes accessedout{}", 0.0)
    return Figures(flops, found.get("transcendentals", 0.0), moved, written, flops)


def _temporary(compiled: Any, costs: CostsByModule) -> dict[Names, int]:
    """Bytes of temporary values by module; bytes that XLA does not report count for the program as a whole."""
    buffers = buffers_of(compiled)
    found: dict[Names, int] = {}
    if buffers is not None:
        places = costs.all_places()
        for name, size in temporary_bytes(*buffers).items():
            place = places.get(name, ())
            found[place] = found.get(place, 0) + size
    rest = compiled.memory_analysis().temp_size_in_bytes - sum(found.values())
    if rest:
        found[()] = found.get((), 0) + rest
    return found
