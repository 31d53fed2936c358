"""The check of arguments that are numbers of something."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ArgumentError


def check_count(name: str, value: Any, of: str = "steps", example: str = "1_000") -> None:
    """Raise if a number of steps or parts is not an integer of 1 or more.

    Raises:
        ArgumentError: names the argument.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ArgumentError(
            f"this is not a number of {of}",
            at=name,
            found=repr(value),
            expected="an integer of 1 or more",
            do=f"for example {name}={example}",
        )
