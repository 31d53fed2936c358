"""``functional``: a plait class as a pair of functions, ``init`` and ``apply``. (rule B20)"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ....core.functional.split import split
from ....core.graph.graphdef import GraphDef
from ....core.nodes.module import Module
from ....core.rngs import Rngs
from ....core.states.proxy_caller import apply
from ....core.states.state import State
from ....errors import ArgumentError

M = TypeVar("M", bound=Module)


@dataclasses.dataclass
class Functional(Generic[M]):
    """A module before construction: its class and arguments, and after ``init`` its structure."""

    module_type: type[M]
    graphdef: GraphDef | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def init(self, *, rngs: Rngs | None = None) -> State:
        """Make the module, store its structure, and return its state.

        Args:
            rngs: passed to the constructor, unless it is ``None``.
        """
        kwargs = self.kwargs if rngs is None else {**self.kwargs, "rngs": rngs}
        self.graphdef, state = split(self.module_type(*self.args, **kwargs), graph=True)
        return state

    def apply(self, *states: State) -> Any:
        """A proxy for the module with these states; its call returns ``(out, (graphdef, state))``.

        Raises:
            ArgumentError: ``init`` has not run.
        """
        if self.graphdef is None:
            raise ArgumentError(
                "apply needs the structure of the module, which init creates",
                found=f"a Functional of {self.module_type.__name__} without structure",
                expected="init() before apply()",
                do="state = f.init(rngs=plait.Rngs(0)); f.apply(state)(x)",
            )
        return apply(self.graphdef, *states)


def functional(cls: type[M]) -> Callable[..., Functional[M]]:
    """A module class in Linen's style: arguments first, then ``init`` and ``apply``.

    Example:
        >>> layer = plait.bridge.functional(plait.Linear)(2, 3)
        >>> state = layer.init(rngs=plait.Rngs(0))
        >>> y, (graphdef, state) = layer.apply(state)(jnp.ones((1, 2)))
        >>> y.shape
        (1, 3)
    """

    def construct(*args: Any, **kwargs: Any) -> Functional[M]:
        return Functional(cls, None, args, kwargs)

    return construct
