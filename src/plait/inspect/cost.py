"""What a program costs, by module: floating-point operations, bytes and memory, from XLA's own analysis."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from .._compat import buffers_of, program_costs, program_text
from ..core.tools.module_names import captured_places, module_places, name_of_key
from ..core.tools.unrolled_loops import only_looked_at
from ..paths import Path, format_path
from ..transforms.call.captures import captured_objects
from ..transforms.call.functions import check_function
from ..transforms.call.gather import gather
from ..transforms.jit.function import jit
from .buffers import temporary_bytes
from .hlo import CostsByModule, Figures, Modules, Names, Program
from .tables import Row, folded, in_bytes, in_words, rendered


@dataclasses.dataclass(frozen=True)
class ModuleCost:
    """What the operations of one module cost, without those of modules below it.

    Attributes:
        path: where it is in the arguments.
        kind: its class; empty for what belongs to no module.
        flops: floating-point operations, as XLA counts: the body of a loop counts once.
        transcendentals: exponentials, logarithms and their like.
        bytes: read and written.
        written: the bytes that are written; of a program that was not compiled, all that a backward pass might keep.
        executed_flops: the same as ``flops``, with the body of a loop counted as often as it runs.
        temp_bytes: its part of the memory for temporary values; each byte of that memory is counted for the largest
            value that is ever put there.
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
    """What a program costs. ``str`` gives a table.

    Attributes:
        modules: those that something was found for, in the order of the arguments; what belongs to no module has an
            empty path, as the outermost module has.
        argument_bytes: memory of the arguments on one device; ``None`` for a program that was not compiled.
        output_bytes: of what it returns.
        alias_bytes: of outputs that take the memory of donated arguments.
        temp_bytes: of temporary values.
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
        """Read and written by the whole program."""
        return sum(row.bytes for row in self.modules)

    @property
    def peak_bytes(self) -> int | None:
        """Memory while it runs: arguments, outputs that are not donated arguments, and temporary values."""
        if self.argument_bytes is None or self.output_bytes is None or self.temp_bytes is None:
            return None
        return self.argument_bytes + self.output_bytes + self.temp_bytes - (self.alias_bytes or 0)

    def below(self, path: str) -> ModuleCost:
        """A module together with all below it.

        Example:
            >>> model = plait.Sequential(plait.Linear(4, 8, rngs=plait.Rngs(0)), plait.Linear(8, 2, rngs=plait.Rngs(1)))
            >>> report = plait.cost(model, jnp.ones((3, 4)), compile=False)
            >>> report.below("layers[0]").flops + report.below("layers[1]").flops == report.flops
            True
        """
        rows = [row for row in self.modules if row.path == path or row.path.startswith((f"{path}.", f"{path}["))]
        rows = rows if path else list(self.modules)
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
        lines = []
        if self.executed_flops > self.flops * 1.000001:
            counted = in_words(self.executed_flops)
            lines.append(f"the body of a loop counts once, as for XLA; as often as it runs: {counted} FLOPs in all")
        if self.peak_bytes is not None:
            sizes = (self.peak_bytes, self.argument_bytes, self.output_bytes, self.temp_bytes, self.alias_bytes)
            peak, given, returned, temporary, alias = (in_bytes(size or 0) for size in sizes)
            lines.append(f"memory: {peak} = {given} of arguments + {returned} of outputs + {temporary} temporary")
            lines[-1] += f" - {alias} of donated arguments" if self.alias_bytes else ""
        return "\n".join(lines) or None


_FIGURES = ("flops", "transcendentals", "bytes", "written", "executed_flops", "temp_bytes")


def cost(f: Callable[..., Any], /, *args: Any, compile: bool = True, **kwargs: Any) -> CostReport:
    """What a call costs, by module: floating-point operations, bytes read and written, memory.

    The figures are XLA's; those of all modules add up to what XLA says of the whole program. Nothing is run.

    Args:
        f: a function of modules and arrays, or a module; a jitted function is taken with its options, such as donation.
        *args, **kwargs: as it is called; shapes will do, such as those of ``plait.eval_shape``.
        compile: whether to compile the program and take the figures of what runs, where XLA has fused operations and
            knows how much memory they need. ``False`` takes those of the program as it was written, which takes a
            fraction of the time and says nothing of memory. What an operation inside of a fusion reads and writes does
            not count; a fusion counts for the module of its last operation.

    Returns:
        A ``CostReport``: a row for each module, and sums. Where a program runs on several devices, of one device.

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
    places = module_places(gathered.roots, lambda: gathered.structure.labels(f)[0])
    places += captured_places(captured_objects(f), places)
    if not compile:
        return report_of(stage, places)
    compiled = stage.compile()
    return report_of(compiled, places, compiled)


def called(f: Any, args: tuple[Any, ...], method: str = "__call__") -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments; a module stands for its method."""
    from ..core.objects.pytree import Pytree

    if not isinstance(f, Pytree):
        check_function(f, "cost")
        return f, args

    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(model, method)(*args, **kwargs)

    return call, (f, *args)


def report_of(stage: Any, places: list[tuple[Path, Any]], compiled: Any = None) -> CostReport:
    """The report of a lowered or compiled program, with these modules among its arguments."""
    text = program_text(stage)
    program = Program(text)
    names: dict[Names, tuple[str, str]] = {(): ("", "")}
    for path, module in places:
        names[tuple(map(name_of_key, path))] = format_path(path), type(module).__name__
    failed: list[str] = []

    def measure(text: str) -> Figures:
        try:
            return figures(program_costs(text))
        except ValueError as error:  # an instruction that cannot stand alone
            failed.append(str(error))
            return Figures()

    modules = Modules(names)
    costs = CostsByModule(program, modules, measure)
    spread = costs.spread()
    if failed:  # what could not be asked about one by one belongs to the program as a whole
        rest = figures(program_costs(text))
        for each in spread.values():
            rest = rest.plus(each, -1.0)
        spread[()] = spread.get((), Figures()).plus(rest)
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


def figures(found: Mapping[str, float]) -> Figures:
    """XLA's figures, of which it names only those that are not zero."""
    flops = found.get("flops", 0.0)
    moved, written = found.get("bytes accessed", 0.0), found.get("bytes accessedout{}", 0.0)
    return Figures(flops, found.get("transcendentals", 0.0), moved, written, flops)


def _temporary(compiled: Any, costs: CostsByModule) -> dict[Names, int]:
    """Bytes for temporary values by place; what XLA says nothing of belongs to the whole."""
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
