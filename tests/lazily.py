"""Libraries that take seconds to load are loaded by the tests that use them, not by each process that lists tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest


@dataclasses.dataclass(frozen=True)
class Lazily:
    """A module that is imported when something of it is asked for; where it is missing, that test is skipped."""

    name: str

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") and attribute != "__version__":  # pytest asks whether it is a test
            raise AttributeError(attribute)
        return getattr(pytest.importorskip(self.name), attribute)
