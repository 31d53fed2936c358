"""Converts random streams to the keys that Linen takes, and Linen's keys to seeds of streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from ....core.rngs import Rngs, as_key

# Linen's name for the stream of initializers, which is also its fallback for missing streams.
PARAMS = "params"
_DEFAULT = 0x64656661  # "defa"; the draws of a stream fold in small numbers


def linen_keys(rngs: Any) -> dict[str, jax.Array]:
    """The ``rngs`` of a call to Linen: one key for each stream. (rule B22)

    Args:
        rngs: ``Rngs``, which gives one key from each stream; a key or a seed, which becomes ``params``; a mapping
            from names to keys or seeds, which are used unchanged; or ``None``. ``default`` is renamed ``params`` if
            there is no stream of that name.

    Raises:
        ArgumentError: a value is none of these.
    """
    if rngs is None:
        return {}
    if isinstance(rngs, Rngs):
        keys = {name: stream() for name, stream in rngs.items()}
    elif isinstance(rngs, Mapping):
        keys = {name: as_key(source) for name, source in rngs.items()}
    else:
        return {PARAMS: as_key(rngs)}
    if PARAMS not in keys and "default" in keys:
        keys[PARAMS] = keys.pop("default")
    return keys


def linen_rngs_dict(linen_module: Any, add_default: bool = False) -> dict[str, Any]:
    """One new key from every random collection of a bound Linen module.

    Args:
        linen_module: a Linen module whose method is running.
        add_default: whether to add a seed ``default`` if the module has no such collection: a key derived from that of
            ``params``; without one 0.
    """
    keys = {name: linen_module.make_rng(name) for name in linen_module.scope.rngs}
    return with_default(keys) if add_default else keys


def with_default(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with a seed ``default``: as in Linen, a stream that is missing depends on the key of ``params``.

    The seed is not a draw: Linen counts draws, and traces the body of a scan twice, so that another one changes
    parameters.
    """
    fallback = jax.random.fold_in(as_key(keys[PARAMS]), _DEFAULT) if PARAMS in keys else 0
    return {"default": fallback, **keys}


def root_keys(linen_module: Any) -> dict[str, Any]:
    """The keys that the user passed to ``init`` or ``apply``."""
    return {name: lazy.rng for name, lazy in linen_module.scope.rngs.items()}
