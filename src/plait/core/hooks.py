"""Hooks: where features of higher rooms take part in walks and calls.

A feature sets its hook when it is imported; an empty hook costs one test of a global of this module. Features extend
two more things by Python's own means: they subclass ``Cell`` and ``NodeInfo`` (reads and writes go through it), and
replace methods of classes (``Pytree.__repr__``, and methods that are observed).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ..typing import Node, Tree

around_call: Callable[[Any, list[Callable[[], Sequence[str]]]], AbstractContextManager[None]] | None = None
"""(gathered arguments, the functions that name them) → the context in which a call runs its JAX transform."""

around_body: dict[str, Callable[[Any, Any, Callable[[], Tree]], Tree]] = {}
"""By the name of a feature: (body, entered arguments, the call of its function) → the result of the call."""

recorded_in: Callable[[Sequence[Node]], str | None] | None = None
"""(objects) → the name of an attribute that is propagated even with ``graph_updates=False``."""

around_change: Callable[[Node], AbstractContextManager[None]] | None = None
"""node → the context in which a method of the node changes its modes."""

after_walk: Callable[[Node, Any], None] | None = None
"""(root, walk) → nothing; raises if the graph must not be walked. ``walk`` is ``None`` before a visit."""

shape_sharding: Callable[[Any, tuple[int, ...], Callable[[], str]], Any] | None = None
"""(variable, shape, its place) → the sharding of a shape in the output of ``eval_shape``, or ``None``."""

find_path: Callable[[object], str | None] | None = None
"""object → its path in a known model, for errors; ``core/graph`` puts it here, above which errors are raised."""

excuse: Callable[[object], bool] | None = None
"""object → whether it may be changed in a different trace."""

observers = 0
"""How many blocks observe every call now, so that no trace may be kept or used again."""
