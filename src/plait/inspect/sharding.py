"""How a model is sharded: the axis names and spec of every variable, and its bytes on each device."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..core.functional.split import state
from ..core.nodes.nodes import Kind, kind_of
from ..core.states.state import State
from ..core.variables.variables import Variable
from ..partitioning.mesh import axes_of, fitted_spec, get_global_mesh
from ..partitioning.specs import describe_leaf, variable_spec
from ..util.words import in_bytes
from .tables import rendered

# The number of bytes from which replication on every device of a mesh is worth a remark.
LARGE = 1 << 20
_WIDTH = 200  # characters of a table


@dataclasses.dataclass(frozen=True)
class ShardedVariable:
    """One variable of a report.

    Attributes:
        path: its path in the model.
        kind: its class.
        shape, dtype: those of its array.
        names: the names of its axes, as the model gives them.
        spec: its spec on the mesh.
        bytes: the size of the whole array.
        bytes_per_device: the size of the part on one device.
        large_and_whole: whether it is a large array that is replicated on several devices.
    """

    path: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    names: Any
    spec: PartitionSpec
    bytes: int
    bytes_per_device: int
    large_and_whole: bool


@dataclasses.dataclass(frozen=True)
class ShardingReport:
    """How a model is sharded. ``str`` gives a table.

    Attributes:
        mesh: the sizes of the mesh axes; empty without a mesh.
        variables: a row for each variable, in the order of the model.
    """

    mesh: Mapping[Any, int]
    variables: tuple[ShardedVariable, ...]

    @property
    def bytes(self) -> int:
        """The size of all arrays, each counted once."""
        return sum(row.bytes for row in self.variables)

    @property
    def bytes_per_device(self) -> int:
        """The size of the part on one device."""
        return sum(row.bytes_per_device for row in self.variables)

    def __str__(self) -> str:
        return rendered(self, width=_WIDTH)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        where = ", ".join(f"{name}={size}" for name, size in self.mesh.items())
        title = f"{len(self.variables)} variables on {f'the mesh {where}' if where else 'no mesh'}"
        table = Table(title=title, caption=self._remark(), caption_justify="left", title_justify="left")
        for column in ("variable", "kind", "array", "axis names", "spec", "bytes", "per device", ""):
            table.add_column(column, justify="right" if column in ("bytes", "per device") else "left", overflow="fold")
        for row in self.variables:
            shape = f"{row.dtype}[{', '.join(map(str, row.shape))}]"
            names = "" if row.names is None else _plain(row.names)
            remark = "large, not sharded" if row.large_and_whole else ""
            sizes = (in_bytes(row.bytes), in_bytes(row.bytes_per_device))
            cells = (row.path, row.kind, shape, names, str(row.spec), *sizes, remark)
            table.add_row(*map(Text, cells))
        table.add_section()
        table.add_row("all", "", "", "", "", in_bytes(self.bytes), in_bytes(self.bytes_per_device), "")
        return table

    def _remark(self) -> str | None:
        whole = [row for row in self.variables if row.large_and_whole]
        if not whole:
            return None
        total = in_bytes(sum(row.bytes for row in whole))
        return f"{len(whole)} large variables, {total} in all, are replicated on every device"


def sharding_report(tree: Any, mesh: Any = None) -> ShardingReport:
    """How a model is sharded: for every variable its axis names, its spec, and its bytes on each device.

    An array on a mesh is shown with its sharding; other arrays and abstract values with that of their axis names.

    Args:
        tree: a model or its state; abstract values, such as those of ``plait.get_abstract_model``, are enough.
        mesh: ``None`` means the current mesh, or else the one that the arrays are on.

    Raises:
        ArgumentError: the names do not fit the mesh; the error names the path.

    Example:
        >>> layer = plait.Linear(256, 8, rngs=plait.Rngs(0), kernel_metadata={"out_sharding": ("in", "out")})
        >>> with plait.logical_axis_rules([("in", None), ("out", "model")]):
        ...     report = plait.inspect.sharding_report(layer, jax.make_mesh((8,), ("model",)))
        >>> [(row.path, row.spec, row.bytes_per_device) for row in report.variables]
        [('bias', P(), 32), ('kernel', P(None, 'model'), 1024)]
    """
    mesh = get_global_mesh() if mesh is None else mesh
    sizes: dict[Any, int] = {} if mesh is None else dict(mesh.shape)
    tree = tree if isinstance(tree, State) or kind_of(tree) is not Kind.GRAPH else state(tree, graph=True)
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, Variable))
    rows = []
    for path, leaf in pairs:
        place = describe_leaf(path, leaf).rpartition(" (")[0] or type(leaf).__name__
        value = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
        for inner, array in jax.tree_util.tree_flatten_with_path(value)[0]:
            if hasattr(array, "shape") and hasattr(array, "dtype"):
                rows.append(_row(place + jax.tree_util.keystr(inner), leaf, array, mesh))
                sharding = getattr(array, "sharding", None)
                if mesh is None and isinstance(sharding, NamedSharding):
                    sizes |= sharding.mesh.shape
    return ShardingReport(sizes, tuple(rows))


def _row(place: str, leaf: Any, array: Any, mesh: Any) -> ShardedVariable:
    names = leaf.get_metadata().get("out_sharding") if isinstance(leaf, Variable) else None
    size = math.prod(array.shape) * item_size(array.dtype)
    spec, sizes = spec_and_mesh(leaf, array, mesh, place)
    parts = 1
    for entry in spec:
        parts *= math.prod(sizes.get(name, 1) for name in axes_of(entry))
    whole = parts == 1 and math.prod(sizes.values()) > 1 and size >= LARGE
    kind = type(leaf).__name__
    return ShardedVariable(place, kind, tuple(array.shape), str(array.dtype), names, spec, size, size // parts, whole)


def spec_and_mesh(leaf: Any, array: Any, mesh: Any, place: str) -> tuple[PartitionSpec, dict[Any, int]]:
    """The spec of an array and the sizes of its mesh axes, from its sharding, or else from its names on ``mesh``.

    Args:
        leaf: the variable that holds the array, or the array.
        mesh: the mesh for an array without one; ``None`` means no mesh.
        place: whose array it is, for errors.

    Raises:
        ArgumentError: the names do not fit the mesh.
    """
    sharding = getattr(array, "sharding", None)
    if isinstance(sharding, NamedSharding):
        return sharding.spec, dict(sharding.mesh.shape)
    spec = (variable_spec(leaf, place) if isinstance(leaf, Variable) else None) or PartitionSpec()
    if mesh is None:
        return spec, {}
    names = leaf.get_metadata().get("out_sharding") if isinstance(leaf, Variable) else None
    return fitted_spec(spec, mesh, array.shape, place, names=names), dict(mesh.shape)


@functools.cache
def item_size(dtype: Any) -> int:
    """The bytes of one number of a dtype; of one random key, the bytes of its data."""
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).size * 4
    return np.dtype(dtype).itemsize


def _plain(names: Any) -> str:
    return ", ".join(map(str, names)) if isinstance(names, (tuple, list)) else str(names)
