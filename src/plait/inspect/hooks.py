"""What looking at models adds to ``core`` and ``transforms``: short texts, and names of modules in programs.

Set when plait is imported; the files behind it load on first use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..core import hooks
from ..core.intermediates import sowing as _sowing  # noqa: F401  # gives modules ``sow`` and ``perturb``
from ..core.nodes.pytree import Pytree


def _named(body: Any, entered: Any, call: Callable[[], Any]) -> Any:
    if body.name != "jit":
        return call()
    from .observe.module_names import around_body  # which sets the hook itself

    return around_body(body, entered, call)


def _repr(self: Any) -> str:
    from .module_repr import module_repr

    return module_repr(self)


def _treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    from .module_repr import treescope_repr

    return treescope_repr(self, path, subtree_renderer)


if os.environ.get("PLAIT_CACHE"):  # before anything is compiled
    from ..util.compilation_cache import cache as _cache

    _cache(os.environ["PLAIT_CACHE"])

hooks.around_body["names"] = _named
Pytree.__repr__, Pytree.__treescope_repr__ = _repr, _treescope_repr  # type: ignore[attr-defined]
