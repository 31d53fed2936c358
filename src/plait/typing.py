"""Type aliases of public signatures, and names for what flows through the library and has no type of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from .util.paths import Key as Key, Path as Path

Array = jax.Array
ArrayLike = jax.Array | np.ndarray | np.bool_ | np.number | bool | int | float | complex
Shape = Sequence[int]
DTypeLike = Any
PRNGKey = jax.Array
Initializer = Callable[..., Any]
FilterLiteral = Any
PrecisionLike = Any
Axes = int | Sequence[int]

# What a variable or attribute holds: an array, tracer, reference, shape, variable, number, text; no class in common.
Value: TypeAlias = Any

# A user's object: a module, a variable, a container, an object of a registered class; its attributes are not known.
Node: TypeAlias = Any

# A pytree of the user's, with or without objects in it: an argument, an output, a state, axes for one of these.
Tree: TypeAlias = Any

# A ``jax.tree_util.PyTreeDef``, of which type checkers know nothing: jaxlib has no stubs.
TreeDef: TypeAlias = Any

# What a variable's metadata says, by keyword: axis names, hooks, and whatever a user passes.
Metadata: TypeAlias = dict[str, Any]
