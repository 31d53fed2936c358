"""What must hold after the loop of a stack has run, and can be checked only then: the loop traces its blocks once.

If it does not hold, everything that the loop wrote is put back. (rule ST19)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..core.objects.journal import Journal
from ..core.objects.visit import iter_graph_nodes, iter_variables

checks: list[Callable[[Any], Callable[[], None] | None]] = []
"""module → what is called after the loop, and may raise; ``None`` if there is nothing to check. Layers add theirs."""


@contextlib.contextmanager
def checked_after_run(stack: Any, others: Any) -> Iterator[None]:
    """Inside the block a stack runs; what its checks refuse changes nothing.

    Args:
        others: what else the blocks are given.
    """
    asked = [check(node) for _, node in iter_graph_nodes(stack) for check in checks]
    wanted = [check for check in asked if check is not None]
    if not wanted:
        yield
        return
    with Journal() as journal:
        for _, variable in iter_variables((stack, others)):
            journal.note_cell(variable._cell)
        yield
        for check in wanted:
            check()
