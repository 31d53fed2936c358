"""Show objects in a notebook, print them, or write out all of them."""

from __future__ import annotations

import builtins
import contextlib
from types import ModuleType
from typing import Any

from ..core.objects.module_repr import long_form


def display(*objects: Any) -> None:
    """Show objects with Treescope, which draws models as trees that unfold, and arrays as figures.

    Figures are those of Treescope's autovisualizer, or of the one that is active. Outside IPython, or where Treescope
    is not installed, the objects are printed.

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
            figures = None if treescope.active_autovisualizer.get() else True
            treescope.display(each, ignore_exceptions=True, autovisualize=figures)


def long_repr(obj: Any, /) -> str:
    """All public attributes of a model, with those that are as the constructor makes them, and nothing folded.

    ``repr`` leaves these out. For a model of many blocks the text is long.

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
