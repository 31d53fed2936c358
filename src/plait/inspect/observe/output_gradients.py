"""Gradients with respect to the outputs of modules, without changing the model.

A perturbation of zeros is added to each chosen output (``capture`` with ``method_outputs=Perturbation``). The gradient
with respect to the zeros is the gradient with respect to the output. (rules D2, D3)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import jax
import jax.numpy as jnp

from ...core.nodes.pytree import Pytree
from ...core.states.state import State
from ...core.variables.variable_kinds import Perturbation
from ...transforms.autodiff import value_and_grad
from ...transforms.jit.shapes import eval_shape
from ...typing import FilterLiteral
from .capture import capture


def capture_gradients(f: Callable[..., Any], *, only: FilterLiteral = ..., has_aux: bool = False) -> Callable[..., Any]:
    """Wrap a loss function so that it also returns the gradients with respect to the outputs of modules.

    Args:
        f: a function whose first argument is a module (or contains modules), a module, or a bound method of one. It
            returns a scalar; with ``has_aux``, a pair of a scalar and anything.
        only: the modules; a filter, or a path pattern such as ``"layers[*].attention"``.
        has_aux: whether ``f`` returns a pair.

    Returns:
        A function of the arguments of ``f`` that returns ``(value, gradients)``, where ``value`` is the output of
        ``f``, and ``gradients`` a ``State`` with the path of each module followed by the name of its method
        (``__call__``). If a method is called several times, its entry is the sum over the calls. Layers inside ``scan``
        have stacked gradients. Changes that ``f`` makes to its arguments are made to the caller's objects.

    Raises:
        ArgumentTypeError: the first argument contains no module.
        GraphError: ``only`` matches no module.
        ShapeError: one method is called several times with outputs of different shapes.

    Example:
        >>> model = plait.Sequential(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.relu)
        >>> loss = lambda model, x: (2 * model(x)).sum()
        >>> value, gradients = plait.capture_gradients(loss)(model, jnp.ones((1, 2)))
        >>> gradients["__call__"][...].tolist()
        [[2.0, 2.0, 2.0]]
    """

    loss, model = _as_function(f)

    def perturbed(perturbations: State, *args: Any, **kwargs: Any) -> Any:
        return capture(loss, init=perturbations, method_outputs=Perturbation, only=only)(*args, **kwargs)

    step = value_and_grad(perturbed, has_aux=has_aux, graph=True, graph_updates=True)

    @functools.wraps(loss)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        args = (*model, *args)
        look = capture(loss, Perturbation, method_outputs=Perturbation, only=only)

        @functools.wraps(loss)
        def perturbations(*args: Any, **kwargs: Any) -> Any:
            return look(*args, **kwargs)[1]

        described = eval_shape(perturbations, *args, graph=True, graph_updates=True, **kwargs)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), described)
        return step(zeros, *args, **kwargs)

    return wrapper


def _as_function(f: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A loss as a function of its model, with the model if ``f`` is bound to it."""
    model: Any = f.__self__ if isinstance(f, MethodType) else f
    if not isinstance(model, Pytree):
        return f, ()
    name = f.__name__ if isinstance(f, MethodType) else "__call__"
    return (lambda model, *args, **kwargs: getattr(model, name)(*args, **kwargs)), (model,)
