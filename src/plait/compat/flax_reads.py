"""A warning for models of plait that Flax's own functions read, where its filters find nothing."""

from __future__ import annotations

import itertools
import sys
import traceback
from typing import Any

from ..core.objects.pytree import Pytree
from ..errors import NothingSelectedWarning
from ..ground.notices import warn

_parts = Pytree._pytree__parts


def _pytree__parts(self: Pytree) -> tuple[list[Any], Any]:
    if "flax.nnx" in sys.modules:
        _warn_if_flax_reads(self)
    return _parts(self)


def _warn_if_flax_reads(node: Pytree) -> None:
    """Warn that Flax, which does not support plait objects, is walking one."""
    for frame, _ in itertools.islice(traceback.walk_stack(sys._getframe(2)), 6):  # of plait and jax.tree_util first
        if str(frame.f_globals.get("__name__")).startswith("flax.nnx"):
            warn(
                NothingSelectedWarning,
                f"flax.nnx was given a plait {type(node).__name__}, in which its filters find no variables",
                found=f"{frame.f_globals['__name__']} of Flax, which treats the object as a container of arrays",
                expected="plait functions",
                do="start the program with: python -m plait.as_flax program.py",
            )
            return


Pytree._pytree__parts = _pytree__parts
