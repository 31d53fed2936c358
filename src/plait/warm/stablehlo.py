"""Programs as StableHLO, for devices whose executables have no binary that can be stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .._compat import Executable, executable_of, traced_afresh


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
