"""The seams of the heart: where an optional feature, a guest, takes part in what the heart does.

A guest puts a function into a seam when it is imported. The heart imports no guest; while a seam is empty, it costs one
test of a global of this module. A guest extends two more things by Python's own means: it subclasses ``Cell`` and
``NodeInfo`` (what is read and written goes through it), and it replaces methods of classes (``Pytree.__repr__``, and
methods that are observed). ``plait/guests.py`` says which guests there are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

around_call: Callable[[Any, list[Callable[[], Any]]], AbstractContextManager[None]] | None = None
"""(gathered arguments, the functions that name them) → the context in which a call runs its JAX transform."""

around_body: dict[str, Callable[[Any, Any, Callable[[], Any]], Any]] = {}
"""By the name of a guest: (body, entered arguments, the call of its function) → the result of the call."""

recorded_in: Callable[[Any], str | None] | None = None
"""objects → the attribute of theirs whose changes leave every call, even where only values are carried out."""

around_change: Callable[[Any], AbstractContextManager[None]] | None = None
"""node → the context in which a method of the node changes its modes."""

after_walk: Callable[[Any, Any], None] | None = None
"""(root, walk) → nothing; raises if the graph must not be walked. ``walk`` is ``None`` before a visit."""

shape_sharding: Callable[[Any, tuple[int, ...], Callable[[], str]], Any] | None = None
"""(variable, shape, its place) → the sharding of a shape in the output of ``eval_shape``, or ``None``."""

find_path: Callable[[Any], str | None] | None = None
"""object → its path in a known model, for errors; ``core/graph`` puts it here, above which errors are raised."""

excuse: Callable[[Any], bool] | None = None
"""object → whether it may be changed in a different trace."""

observers = 0
"""How many blocks observe every call now, so that no trace may be kept or used again."""
