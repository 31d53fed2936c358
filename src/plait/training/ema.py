"""EMA: exponential moving averages of a model's variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..core.graph.traversal import own_leaves
from ..core.graph.unflatten import Builder
from ..core.graph.walks import Walk, path_of
from ..core.nodes.nodes import check_node
from ..core.nodes.pytree import Pytree, copied_buffers
from ..core.states.pure_dicts import plain_value
from ..core.states.state import FlatState, from_flat_state, to_flat_state
from ..core.traces.guard import check_trace
from ..core.variables.variable_kinds import Remainder
from ..core.variables.variables import Variable
from ..errors import ArgumentError, ArgumentTypeError
from ..typing import Array, ArrayLike, FilterLiteral
from ..util.paths import describe_path
from ..util.words import describe_type
from .remainders import remainder, wide_dtype

M = TypeVar("M")


class EMAStep(Variable[Any]):
    """The number of updates of an EMA."""


class EMA(Pytree):
    """Exponential moving averages of variables: ``average ← decay · average + (1 − decay) · value``.

    Averaged weights often generalise better than the last ones. Values that are not floats, such as counters and random
    keys, are not averaged: the latest is stored. Averages of less than 32 bits, such as bfloat16, are computed in
    float32; ``params`` has them rounded to their dtype.

    Variables:
        params: a ``State`` with a copy of each selected variable, of the same type.
        rest: a ``State`` with a ``Remainder``, float32, for each variable of less than 32 bits: what was rounded off.
            Only if there are any.
        step: ``EMAStep``, ``()``, int32; the number of updates so far. Only if ``decay`` is a function.

    Args:
        params: a model, a state, or a container of variables; the averages start at its values.
        decay: weight of the old average in each update, from 0 to 1; or a function of the number of earlier updates,
            such as ``plait.training.warm_up_decay(0.999)`` or a schedule of Optax.
        only: which variables to average.

    Raises:
        ArgumentTypeError: a selected leaf is not a variable; names its path.

    Example:
        >>> model = plait.Linear(1, 1, rngs=plait.Rngs(0))
        >>> ema = plait.EMA(model, decay=0.75)
        >>> model.bias[...] = jnp.array([4.0])
        >>> ema.update(model)
        >>> ema.apply_to(model).bias[...].tolist(), model.bias[...].tolist()
        ([1.0], [4.0])

    Reference: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
    """

    def __init__(
        self,
        params: Any,
        decay: float | Callable[[Array], Any],
        *,
        only: FilterLiteral = ...,
        graph: bool | None = None,
    ) -> None:
        self.decay = decay
        if callable(decay):
            self.step = EMAStep(jnp.zeros((), jnp.int32))
        self.filter = only
        copies = []
        for path, leaf in own_leaves(params, only, "EMA").items():
            if not isinstance(leaf, Variable):
                raise ArgumentTypeError(
                    "EMA averages only variables",
                    at=describe_path(path),
                    found=describe_type(leaf),
                    expected="a variable",
                    do="select the variables: EMA(model, decay, only=plait.Param)",
                )
            # A copy: a jitted step may donate the buffers of the model.
            copies.append((path, leaf.copy(jax.tree.map(copied_buffers, plain_value(leaf)))))
        self.params = from_flat_state(FlatState(copies, sort=True))
        narrow = [(path, plain_value(copy)) for path, copy in copies]
        narrow = [(path, value) for path, value in narrow if any(map(_is_narrow, jax.tree.leaves(value)))]
        if narrow:
            rest = [(path, Remainder(jax.tree.map(_no_remainder, value))) for path, value in narrow]
            self.rest = from_flat_state(FlatState(rest, sort=True))

    def update(self, updates: Any, *, when: ArrayLike = True) -> None:
        """Update the averages with the values of a model.

        Args:
            updates: the model, or its state. Other variables are ignored.
            when: a bool, which may be traced: whether to update at all. ``DynamicLossScale.update`` returns whether it
                took the step: ``ema.update(model, when=loss_scale.update(optimizer, model, grads))``.

        Raises:
            ArgumentError: an averaged variable is missing, or has a different shape; no average changes.
        """
        averages = dict(to_flat_state(self.params))
        values = {path: plain_value(leaf) for path, leaf in own_leaves(updates, ..., "EMA").items() if path in averages}
        for path, average in averages.items():
            found = jax.tree.map(jnp.shape, values[path]) if path in values else "nothing"
            expected = jax.tree.map(jnp.shape, plain_value(average))
            if found != expected:
                raise ArgumentError(
                    "the values do not match the averages",
                    at=describe_path(path),
                    found=f"{found}" if path not in values else f"a value of shape {found}",
                    expected=f"a value of shape {expected}",
                    do="update with the model that the EMA was created from, or create a new EMA",
                )
        decay: Any = self.decay
        if callable(decay):
            check_trace(self.step._cell.trace, self.step, "change the value of")
            step = plain_value(self.step)
            decay = jnp.asarray(decay(step))
            is_last = step == jnp.iinfo(step.dtype).max  # where it stays, as Optax's counts do
            self.step.set_raw_value(step + (jnp.asarray(when, bool) & ~is_last).astype(step.dtype))
        remainders = dict(to_flat_state(self.rest)) if "rest" in self.__dict__ else {}
        for path, average in averages.items():
            old = exact = plain_value(average)
            if path in remainders:
                exact = jax.tree.map(_exact, old, plain_value(remainders[path]))
            moved = jax.tree.map(functools.partial(_moved, decay), exact, values[path])
            if when is not True:
                moved = jax.tree.map(lambda new, kept: jnp.where(when, new, kept), moved, exact)
            if path in remainders:
                exact, moved = moved, jax.tree.map(lambda new, kept: new.astype(kept.dtype), moved, old)
                remainders[path].set_raw_value(jax.tree.map(_rounded_off, exact, moved))
            average.set_raw_value(moved)

    def apply_to(self, model: M) -> M:
        """A copy of the model with the averages instead of its variables; all other variables are shared.

        The averages are this object's own variables, so the copy changes with each later ``update``; ``plait.clone`` of
        it does not.

        Raises:
            ArgumentError: the model lacks an averaged variable; names its path.
        """
        check_node(model, "apply_to")
        walk = Walk()
        graphdef = walk.add(model)
        averages = dict(to_flat_state(self.params))
        leaves = []
        for link, leaf in zip(walk.links, walk.leaves, strict=True):
            average = averages.pop(path_of(link), None)
            leaves.append(leaf if average is None else average)
        if averages:
            raise ArgumentError(
                "the model lacks some of the averaged variables",
                at=", ".join(map(describe_path, averages)),
                found="no variable",
                expected="a model with the structure that the EMA was created from",
                do="apply the averages to the model that the EMA was created from",
            )
        return Builder().build(graphdef, leaves)


def warm_up_decay(decay: float) -> Callable[[Array], Array]:
    """The decay ``min(decay, (1 + t) / (10 + t))`` after ``t`` updates.

    With a constant decay the initial values count for about ``1 / (1 − decay)`` updates; with this one they are soon
    forgotten.

    Args:
        decay: the decay after the warm-up.

    Example:
        >>> ema = plait.EMA(plait.Linear(1, 1, rngs=plait.Rngs(0)), plait.training.warm_up_decay(0.999))
        >>> [round(float(ema.decay(step)), 3) for step in (0, 90, 100_000)]
        [0.1, 0.91, 0.999]
    """
    return functools.partial(_warm_up, decay)


def _warm_up(decay: float, step: ArrayLike) -> Array:
    step = jnp.asarray(step, jnp.float32)
    return jnp.minimum(jnp.float32(decay), (1 + step) / (10 + step))


def _is_narrow(value: Any) -> bool:
    return jnp.issubdtype(value.dtype, jnp.inexact) and wide_dtype(value.dtype) != value.dtype


def _no_remainder(average: Any) -> Array:
    return jnp.zeros_like(average, jnp.float32) if _is_narrow(average) else jnp.zeros((), jnp.float32)


def _exact(average: Any, rest: Array) -> Any:
    return average.astype(rest.dtype) + remainder(average, rest) if _is_narrow(average) else average


def _rounded_off(exact: Any, average: Any) -> Array:
    if not _is_narrow(average):
        return jnp.zeros((), jnp.float32)
    rest = exact - average.astype(exact.dtype)
    return jnp.where(jnp.isfinite(rest), rest, 0)


def _moved(decay: Any, average: Any, value: Any) -> Any:
    if not jnp.issubdtype(average.dtype, jnp.inexact):
        return value
    same = value.dtype == average.dtype  # if so, a weak type stays weak
    value = value if same else value.astype(average.dtype)
    if isinstance(decay, jax.Array):  # from a schedule
        return decay.astype(average.dtype) * average + (1 - decay).astype(average.dtype) * value
    return decay * average + (1 - decay) * value
