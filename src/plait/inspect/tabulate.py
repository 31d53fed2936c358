"""A model as a table: the inputs, outputs, variables and costs of each module.

The method is traced once, with abstract values. The inputs and outputs of modules are recorded during the trace, and
costs come from the traced program (``cost.py``). Nothing is computed, and the model does not change.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from ..core.graph.walks import is_graph_leaf
from ..core.module_calls.method_observers import MethodCall, observed_methods
from ..core.nodes.module import Module
from ..core.nodes.nodes import Kind, Place, children_if_any, visit
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..transforms.autodiff import value_and_grad
from ..transforms.jit.function import jit
from ..util.paths import Path, format_path
from ..util.words import first_few, in_bytes
from .cost import ModuleCost, costs_by_module
from .observe.module_names import module_places, path_in_program
from .sharding import item_size, spec_and_mesh
from .tables import Row, folded, in_words, rendered


@dataclasses.dataclass
class TableRow:
    """One module of a table; ``row_filter`` is called with it.

    Attributes:
        path: its first path, as keys.
        type: its class.
        object_id: the ``id`` of the module.
        call_order: the number of modules that were called before it; -1 if it was not called.
        calls: the number of its calls.
        inputs_repr: the inputs of its first call: ``float32[2,3]``.
        outputs: the outputs of that call, with shapes in place of arrays.
        flops: floating-point operations of the module and all below it, as ``plait.cost`` counts.
        vjp_flops: those of its backward pass; ``None`` unless they were requested.
        activation_bytes: the size of the results of all operations of the module and modules below it.
        variables: its own variables by their paths in it, without those of modules below it.
        sizes: kind → (elements, bytes) of all variables below it, each counted once.
        also_at: other paths of the same module.
    """

    path: Path
    type: type
    object_id: int
    call_order: int = -1
    calls: int = 0
    inputs_repr: str = ""
    outputs: Any = None
    flops: float | None = None
    vjp_flops: float | None = None
    activation_bytes: float | None = None
    variables: dict[Path, Variable[Any]] = dataclasses.field(default_factory=dict)
    sizes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    also_at: tuple[Path, ...] = ()


def tabulate(
    obj: Any,
    *inputs: Any,
    depth: int | None = None,
    method: str = "__call__",
    row_filter: Callable[[TableRow], bool] | None = None,
    table_kwargs: Mapping[str, Any] | None = None,
    column_kwargs: Mapping[str, Any] | None = None,
    console_kwargs: Mapping[str, Any] | None = None,
    compute_flops: bool = True,
    compute_vjp_flops: bool = False,
    **kwargs: Any,
) -> str:
    """A table of the modules of a model, with the shapes that go through them, their variables and their costs.

    The figures of a module include those of all modules below it, so the first row is the whole model. FLOPs and
    activations (the bytes of the results of operations) are those of ``plait.cost``. Equal neighbours in a list become
    one row, ``blocks[0…23]  24 × Block``, with the sums of their sizes and costs. A module with several paths is shown
    once.

    Args:
        obj: a model, or any pytree or graph of modules. Abstract values are enough, so a model from
            ``plait.eval_shape`` needs no memory.
        *inputs, **kwargs: the arguments of the method: arrays, or ``jax.ShapeDtypeStruct``s; other values are passed
            unchanged. Without any, there are no shapes and no costs.
        depth: omit modules whose paths are longer.
        method: the name of the method to call.
        row_filter: selects the rows for which it returns ``True``.
        table_kwargs: more arguments for ``rich.table.Table``.
        column_kwargs: more arguments for each column, see ``rich.table.Table.add_column``.
        console_kwargs: more arguments for ``rich.console.Console``, such as ``width`` or ``force_terminal``.
        compute_flops: whether to compute costs.
        compute_vjp_flops: whether to count the operations of the backward pass too.

    Returns:
        The table as text.

    Raises:
        ArgumentError: ``obj`` contains no module, or has no such method.

    Example:
        >>> model = plait.Sequential(plait.Linear(4, 8, rngs=plait.Rngs(0)), plait.Linear(8, 2, rngs=plait.Rngs(1)))
        >>> print(plait.tabulate(model, jnp.ones((3, 4)), compute_flops=False, console_kwargs={"width": 88}))
        Sequential
        ┏━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━━┓
        ┃ path      ┃ type       ┃ inputs       ┃ outputs      ┃ Param                ┃
        ┡━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━━┩
        │           │ Sequential │ float32[3,4] │ float32[3,2] │ 58 (232 B)           │
        ├───────────┼────────────┼──────────────┼──────────────┼──────────────────────┤
        │ layers[0] │ Linear     │ float32[3,4] │ float32[3,8] │ bias: float32[8]     │
        │           │            │              │              │ kernel: float32[4,8] │
        │           │            │              │              │ 40 (160 B)           │
        ├───────────┼────────────┼──────────────┼──────────────┼──────────────────────┤
        │ layers[1] │ Linear     │ float32[3,8] │ float32[3,2] │ bias: float32[2]     │
        │           │            │              │              │ kernel: float32[8,2] │
        │           │            │              │              │ 18 (72 B)            │
        └───────────┴────────────┴──────────────┴──────────────┴──────────────────────┘
        Total Parameters: 58 (232 B)
    """
    from rich.table import Table

    rows = table_rows(obj, inputs, kwargs, method, compute_flops or compute_vjp_flops, compute_vjp_flops)
    total = rows[0].sizes if rows and not rows[0].path else _sum_sizes(_variables_of(obj))
    kinds = sorted(total)
    footer = f"Total Parameters: {_size(tuple(map(sum, zip(*total.values(), strict=True))) or (0, 0))}"
    options = {"title": type(obj).__name__, "title_justify": "left", "caption": footer, "caption_justify": "left"}
    table = Table(**{**options, "show_lines": True, **(table_kwargs or {})})
    chosen = [row for row in rows if (depth is None or len(row.path) <= depth) and (not row_filter or row_filter(row))]
    _fill(table, chosen, kinds, compute_flops, dict(column_kwargs or {}))
    return rendered(table, **(console_kwargs or {}))


# The contents of rows -------------------------------------------------------------------------------------------------


def table_rows(
    obj: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any], method: str, costs: bool, backward: bool
) -> list[TableRow]:
    """A row for each module, in the order of the graph, except lists and dicts that are not called."""
    places = module_places([obj], list)
    rows = {path: TableRow(path, type(module), id(module)) for path, module in places}
    _add_contents(obj, rows)
    if inputs or kwargs:
        if not callable(getattr(type(obj), method, None)):
            raise ArgumentError(
                f"tabulate was given inputs, but there is no method {method!r} to call",
                found=f"a {type(obj).__name__}",
                expected="a module with that method",
                do="omit the inputs, or name the method: plait.tabulate(model, x, method='encode')",
            )
        call, given = on_arrays(method, (inputs, kwargs))
        with observed_methods([module for _, module in places], _recorder(rows)):
            jaxpr = _traced(call, obj, given)
        if costs:
            _add_costs(rows, costs_by_module(jaxpr, places), "flops")
        if backward:
            _add_backward(rows, places, call, obj, given)
    root = next(iter(rows), None)
    return [row for row in rows.values() if row.path == root or row.calls or row.variables or not _is_container(row)]


def _is_container(row: TableRow) -> bool:
    return row.type.__name__ in ("List", "Dict") and row.type.__module__.startswith(__name__.partition(".")[0] + ".")


def on_arrays(method: str, given: Any) -> tuple[Callable[..., Any], list[Any]]:
    """The call of a method as a function of the model and of its arrays and modules; other inputs are fixed."""
    leaves, treedef = jax.tree_util.tree_flatten(given, is_leaf=is_graph_leaf)
    flags = [is_graph_leaf(leaf) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype")) for leaf in leaves]

    def call(model: Any, *arrays: Any) -> Any:
        supply = iter(arrays)
        filled = [next(supply) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
        args, kwargs = jax.tree_util.tree_unflatten(treedef, filled)
        return getattr(model, method)(*args, **kwargs)

    return call, [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag]


def _recorder(rows: dict[Path, TableRow]) -> Callable[[Any, str, Callable[[], Any]], Any]:
    """An observer that records shapes; of the methods of a module that call each other, only the outermost counts."""
    running: set[int] = set()
    order = 0

    def observe(module: Any, name: str, call: Any) -> Any:
        nonlocal order
        path = path_in_program(module)
        row = None if path is None else rows.get(path)
        if row is None or id(module) in running:
            return call()
        running.add(id(module))
        row.calls += 1
        is_first = row.calls == 1
        if is_first:
            row.call_order, order = order, order + 1
            row.inputs_repr = "\n".join(_arguments(call))
        try:
            output = call()
        finally:
            running.discard(id(module))
        if is_first:
            row.outputs = jax.tree_util.tree_map(_shape, output, is_leaf=is_graph_leaf)
        return output

    return observe


def _arguments(call: MethodCall) -> Iterable[str]:
    """The inputs of an observed method, as text."""
    yield from map(describe_value, call.args)
    yield from (f"{name}: {describe_value(value)}" for name, value in call.kwargs.items() if value is not None)


def _shape(value: Any) -> Any:
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    return jax.ShapeDtypeStruct(value.shape, value.dtype) if is_array and not is_graph_leaf(value) else value


def describe_value(value: Any) -> str:
    """Arrays as dtype and shape, modules as their class, other values unchanged."""
    if is_graph_leaf(value) or isinstance(value, Module):
        return type(value).__name__
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {describe_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(describe_value, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


# Variables ------------------------------------------------------------------------------------------------------------


def _add_contents(obj: Any, rows: dict[Path, TableRow]) -> None:
    """Set each module's own variables, the sizes of all variables below it, and its other paths."""
    for place in visit(obj, children=children_if_any):
        if place.first is not None and place.first.path in rows:
            rows[place.first.path].also_at += (place.path,)
        if place.kind is not Kind.VARIABLE or place.first is not None:
            continue
        owners = [path for path in _prefixes(place.path) if path in rows]
        if owners:
            rows[owners[0]].variables[place.path[len(owners[0]) :]] = place.value
        sizes = _sum_sizes([place.value])
        for path in owners:
            for kind, (count, size) in sizes.items():
                before = rows[path].sizes.get(kind, (0, 0))
                rows[path].sizes[kind] = before[0] + count, before[1] + size


def _prefixes(path: Path) -> list[Path]:
    """A path and its prefixes, the longest first."""
    return [path[:end] for end in range(len(path), -1, -1)]


def _variables_of(obj: Any) -> list[Variable[Any]]:
    places: Iterable[Place] = visit(obj, children=children_if_any)
    return [place.value for place in places if place.kind is Kind.VARIABLE and place.first is None]


def _sum_sizes(variables: Iterable[Variable[Any]]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for variable in variables:
        for leaf in jax.tree_util.tree_leaves(variable.get_raw_value()):
            if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
                count = math.prod(leaf.shape)
                before = found.get(_kind(variable), (0, 0))
                found[_kind(variable)] = before[0] + count, before[1] + count * item_size(leaf.dtype)
    return found


def _kind(variable: Variable[Any]) -> str:
    """The name of its class; keys and counts of random streams are one kind."""
    return "RngState" if any(cls.__name__ == "RngState" for cls in type(variable).__mro__) else type(variable).__name__


# Costs ----------------------------------------------------------------------------------------------------------------


def _add_costs(rows: dict[Path, TableRow], costs: Iterable[ModuleCost], field: str) -> None:
    by_path = {row.path: row for row in costs}
    for path, row in rows.items():
        setattr(row, field, 0.0)
        row.activation_bytes = row.activation_bytes or 0.0
        own = by_path.get(format_path(path), ModuleCost("", ""))
        for above in filter(rows.__contains__, _prefixes(path)):
            setattr(rows[above], field, (getattr(rows[above], field) or 0.0) + own.flops)
            if field == "flops":
                rows[above].activation_bytes = (rows[above].activation_bytes or 0.0) + own.written


def _add_backward(
    rows: dict[Path, TableRow], places: list[tuple[Path, Any]], call: Callable[..., Any], obj: Any, given: list[Any]
) -> None:
    """The operations of the backward pass: those of both passes together, minus those of the forward pass."""

    def total(model: Any, *arrays: Any) -> Any:
        leaves = [leaf for leaf in jax.tree_util.tree_leaves(call(model, *arrays)) if hasattr(leaf, "dtype")]
        return sum(leaf.sum() for leaf in leaves if jax.numpy.issubdtype(leaf.dtype, np.inexact))

    _add_costs(
        rows,
        costs_by_module(_traced(value_and_grad(total, graph=True, graph_updates=True), obj, given), places),
        "vjp_flops",
    )
    for row in rows.values():
        row.vjp_flops = max(0.0, (row.vjp_flops or 0.0) - (row.flops or 0.0))


def _traced(f: Callable[..., Any], obj: Any, given: list[Any]) -> Any:
    jitted: Any = jit(f, graph=True, graph_updates=True)
    return jitted.trace(obj, *given).jaxpr


# The table ------------------------------------------------------------------------------------------------------------


def _fill(table: Any, rows: list[TableRow], kinds: list[str], flops: bool, column_kwargs: dict[str, Any]) -> None:
    from rich.text import Text

    called = any(row.calls for row in rows)
    specs = {id(row): _specs(row) for row in rows}
    has_specs = any(specs.values())
    has_flops = flops and any(row.flops is not None for row in rows)
    has_backward = any(row.vjp_flops is not None for row in rows)
    columns = ["path", "type", *(["inputs", "outputs"] if called else []), *kinds, *(["sharding"] if has_specs else [])]
    numbers = [*(["FLOPs"] if has_flops else []), *(["VJP FLOPs"] if has_backward else [])]
    numbers += ["activations"] if has_flops else []
    for name in (*columns, *numbers):
        table.add_column(name, **{"justify": "right" if name in numbers else "left", **column_kwargs})
    lines = []
    for row in rows:
        outputs = describe_value(row.outputs) if row.calls else ""
        texts = (row.inputs_repr, outputs, *(_variable_lines(row, kind) for kind in kinds), specs[id(row)])
        sizes = [number for kind in kinds for number in row.sizes.get(kind, (0, 0))]
        costs = (row.flops or 0.0, row.vjp_flops or 0.0, row.activation_bytes or 0.0)
        lines.append(Row(format_path(row.path), _type_cell(row), texts, (*sizes, *costs)))
    for row in folded(lines):
        sizes, (own, backward, activations) = row.numbers[: 2 * len(kinds)], row.numbers[2 * len(kinds) :]
        cells = [row.path, row.kind, *(row.texts[:2] if called else ())]
        for number, _ in enumerate(kinds):
            count = _size((int(sizes[2 * number]), int(sizes[2 * number + 1])))
            cells.append("\n".join(filter(None, (row.texts[2 + number], count if sizes[2 * number] else ""))))
        cells += [row.texts[-1]] if has_specs else []
        cells += [in_words(own)] if has_flops else []
        cells += [in_words(backward)] if has_backward else []
        cells += [in_bytes(activations)] if has_flops else []
        table.add_row(*map(Text, cells))


def _type_cell(row: TableRow) -> str:
    text = row.type.__name__ + (f" ({row.calls} calls)" if row.calls > 1 else "")
    return text + (f"\nalso at {first_few([format_path(path) for path in row.also_at])}" if row.also_at else "")


def _variable_lines(row: TableRow, kind: str) -> str:
    """The module's own variables of a kind; those of random streams are only counted."""
    own = {path: variable for path, variable in row.variables.items() if _kind(variable) == kind != "RngState"}
    return "\n".join(f"{format_path(path)}: {describe_value(_raw(variable))}" for path, variable in own.items())


def _raw(variable: Variable[Any]) -> Any:
    value = variable.get_raw_value()
    return value if hasattr(value, "shape") else jax.tree_util.tree_map(_shape, value)


def _specs(row: TableRow) -> str:
    """How the module's own variables are sharded, if they have axis names."""
    found = []
    for path, variable in row.variables.items():
        spec, _ = spec_and_mesh(variable, variable.get_raw_value(), None, format_path((*row.path, *path)))
        if any(entry is not None for entry in spec):
            found.append(f"{format_path(path)}: {spec}")
    return "\n".join(found)


def _size(size: tuple[int, ...]) -> str:
    count, bytes_ = size
    return f"{count:,} ({in_bytes(bytes_)})"
