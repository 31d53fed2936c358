"""Modules from stored values: the constructor runs on shapes, and only missing values are computed. (rule B30)

If every variable is stored, no array is allocated. Linen does not store random state; a compiled program computes it,
from which XLA has eliminated the initializers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ....core.functional.split import state
from ....core.functional.update import update
from ....core.rngs import Rngs, RngState, as_key
from ....core.states.state import from_flat_state, to_flat_state
from ....core.variables.variables import Variable
from ....errors import ArgumentError
from ....transforms.jit.shapes import eval_shape
from ....util.jax_versions import Tracer, current_trace, top_level_trace
from ....util.paths import Path, describe_path
from ....util.sentinels import NOTHING
from ..variables.collection_types import is_bare
from .rngs import PARAMS

# Constructs the module from its streams.
Construct = Callable[[Rngs], Any]
# The stored value of a variable or of a bare array, or NOTHING.
Supply = Callable[[Path, Any], Any]


def abstract_module(construct: Construct, keys: Mapping[str, Any], remedy: str = "") -> Any:
    """The module that ``construct`` returns, with shapes instead of arrays.

    Args:
        remedy: what the note of an error says, if ``construct`` reads the value of an array.
    """
    with _noting(remedy):
        return eval_shape(lambda keys: construct(Rngs(keys)), typed(keys), graph=True, graph_updates=True)


def abstract_in_streams(construct: Construct, rngs: Rngs, others: Mapping[str, Any], remedy: str) -> tuple[Any, Any]:
    """The module that ``construct`` returns, with shapes instead of arrays; it draws from the streams themselves.

    Args:
        rngs: the streams, which advance by what ``construct`` draws. The module shares those that it keeps.
        others: seeds of further streams.

    Returns:
        The module; and ``construct`` for streams made from the keys alone, for ``fill``.
    """
    counts = {name: _concrete(stream.count.get_value()) for name, stream in rngs.items()}
    keys = {name: stream.key.get_value() for name, stream in rngs.items()}
    after: dict[str, Any] = {}

    def construct_there(fresh: Rngs) -> Any:
        for name, count in counts.items():
            fresh[name].count.set_value(count)
        return construct(fresh)

    def ends_of(fresh: Rngs) -> dict[str, Any]:
        return {name: fresh[name].count.get_value() for name in counts}

    def with_streams(keys: Mapping[str, Any]) -> Any:
        fresh = Rngs(keys)
        module = construct_there(fresh)
        after.update(ends_of(fresh))
        return module, fresh

    def ends(keys: Mapping[str, Any]) -> dict[str, Any]:
        fresh = Rngs(keys)
        construct_there(fresh)
        return ends_of(fresh)

    every = typed({**others, **keys})
    with _noting(remedy):
        module, fresh = eval_shape(with_streams, every, graph=True, graph_updates=True)
    if not all(isinstance(count, (np.ndarray, np.generic)) for count in after.values()):
        after = jax.jit(ends)(every)  # the constructor draws inside a transform
    for name, stream in rngs.items():
        stream.count.set_value(jnp.asarray(after[name]) if current_trace() is top_level_trace else after[name])
        fresh[name].key, fresh[name].count = stream.key, stream.count
    return module, construct_there


def _concrete(count: Any) -> Any:
    """A count as a NumPy number, where it is known: drawing then stays concrete under a trace."""
    return np.asarray(count) if isinstance(count, jax.Array) and not isinstance(count, Tracer) else count


@contextlib.contextmanager
def _noting(remedy: str) -> Iterator[None]:
    """Add what to do to the error of a constructor that reads the value of an array."""
    try:
        yield
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note(f"plait runs the constructor on shapes, but it reads the value of an array: {remedy}")
        raise


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
    for path, leaf in to_flat_state(state(module, graph=True)):
        is_stored = not isinstance(leaf, RngState) if isinstance(leaf, Variable) else is_bare(leaf)
        value = supply(path, leaf) if is_stored else NOTHING
        if value is not NOTHING:
            given[path] = value
        elif _is_abstract(leaf):
            missing.append(path)
    if missing:
        given.update(zip(missing, _computed(construct, typed(keys), tuple(missing), identity), strict=True))
    if given:
        update(module, from_flat_state(given.items()))


def check_no_parameter(collection: str, path: Path, owner: str) -> None:
    """Raise if ``apply`` lacks a parameter; other missing values are initialized.

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


def typed(keys: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Seeds and keys by name, as keys."""
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
        leaves = dict(to_flat_state(state(construct(Rngs(keys)), graph=True)))
        found = [leaves[path] for path in missing]
        return [leaf.get_raw_value() if isinstance(leaf, Variable) else leaf for leaf in found]

    return jax.jit(values)


@functools.lru_cache(maxsize=256)  # filled by fill(), evicts by age; keeps the classes and arguments of modules alive
def _known_program(same: _Same, missing: tuple[Path, ...]) -> Any:
    return _program(same.construct, missing)
