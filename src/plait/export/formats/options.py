"""The options of a writer, in addition to the programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..program.lowering import PLATFORMS, known_platforms


@dataclasses.dataclass(frozen=True)
class WriteOptions:
    """How files are written; each format uses the options that apply to it.

    Args:
        platforms: where the file can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        target: the version of the file's reader; ``None`` means the installed one.
        overwrite: whether to replace an existing export.

    Raises:
        ArgumentError: no platform is given, or an unknown one.
    """

    platforms: Sequence[str] = PLATFORMS
    target: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "platforms", known_platforms(self.platforms))
