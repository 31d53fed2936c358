"""The kinds of variables that plait defines; programs add their own by subclassing ``Variable``."""

from __future__ import annotations

from typing import Any, TypeVar

import jax

from .variables import Variable

A = TypeVar("A")


class Param(Variable[A]):
    """A trainable parameter.

    Example:
        >>> plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Param)["bias"].shape
        (3,)
    """


# A weight that a layer may lack: ``None`` then. Whoever knows that it is there need not ask.
Weight = Param[jax.Array] | Any


class LoRAParam(Param[A]):
    """A value of a low-rank adapter; a kind of ``Param``.

    Example:
        >>> isinstance(plait.LoRAParam(jnp.zeros(2)), plait.Param)
        True
    """


class BatchStat(Variable[A]):
    """A running statistic that a layer updates itself.

    Example:
        >>> mean = plait.BatchStat(jnp.zeros(2))
        >>> mean.value = 0.9 * mean + 0.1 * jnp.ones(2)
        >>> mean[0].item()
        0.10000000149011612
    """


class Cache(Variable[A]):
    """Keys and values cached for autoregressive decoding.

    Example:
        >>> cache = plait.Cache(jnp.zeros((4, 2)))
        >>> cache[1] = jnp.ones(2)
        >>> cache.sum().item()
        2.0
    """


class Intermediate(Variable[A]):
    """A value that a module sows while it runs.

    Example:
        >>> plait.Intermediate((jnp.ones(2),))[0].shape
        (2,)
    """


class Perturbation(Intermediate[A]):
    """A zero added to an intermediate value so that its gradient can be read.

    Example:
        >>> isinstance(plait.Perturbation(jnp.zeros(2)), plait.Intermediate)
        True
    """


class OptState(Variable[A]):
    """A value that an optimizer stores between steps."""


class OptArray(OptState[A]):
    """An array of an optimizer's state that does not belong to a variable of the model, such as a step count."""


class OptVariable(OptState[A]):
    """An array of an optimizer's state that belongs to a variable of the model, such as its momentum; has the same
    metadata."""


class Remainder(Variable[A]):
    """What another variable rounds off: the digits of a sum, or the carries of a count, that its dtype has no room for.

    A checkpoint may lack it, as those of versions that had none do.
    """
