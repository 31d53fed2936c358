"""``pop``, which returns the model's own variables under ``live_states``."""

from __future__ import annotations

from typing import Any

from ..states.live import itself, or_live
from ..surgery import pop as popping
from ..typing import FilterLiteral


def _graph_pop(node: Any, filters: tuple[FilterLiteral, ...]) -> Any:
    return popping.popped(node, filters, itself)


def _pop(node: Any, *filters: FilterLiteral) -> Any:
    states = _graph_pop(node, filters)
    return states[0] if len(filters) == 1 else states


graph_pop = or_live(_graph_pop, popping.graph_pop)
pop = or_live(_pop, popping.pop)
