"""What is asked of a writer beside the programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..program.lowering import PLATFORMS, known_platforms


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """How files are written; a format heeds what concerns it.

    Args:
        platforms: where the file can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        target: the version of what reads the file; ``None`` for the one that is installed.
        overwrite: whether to replace what is at the path.

    Raises:
        ArgumentError: a platform that there is not, or none.
    """

    platforms: Sequence[str] = PLATFORMS
    target: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "platforms", known_platforms(self.platforms))
