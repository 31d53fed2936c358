"""Why a compiled call failed: names the path of a deleted or shared buffer, or a bad sharding."""

from __future__ import annotations

import sys
from typing import Any

from ..call.gather import gather
from ..call.refused import explain_deleted, says_deleted
from .compiled import Compiled


def explain_failure(compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise an error with paths if a buffer was already donated, if two variables share a donated buffer, or if the
    error being handled is about a sharding."""
    gathered = gather((args, kwargs), compiled.f)
    error = sys.exc_info()[1]
    if error is None or says_deleted(error):
        explain_deleted(compiled.f, gathered)
    compiled.arguments(gathered, args, kwargs)
    if error is not None and compiled.shardings is not None:
        compiled.shardings.explain(error, compiled.f, args)
