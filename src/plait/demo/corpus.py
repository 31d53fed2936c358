"""The training text of ``plait demo gpt``: the source of Python's own standard library, which every machine has."""

from __future__ import annotations

import dataclasses
import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import ArgumentError

HELD_OUT = 20  # one file in 20 is held out
LEFT_OUT = frozenset(["encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "dist-packages", "turtledemo"])
TESTS = frozenset(["test", "tests", "idle_test"])


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Bytes for training, and held-out bytes: complete files that training never sees.

    Attributes:
        train, held_out: uint8, the files concatenated with a zero byte between them.
        files: the number of files in each.
    """

    train: np.ndarray
    held_out: np.ndarray
    files: tuple[int, int]


def load_corpus(root: Path | None = None) -> Corpus:
    """Read the Python files below a folder, except tests, tables and installed packages.

    Files are held out by name, so the split is the same on every machine.

    Args:
        root: the folder; ``None`` means the standard library of this Python.

    Raises:
        ArgumentError: the folder has too few files to hold one out.
    """
    root = Path(sysconfig.get_path("stdlib")) if root is None else root
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for name in sorted(_names(root)):
        held = hashlib.sha256(name.encode()).digest()[0] * HELD_OUT < 256
        parts[held].append((root / name).read_bytes() + b"\0")
    train, held_out = (np.frombuffer(b"".join(part), np.uint8) for part in parts)
    if len(train) == 0 or len(held_out) == 0:
        raise ArgumentError(
            "there is not enough text to train on",
            at=str(root),
            found=f"{len(parts[0])} Python files for training, {len(parts[1])} held out",
            expected="at least one of each",
            do="run it with a Python that has its standard library as files",
        )
    return Corpus(train, held_out, (len(parts[0]), len(parts[1])))


def _names(root: Path) -> Iterator[str]:
    for file in root.rglob("*.py"):
        name = file.relative_to(root)
        if not (LEFT_OUT | TESTS) & {*name.parts[:-1]}:
            yield name.as_posix()


def windows(text: np.ndarray, *, batch: int, length: int, history: int, seed: int) -> Iterator[np.ndarray]:
    """One pass through a text, in batches of windows: uint8, ``(batch, history + length + 1)``.

    A window begins with the ``history`` bytes before it. Apart from these, windows do not overlap, and they cover the
    text except for its ends; their order and the offset of the first one are random.
    """
    chance = np.random.default_rng(seed)
    begin = history + int(chance.integers(length))
    starts = chance.permutation(np.arange(begin, len(text) - length, length))
    for first in range(0, len(starts) - batch + 1, batch):
        yield np.stack([text[at - history : at + length + 1] for at in starts[first : first + batch]])
