"""Show objects in a notebook, or print them."""

from __future__ import annotations

import builtins
import contextlib
from types import ModuleType
from typing import Any


def display(*objects: Any) -> None:
    """Show objects with Treescope, which draws models as trees that unfold.

    Outside IPython, or where Treescope is not installed, they are printed.

    Args:
        *objects: models, states, arrays, anything.

    Example:
        >>> plait.display(plait.Dict(size=3), 4)
        Dict(size=3)
        4
    """
    treescope = _treescope() if hasattr(builtins, "get_ipython") else None
    for each in objects:
        if treescope is None:
            print(each)
        else:
            treescope.display(each)


def _treescope() -> ModuleType | None:
    with contextlib.suppress(ImportError):
        import treescope

        return treescope
    return None
