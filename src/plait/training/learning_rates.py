"""The current learning rate of an optimizer, for logging."""

from __future__ import annotations

from typing import Any

from ..core.graph.traversal import iter_graph
from ..errors import OptimizerError
from ..util.paths import describe_path
from .optimizer import Optimizer


def learning_rate(optimizer: Optimizer, path: str | None = None, /) -> Any:
    """The learning rate of the last update, or the first one before any.

    Args:
        optimizer: an optimizer with the learning rate in its state: ``optax.inject_hyperparams`` around any of Optax's
            optimizers, also inside a chain, with a number or a schedule.
        path: which one, if there are several, as for groups of parameters: its path, such as
            ``"opt_state[0].hyperparams.learning_rate"``. The error lists them.

    Returns:
        A scalar array. It changes with each step, also inside ``plait.jit``.

    Raises:
        OptimizerError: the state has no learning rate, or several and no ``path``, or none at ``path``.

    Example:
        >>> schedule = optax.linear_schedule(1.0, 0.0, transition_steps=4)
        >>> model = plait.Linear(2, 1, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.inject_hyperparams(optax.sgd)(schedule), wrt=plait.Param)
        >>> rates = []
        >>> for _ in range(3):
        ...     _ = optimizer.update(model, plait.grad(lambda model: model(jnp.ones(2)).sum())(model))
        ...     rates.append(float(plait.learning_rate(optimizer)))
        >>> rates
        [1.0, 0.75, 0.5]
    """
    found = {
        describe_path(("opt_state", *place)): value
        for place, value in iter_graph(optimizer.opt_state)
        if place[-2:] == ("hyperparams", "learning_rate")
    }
    chosen = [value for place, value in found.items() if path in (None, place)]
    if len(chosen) != 1:
        raise OptimizerError(
            "the state of the optimizer has no learning rate, or several",
            found=f"{len(found)}: {', '.join(found)}" if found else "a transformation that stores none",
            expected="one learning rate, stored by optax.inject_hyperparams" if path is None else f"one at {path}",
            do=f"choose one of them: plait.learning_rate(optimizer, {next(iter(found))!r})"
            if found
            else "wrap the optimizer: optax.inject_hyperparams(optax.adam)(learning_rate=schedule)",
        )
    return chosen[0][...]
