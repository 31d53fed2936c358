"""Methods that programs for older versions of Flax call: ``State.to_pure_dict`` and ``State.replace_by_pure_dict``."""

from __future__ import annotations

from typing import Any

from ..core.objects.pure_dicts import replace_by_pure_dict, to_pure_dict
from ..core.objects.state import State
from ..ground.notices import deprecated


def _to_pure_dict(self: State, extract_fn: Any = None) -> Any:
    deprecated("State.to_pure_dict", since="0.1", instead="plait.to_pure_dict(state)", removed_in="2.0")
    return to_pure_dict(self, extract_fn)


def _replace_by_pure_dict(self: State, pure: Any, replace_fn: Any = None) -> None:
    deprecated(
        "State.replace_by_pure_dict", since="0.1", instead="plait.replace_by_pure_dict(state, pure)", removed_in="2.0"
    )
    replace_by_pure_dict(self, pure, replace_fn)


setattr(State, "to_pure_dict", _to_pure_dict)  # noqa: B010  # type checkers see an unchanged class
setattr(State, "replace_by_pure_dict", _replace_by_pure_dict)  # noqa: B010
