"""``lazy_init``: runs a model once, so that its Linen modules make their variables. (rule B19)"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ....core.nodes.module import Module
from ....core.nodes.nodes import iter_graph_nodes
from ....core.nodes.pytree import Pytree
from ....core.settings import Restoring
from ....errors import ArgumentError
from ....util.jax_versions import current_trace

F = TypeVar("F", bound=Callable[..., Any])


class Initialization:
    """One run of ``lazy_init``: the marked nodes, and those that have made their variables."""

    def __init__(self, module: Any, *, again: bool = True) -> None:
        self.again = again
        # Objects, not only ids, because an id is reused after its object is freed.
        self.marked = {id(node): node for _, node in iter_graph_nodes(module)}
        self.done: dict[int, Any] = {}
        self.trace = current_trace()

    def covers(self, node: Pytree) -> bool:
        """Whether a node is marked. Inside a transform all are: it works on copies of the marked ones."""
        return id(node) in self.marked or node._pytree__info.trace is not self.trace


class _Runs(threading.local):
    stack: tuple[Initialization, ...] = ()


_runs = _Runs()


def initialization_of(node: Pytree) -> Initialization | None:
    """The run that initializes a node, or ``None``."""
    return next((run for run in reversed(_runs.stack) if run.covers(node)), None)


@contextlib.contextmanager
def initializing(module: Any, *, again: bool = True) -> Iterator[Initialization]:
    """Inside the block, everything reachable from a module is initialized.

    Args:
        again: whether nodes that have variables make new ones.
    """
    run = Initialization(module, again=again)
    with Restoring(_runs, stack=(*_runs.stack, run)):
        yield run


def lazy_init(fn: F, *args: Any, **kwargs: Any) -> F:
    """Call a module, or a method of it, so that all Linen modules in it make their variables.

    Args:
        fn: a module with ``__call__``, or a bound method of a module.
        *args: the arguments of the call.

    Returns:
        ``fn``. The output of the call is discarded.

    Raises:
        ArgumentError: ``fn`` is not a module, or a method of one.

    Example:
        >>> import flax.linen as nn
        >>> model = plait.Dict(head=plait.bridge.ToNNX(nn.Dense(3), rngs=plait.Rngs(0)))
        >>> model = plait.bridge.lazy_init(model.head, jnp.ones((1, 2)))
        >>> model.kernel.shape
        (2, 3)
    """
    with initializing(_module_of(fn)):
        fn(*args, **kwargs)
    return fn


def _module_of(fn: Any) -> Module:
    method = fn.func if isinstance(fn, functools.partial) else fn
    module = getattr(method, "__self__", method)
    if not isinstance(module, Module) or not callable(fn):
        raise ArgumentError(
            "lazy_init takes a module, or a method of one",
            found=f"{fn!r:.80} of type {type(fn).__name__}",
            expected="a callable plait module, or a bound method of a plait module",
            do="for example lazy_init(model, x), or lazy_init(model.encode, x)",
        )
    return module
