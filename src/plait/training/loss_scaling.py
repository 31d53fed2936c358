"""Dynamic loss scaling: training in float16 without gradient underflow.

Small gradients underflow to zero in float16. The loss is multiplied by a large factor before differentiation, which
scales all gradients, and they are divided by it before use. The factor adapts during training: as large as possible
without overflow.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..core.functional.update import update as write_state
from ..core.graph.traversal import iter_graph
from ..core.nodes.nodes import Kind, kind_of
from ..core.nodes.pytree import Pytree
from ..core.states.pure_dicts import plain_value
from ..core.states.state import from_flat_state
from ..core.variables.variables import Variable
from ..errors import ArgumentError
from ..typing import Array
from ..util.paths import Path
from .optimizer import ModelAndOptimizer, Optimizer
from .remainders import wide_dtype


class LossScaleState(Variable[Any]):
    """The variables of a loss scale."""


class DynamicLossScale(Pytree):
    """Dynamic loss scaling: the factor grows while gradients are finite; otherwise it shrinks and the step is skipped.

    Use it for a model that computes in float16 (``dtype=jnp.float16``) with parameters in float32; bfloat16 has the
    range of float32 and does not need it.

    Variables:
        scale: ``LossScaleState``, ``()``, float32; the factor.
        good_steps: ``LossScaleState``, ``()``, int32; steps since the factor last changed.

    Args:
        initial: the initial factor.
        growth_interval: the number of finite steps after which the factor grows.
        factor: multiplies the factor when it grows, divides it when it shrinks.
        minimum: the lower bound of the factor.
        maximum: the upper bound of the factor.

    Raises:
        ArgumentError: ``factor`` or ``growth_interval`` is too small, or ``initial`` is outside of the bounds.

    Example:
        >>> model = plait.Linear(2, 1, dtype=jnp.float16, rngs=plait.Rngs(0))
        >>> optimizer = plait.Optimizer(model, optax.sgd(0.1), wrt=plait.Param)
        >>> loss_scale = plait.DynamicLossScale(initial=8.0, growth_interval=1)
        >>> grads = plait.grad(lambda model: loss_scale.scaled(model(jnp.ones(2)).sum()))(model)
        >>> bool(loss_scale.update(optimizer, model, grads)), float(loss_scale.scale[...])
        (True, 16.0)
        >>> bool(loss_scale.update(optimizer, model, jax.tree.map(lambda g: g * jnp.inf, grads)))
        False
        >>> float(loss_scale.scale[...]), int(optimizer.step[...])
        (8.0, 1)

    Reference: Micikevicius et al., "Mixed Precision Training", 2017, arXiv:1710.03740, section 3.2.
    """

    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        growth_interval: int = 2000,
        factor: float = 2.0,
        minimum: float = 1.0,
        maximum: float = 2.0**24,
    ) -> None:
        if not (factor > 1 and growth_interval >= 1 and 0 < minimum <= initial <= maximum):
            raise ArgumentError(
                "these arguments of a loss scale are invalid",
                found=f"initial={initial}, growth_interval={growth_interval}, factor={factor}, minimum={minimum}, "
                f"maximum={maximum}",
                expected="factor > 1, growth_interval >= 1, and 0 < minimum <= initial <= maximum",
                do="omit them for the defaults",
            )
        self.growth_interval = growth_interval
        self.factor = factor
        self.minimum = minimum
        self.maximum = maximum
        self.scale = LossScaleState(jnp.asarray(initial, jnp.float32))
        self.good_steps = LossScaleState(jnp.zeros((), jnp.int32))

    def scaled(self, loss: Array) -> Array:
        """The loss times the factor, in float32 or in the wider dtype of the loss; differentiate this."""
        loss = _widened(jnp.asarray(loss))
        return loss * self.scale[...].astype(loss.dtype)

    def unscaled(self, grads: Any) -> Any:
        """Divide gradients of the scaled loss by the factor; each keeps its dtype. ``update`` does this itself."""

        def divided(g: Any) -> Array:
            wide = _widened(jnp.asarray(g))
            return (wide / self.scale[...].astype(wide.dtype)).astype(g.dtype)

        return jax.tree.map(divided, grads)

    def update(self, optimizer: Optimizer, model: Any, grads: Any, /, **kwargs: Any) -> Array:
        """Take an optimizer step with gradients of the scaled loss, unless one of them is not finite.

        A skipped step changes neither the model nor the optimizer, including its step counter; only the factor shrinks.

        Args:
            optimizer: the optimizer of the model.
            model: the model.
            grads: gradients of ``scaled(loss)``.
            **kwargs: extra arguments of the transformation.

        Returns:
            Whether the step was taken: a bool array.

        Raises:
            OptimizerError: as for ``Optimizer.update``.
        """
        finite = _all_finite(grads)
        # Replace non-finite gradients by zeros, so that NaN checks do not fire on a skipped step.
        usable = jax.tree.map(lambda g: jnp.where(finite, g, jnp.zeros_like(g)), self.unscaled(grads))
        before = _values([model, optimizer])
        if isinstance(optimizer, ModelAndOptimizer):
            optimizer.update(usable, **kwargs)
        else:
            optimizer.update(model, usable, **kwargs)
        arrays = {}
        for path, leaf in _leaves([model, optimizer]).items():
            old, new = before.get(path), plain_value(leaf)
            if path in before and new is not old:
                kept = jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)
                if isinstance(leaf, Variable):
                    leaf.set_raw_value(kept)
                else:
                    arrays[path] = kept
        if arrays:
            write_state([model, optimizer], from_flat_state(arrays))
        self._move(finite)
        return finite

    def _move(self, finite: Array) -> None:
        scale, good = self.scale[...], jnp.where(finite, self.good_steps[...] + 1, 0)
        grows = good >= self.growth_interval
        larger = jnp.where(grows, jnp.minimum(scale * self.factor, self.maximum), scale)
        self.scale[...] = jnp.where(finite, larger, jnp.maximum(scale / self.factor, self.minimum))
        self.good_steps[...] = jnp.where(grows, 0, good)


def _widened(x: Array) -> Array:
    return x.astype(wide_dtype(x.dtype))


def _all_finite(grads: Any) -> Array:
    leaves = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads)]
    return jnp.stack(leaves).all() if leaves else jnp.asarray(True)


def _leaves(node: Any) -> dict[Path, Any]:
    """The variables and arrays of a graph, by path."""
    found = iter_graph(node, graph=True)
    return {path: leaf for path, leaf in found if isinstance(leaf, Variable) or kind_of(leaf) is Kind.ARRAY}


def _values(node: Any) -> dict[Path, Any]:
    return {path: plain_value(leaf) for path, leaf in _leaves(node).items()}
