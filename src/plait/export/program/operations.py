"""The operations of a traced program, including those inside loops, branches and calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.extend.core

from ...core.module_calls.layer_scopes import layer_of


def operations(jaxpr: Any, layer: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Each operation with the path of its layer, if known; inner operations come before the outer one.

    Args:
        jaxpr: the program.
        layer: the path of the layer that the whole program belongs to.
    """
    for eqn in jaxpr.eqns:
        inside = layer_of(eqn) or layer
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from operations(getattr(inner, "jaxpr", inner), inside)
        yield eqn, inside
