"""Modules from stored values: the constructor runs on shapes, and only missing values are computed. (rule B30)

If every variable is stored, no array is allocated. Linen does not store random state; a compiled program computes it,
from which XLA has eliminated the initializers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from ...core.functional.split import state
from ...core.functional.update import update
from ...core.objects.rngs import Rngs, RngState, as_key
from ...core.objects.state import from_flat_state, to_flat_state
from ...core.objects.variables import Variable
from ...errors import ArgumentError
from ...paths import Path, describe_path
from ...transforms.jit.shapes import eval_shape
from ..variables.collections import MISSING
from .rngs import PARAMS

# Constructs the module from its streams.
Construct = Callable[[Rngs], Any]
# The stored value of a variable, or MISSING.
Supply = Callable[[Path, Variable[Any]], Any]


def abstract_module(construct: Construct, keys: Mapping[str, Any]) -> Any:
    """The module that ``construct`` returns, with shapes instead of arrays."""
    return eval_shape(lambda keys: construct(Rngs(keys)), _typed(keys))


def fill(module: Any, construct: Construct, keys: Mapping[str, Any], supply: Supply, identity: Hashable = None) -> None:
    """Put values into a module with shapes, in place.

    Args:
        construct: the function that made the module.
        supply: the stored values; ``construct`` computes missing ones.
        identity: equal for calls with an equivalent ``construct``, so that the program is compiled once; ``None``
            recompiles it.
    """
    given: dict[Path, Any] = {}
    missing: list[Path] = []
    for path, leaf in to_flat_state(state(module)):
        is_stored = isinstance(leaf, Variable) and not isinstance(leaf, RngState)
        value = supply(path, leaf) if is_stored else MISSING
        if value is not MISSING:
            given[path] = value
        elif _is_abstract(leaf):
            missing.append(path)
    if missing:
        given.update(zip(missing, _computed(construct, _typed(keys), tuple(missing), identity), strict=True))
    if given:
        update(module, from_flat_state(given.items()))


def check_no_parameter(collection: str, path: Path, owner: str) -> None:
    """Raise if ``apply`` lacks a parameter; other missing variables are initialized.

    Raises:
        ArgumentError: names module, collection and leaf.
    """
    if collection == PARAMS:
        raise ArgumentError(
            "a parameter is missing from the variables passed to apply",
            at=f"{owner}, {describe_path(path)}",
            found=f"no value there in the collection {collection!r}",
            expected="the variables that init() returned",
            do="variables = module.init(key, x), then module.apply(variables, x)",
        )


def _typed(keys: Mapping[str, Any]) -> dict[str, jax.Array]:
    return {name: as_key(key) for name, key in keys.items()}


def _is_abstract(leaf: Any) -> bool:
    raw = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
    return any(isinstance(each, jax.ShapeDtypeStruct) for each in jax.tree.leaves(raw))


def _computed(construct: Construct, keys: dict[str, jax.Array], missing: tuple[Path, ...], identity: Any) -> list[Any]:
    try:
        hash(identity)
    except TypeError:
        identity = None
    if identity is None:
        return _program(construct, missing)(keys)
    return _known_program(_Same(identity, construct), missing)(keys)


class _Same:
    """A constructor that compares by its identity."""

    def __init__(self, identity: Hashable, construct: Construct) -> None:
        self.identity = identity
        self.construct = construct

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def _program(construct: Construct, missing: tuple[Path, ...]) -> Any:
    def values(keys: dict[str, jax.Array]) -> list[Any]:
        leaves = dict(to_flat_state(state(construct(Rngs(keys)))))
        found = [leaves[path] for path in missing]
        return [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in found]

    return jax.jit(values)


@functools.lru_cache(maxsize=256)  # filled by fill(), evicts by age; keeps the classes and arguments of modules alive
def _known_program(same: _Same, missing: tuple[Path, ...]) -> Any:
    return _program(same.construct, missing)
