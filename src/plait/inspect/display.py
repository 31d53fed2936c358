"""Show objects in a notebook, print them, or write out all of them."""

from __future__ import annotations

import builtins
import contextlib
from types import ModuleType
from typing import Any

from ..core.objects.module_repr import long_form


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
