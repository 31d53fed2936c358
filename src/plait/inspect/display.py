"""Showing objects in a notebook, and printing them in full."""

from __future__ import annotations

import builtins
import contextlib
from types import ModuleType
from typing import Any

from .module_repr import long_form


def display(*objects: Any) -> None:
    """Show objects with Treescope, which shows models as expandable trees, and arrays as figures.

    Figures come from the active autovisualizer, by default Treescope's own. Outside IPython, or if Treescope is not
    installed, the objects are printed.

    Args:
        *objects: models, states, arrays, or anything else.

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
            figures = None if treescope.active_autovisualizer.get() else True
            treescope.display(each, ignore_exceptions=True, autovisualize=figures)


def long_repr(obj: Any, /) -> str:
    """All public attributes of a model, including those with default values, and without folding equal blocks.

    ``repr`` omits these. For a model with many blocks the text is long.

    Example:
        >>> print(plait.inspect.long_repr(plait.Sequential(jnp.tanh)))
        Sequential(layers=List(<function tanh>))
    """
    with long_form():
        return repr(obj)


def _treescope() -> ModuleType | None:
    with contextlib.suppress(ImportError):
        import treescope

        return treescope
    return None
