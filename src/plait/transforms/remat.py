"""``remat``: recompute in the backward pass instead of keeping what the forward pass computed. (rule X17)"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.modes import check_mode, graph_updates_mode
from ..core.nodes import Static
from .crossing import check_function, check_no_duplicates, curried, gather, lift, write_back


@curried
def remat(
    f: Any = None,
    /,
    *,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """``jax.checkpoint`` for functions of modules. (``plait.checkpoint`` saves to disk.)

    Changes that the function makes (statistics, random counters) are made once, however often it is recomputed.

    Args:
        f: the function; without it ``remat`` returns a decorator. Above a method it takes the module as an argument.
        prevent_cse, policy: as in ``jax.checkpoint``.
        static_argnums: positions of arguments that are no arrays, and hashable.

    Example:
        >>> class Block(plait.Module):
        ...     def __init__(self, rngs):
        ...         self.linear = plait.Linear(2, 2, rngs=rngs)
        ...     @plait.remat
        ...     def __call__(self, x):
        ...         return jnp.sin(self.linear(x))
        >>> block = Block(plait.Rngs(0))
        >>> grads = plait.grad(lambda block, x: block(x).sum())(block, jnp.ones((1, 2)))
        >>> grads["linear"]["kernel"].shape
        (2, 2)
    """
    check_function(f, "remat")
    statics = {static_argnums} if isinstance(static_argnums, int) else set(static_argnums)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        fixed = {number % len(args) if args else number for number in statics}
        args = tuple(Static(arg) if i in fixed else arg for i, arg in enumerate(args))
        gathered = gather((args, kwargs))
        updates = graph_updates_mode(graph_updates)
        check_mode(list(gathered.roots), graph)
        if not updates:
            check_no_duplicates(gathered, "remat")
        lifted = lift(f, gathered.structure, "remat", updates=updates)
        result = jax.checkpoint(lifted, prevent_cse=prevent_cse, policy=policy)(gathered.values(), gathered.plain)
        return write_back(result.outcome, gathered, result.values, result.plain)

    return wrapper
