"""The modules that hold plain lists and dicts, which cannot refuse to be changed from another trace.

Modules and variables know their trace. A plain container does not, so the nodes that hold one are known here, to the
thread that gave it to them, and whoever runs a function in a trace can compare the containers of others afterwards.
(rule G64)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

PLAIN = frozenset({list, dict, tuple})


class _Holders(threading.local):
    """The nodes that hold plain containers, by identity: they may define an equality of their own."""

    def __init__(self) -> None:
        self.by_id: dict[int, weakref.ref[Any]] = {}


_holders = _Holders()


def note_holder(node: Any) -> None:
    """Record that a node was given a plain container by this thread."""
    by_id, key = _holders.by_id, id(node)
    if key not in by_id:
        by_id[key] = weakref.ref(node, lambda _: by_id.pop(key, None))


def note_if_holder(node: Any, values: Iterable[Any]) -> None:
    """Record that this thread gave a node these values, if a plain container is among them."""
    if not PLAIN.isdisjoint(map(type, values)):
        note_holder(node)


def plain_containers(here: Any) -> list[tuple[Any, Any]]:
    """The plain lists and dicts in nodes of other traces than ``here``, each with its node."""
    found: list[tuple[Any, Any]] = []
    for reference in [*_holders.by_id.values()]:
        node = reference()
        if node is None or node._pytree__info.trace is here:
            continue
        elements = node._pytree__elements if hasattr(type(node), "_pytree__elements") else ()  # of a List
        stack, met = [*vars(node).values(), *elements], set()
        while stack:
            value = stack.pop()
            if type(value) in PLAIN and id(value) not in met:
                met.add(id(value))
                stack.extend(value.values() if type(value) is dict else value)
                if type(value) is not tuple:
                    found.append((value, node))
    return found
