"""The cost of a program by module: its operations are counted in the traced program, memory is what XLA plans."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ..core.traces.captured import named_captures
from ..core.transform import Transformation
from ..errors import ArgumentError
from ..transforms.call.arguments import gather
from ..transforms.call.call import check_function
from ..transforms.jit.function import jit
from ..util.paths import Path, format_path
from ..util.words import first_few, in_bytes
from .flops import costliest, flops_of
from .module_operations import ModuleOperations
from .observe.module_names import module_places
from .sharding import item_size
from .tables import Row, folded, in_words, rendered


@dataclasses.dataclass(frozen=True)
class ModuleCost:
    """The cost of the operations of one module, without those of modules below it.

    Attributes:
        path: the path of the module in the arguments.
        kind: its class; empty for operations that belong to no module.
        flops: floating-point operations, counted as XLA does, but in every step of a ``scan``.
        written: bytes of the results of all operations, as if XLA fused none: all that a backward pass might keep.
    """

    path: str
    kind: str
    flops: int = 0
    written: int = 0


@dataclasses.dataclass(frozen=True)
class CostReport:
    """The cost of a program. ``str`` gives a table.

    Attributes:
        modules: the modules with any cost, in the order of the arguments; operations that belong to no module have an
            empty path, like the outermost module.
        bytes: bytes that the compiled program reads and writes, as XLA counts, with the body of a loop once; ``None``,
            as all below, for a program that was not compiled.
        argument_bytes: memory of the arguments on one device.
        output_bytes: memory of the results.
        alias_bytes: memory of outputs that reuse the buffers of donated arguments.
        temp_bytes: memory of temporary values.
    """

    modules: tuple[ModuleCost, ...]
    bytes: float | None = None
    argument_bytes: int | None = None
    output_bytes: int | None = None
    alias_bytes: int | None = None
    temp_bytes: int | None = None

    @property
    def flops(self) -> int:
        """Of the whole program."""
        return sum(row.flops for row in self.modules)

    @property
    def written(self) -> int:
        """Of the whole program."""
        return sum(row.written for row in self.modules)

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
        return ModuleCost(path, kind, sum(row.flops for row in rows), sum(row.written for row in rows))

    def __str__(self) -> str:
        return rendered(self)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(title="what each module costs", title_justify="left", caption=self._caption())
        table.caption_justify = "left"
        for column in ("module", "type", "FLOPs", "results"):
            table.add_column(column, justify="left" if column in ("module", "type") else "right", overflow="fold")
        rows = [Row(row.path, row.kind, (), (row.flops, row.written)) for row in self.modules]
        for row in (*folded(rows), Row("all", "", (), (self.flops, self.written))):
            if row.path == "all" and not row.kind:
                table.add_section()
            flops, written = row.numbers
            table.add_row(*map(Text, (row.path, row.kind, in_words(flops), in_bytes(written))))
        return table

    def _caption(self) -> str | None:
        if self.peak_bytes is None:
            return None
        sizes = (self.peak_bytes, self.argument_bytes, self.output_bytes, self.temp_bytes, self.alias_bytes)
        peak, given, returned, temporary, alias = (in_bytes(size or 0) for size in sizes)
        memory = f"memory: {peak} = {given} of arguments + {returned} of outputs + {temporary} temporary"
        memory += f" - {alias} of donated arguments" if self.alias_bytes else ""
        return f"{memory}\nread and written, fused: {in_bytes(self.bytes or 0)}"


def cost(f: Callable[..., Any], /, *args: Any, compile: bool = True, **kwargs: Any) -> CostReport:
    """The cost of a call by module: floating-point operations and bytes of results; and the memory of the whole.

    Nothing is run. Products, convolutions, reductions and arithmetic of the traced program are counted by the rules of
    XLA, each step of a ``scan`` by itself; of the branches of a ``cond``, the costliest counts. Memory is XLA's figure.

    Args:
        f: a function of modules and arrays, or a module; the options of a jitted function, such as donation, apply.
        *args, **kwargs: its arguments; abstract values, such as those of ``plait.eval_shape``, are enough.
        compile: whether to compile the program, for its memory and for the bytes that it reads and writes. ``False``
            only traces it, which takes a fraction of the time.

    Returns:
        A ``CostReport``: a row for each module, and sums. If a program runs on several devices, operations are those of
        all, except in a ``shard_map``, and memory is that of one.

    Example:
        >>> model = plait.Linear(256, 128, rngs=plait.Rngs(0))
        >>> report = plait.cost(model, jnp.ones((32, 256)), compile=False)
        >>> report.flops == 2 * 32 * 256 * 128 + 32 * 128
        True
    """
    f, args = _called(f, args)
    jitted: Any = f if hasattr(f, "trace") else jit(f, graph=True, graph_updates=True)
    traced = jitted.trace(*args, **kwargs)
    gathered = gather((args, kwargs))
    places = module_places(gathered.roots, lambda: gathered.structure.labels(f)[0], lambda: named_captures(f))
    report = CostReport(costs_by_module(traced.jaxpr, places))
    if not compile:
        return report
    compiled = traced.lower().compile()
    sizes = compiled.memory_analysis()
    return dataclasses.replace(
        report,
        bytes=compiled.cost_analysis().get("bytes accessed", 0.0),
        argument_bytes=sizes.argument_size_in_bytes,
        output_bytes=sizes.output_size_in_bytes,
        alias_bytes=sizes.alias_size_in_bytes,
        temp_bytes=sizes.temp_size_in_bytes,
    )


def _called(f: Any, args: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function and its arguments; for a module, its ``__call__``."""
    from ..core.nodes.pytree import Pytree

    if not isinstance(f, Pytree):
        check_function(f, Transformation("cost"))
        return f, args

    def call(model: Any, /, *args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    return call, (f, *args)


def costs_by_module(jaxpr: Any, places: list[tuple[Path, Any]]) -> tuple[ModuleCost, ...]:
    """The costs of these modules in a traced program; what belongs to none of them counts for the root."""
    kinds = {(): "", **{path: type(module).__name__ for path, module in places}}
    found: dict[Path, list[int]] = {}
    for eqn, path, times in ModuleOperations(kinds).of(jaxpr, costliest):
        sums = found.setdefault(path, [0, 0])
        sums[0] += times * flops_of(eqn)
        sums[1] += times * sum(_bytes_of(variable.aval) for variable in eqn.outvars)
    return tuple(ModuleCost(format_path(path), kind, *found[path]) for path, kind in kinds.items() if path in found)


def _bytes_of(aval: Any) -> int:
    return math.prod(aval.shape) * item_size(aval.dtype) if hasattr(aval, "shape") else 0
