"""How an executable is written and read: as XLA's own binary, or as StableHLO where a device has no such binary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ..._compat import Executable, executable_of, traced_afresh
from ..stored.forms import read_dtype, read_sharding, write_dtype, write_sharding


def written_executable(executable: Executable) -> dict[str, Any]:
    """The required properties of an executable, as JSON."""
    return {
        "name": executable.name,
        "kept": executable.kept,
        "committed": executable.committed,
        "in_shardings": [*map(write_sharding, executable.in_shardings)],
        "out_shardings": [*map(write_sharding, executable.out_shardings)],
        "out_avals": [[[*shape], write_dtype(dtype), weak] for shape, dtype, weak in executable.out_avals],
        "devices": executable.devices,
    }


def read_executable(form: dict[str, Any], binary: bytes, backend: str | None) -> Executable:
    """The inverse of ``written_executable``."""
    return Executable(
        name=form["name"],
        binary=binary,
        kept=form["kept"],
        committed=form["committed"],
        in_shardings=[read_sharding(each, backend) for each in form["in_shardings"]],
        out_shardings=[read_sharding(each, backend) for each in form["out_shardings"]],
        out_avals=[(tuple(shape), read_dtype(dtype), weak) for shape, dtype, weak in form["out_avals"]],
        devices=form["devices"],
    )


def exported(jitted: Any, stage: Any, leaves: Sequence[Any], tree: Any) -> tuple[bytes, list[int]]:
    """A program as StableHLO, for devices whose executables cannot be stored, and the arguments that it donates."""
    from jax import export

    donated = [i for i, info in enumerate(jax.tree_util.tree_leaves(stage.args_info)) if info.donated]

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = jax.tree_util.tree_unflatten(tree, leaves)
        return jax.tree_util.tree_leaves(jitted(*args, **kwargs))

    with traced_afresh():
        made = export.export(jax.jit(flat, donate_argnums=donated, keep_unused=True))(*leaves)
    return bytes(made.serialize()), donated


def compiled_export(executable: Executable, leaves: Sequence[Any], donated: Sequence[int]) -> Any:
    """An executable of a StableHLO program. It is compiled here, or loaded from JAX's own cache on disk."""
    from jax import export

    program = export.deserialize(bytearray(executable.binary))
    jitted = jax.jit(program.call, donate_argnums=donated, keep_unused=True)
    return executable_of(jitted.lower(*leaves).compile(), executable)
