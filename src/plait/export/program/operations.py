"""The operations of a traced program, those inside its loops, branches and calls among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.extend.core

from ...core.tools.layer_scopes import layer_of


def operations(jaxpr: Any, layer: str | None = None) -> Iterator[tuple[Any, str | None]]:
    """Each operation with the path of its layer, as far as it is known; what is inside of one comes before it.

    Args:
        jaxpr: the program.
        layer: where the program as a whole stands.
    """
    for eqn in jaxpr.eqns:
        inside = layer_of(eqn) or layer
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from operations(getattr(inner, "jaxpr", inner), inside)
        yield eqn, inside
