"""Functions that wrap a plait class as a Linen module, in a ``ToLinen``. That file imports Flax, this one does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ....core.nodes.module import Module
from ....core.variables.variables import Variable
from ..variables.boxed_variables import to_linen_var
from .linen import need_linen

if TYPE_CHECKING:
    from .linen_wrapper import ToLinen as ToLinen


def to_linen(
    nnx_class: Callable[..., Module],
    *args: Any,
    abstract_init: bool = True,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    name: str | None = None,
    same_keys: bool = False,
    skip_rng: bool = False,
    **kwargs: Any,
) -> ToLinen:
    """A Linen module around a plait class; shorthand for ``ToLinen``, whose fields are keywords here.

    Args:
        nnx_class: the plait class.
        *args: arguments of the class; so are all keywords not listed here.
        name: the name of the Linen module.

    Example:
        >>> model = plait.bridge.to_linen(plait.Linear, 2, 3, use_bias=False)
        >>> list(model.init(jax.random.key(0), jnp.ones((1, 2)))["params"])
        ['kernel']
    """
    need_linen("to_linen")
    from flax.core import FrozenDict

    from .linen_wrapper import ToLinen

    return ToLinen(nnx_class, args, FrozenDict(kwargs), skip_rng, metadata_fn, abstract_init, same_keys, name=name)


def to_linen_class(
    nnx_class: type[Module],
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    skip_rng: bool = False,
    **defaults: Any,
) -> type[ToLinen]:
    """A Linen module class around a plait class.

    Args:
        **defaults: keyword arguments of the class, which each instance may override.

    Returns:
        A subclass of ``ToLinen`` whose instances take the arguments of the plait class.

    Example:
        >>> Dense = plait.flax.bridge.wrappers.to_linen_class(plait.Linear, in_features=2)
        >>> Dense(out_features=3).init(jax.random.key(0), jnp.ones((1, 2)))["params"]["kernel"].shape
        (2, 3)
    """
    need_linen("to_linen_class")
    from .linen_wrapper import partial_class

    return partial_class(nnx_class, metadata_fn, skip_rng, defaults)


def __getattr__(name: str) -> Any:
    if name != "ToLinen":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need_linen(name)
    from .linen_wrapper import ToLinen

    return ToLinen
