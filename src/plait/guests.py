"""The guests of the heart. Sowing, which gives modules methods, is loaded at once, the others when they are first used.

Stacks are a layer, and take their seams when ``nn`` loads them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .core import seams
from .core.objects.pytree import Pytree
from .sowing import sowing as _sowing  # noqa: F401  # gives modules ``sow`` and ``perturb``


def _named(body: Any, entered: Any, call: Callable[[], Any]) -> Any:
    if body.name != "jit":
        return call()
    from .observing.module_names import around_body  # which takes the seams itself

    return around_body(body, entered, call)


def _repr(self: Any) -> str:
    from .text.module_repr import module_repr

    return module_repr(self)


def _treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    from .text.module_repr import treescope_repr

    return treescope_repr(self, path, subtree_renderer)


if os.environ.get("PLAIT_CACHE"):  # before anything is compiled
    from .ground.compilation_cache import cache as _cache

    _cache(os.environ["PLAIT_CACHE"])

seams.around_body["names"] = _named
Pytree.__repr__, Pytree.__treescope_repr__ = _repr, _treescope_repr  # type: ignore[attr-defined]
