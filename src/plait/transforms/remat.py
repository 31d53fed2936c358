"""``remat``: recompute intermediates in the backward pass instead of storing them. (rule X17)"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

import jax

from ..core.graph.modes import Crossing
from ..typing import Tree
from .call.arguments import with_statics
from .call.call import Call, check_function, curried

if TYPE_CHECKING:
    from .signatures import RematOptions
from ..core.transform import Transformation

REMAT = Transformation("remat", static="static_argnums={}", copies_captured=True)


P = ParamSpec("P")
R = TypeVar("R")


@overload
def remat(f: Callable[P, R], **options: Unpack[RematOptions]) -> Callable[P, R]: ...
@overload
def remat(f: None = None, **options: Unpack[RematOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@curried
def remat(  # pyright: ignore[reportInconsistentOverload] - the options are listed in signatures.py
    f: Any = None,
    *,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Tree]:
    """``jax.checkpoint`` for functions of modules. (``plait.checkpoint`` saves to disk.)

    The function's changes (statistics, random counters) are applied once, even if it is recomputed.

    Args:
        f: the function; without it ``remat`` returns a decorator. As a decorator of a method, it treats the module as
            an argument.
        prevent_cse, policy: as in ``jax.checkpoint``.
        static_argnums: positions of hashable arguments that are not arrays.
        graph, graph_updates: as in ``jit``.

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
    check_function(f, REMAT)

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = with_statics(REMAT, f, args, static_argnums)
        call = Call(REMAT, f, args, kwargs, crossing=Crossing(graph, graph_updates))
        body = call.cached("remat", lambda body: body)
        recomputed = jax.checkpoint(body, prevent_cse=prevent_cse, policy=policy)
        return call.finish(*call.run(recomputed, call.inputs, stepwise=body))

    return wrapper
