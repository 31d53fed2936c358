"""Path patterns: paths in a graph, written as in Python, with wildcards.

``encoder.layers[*].attention`` is matched key by key. In a key, ``*`` matches any text and ``?`` any character. ``*``
alone matches any single key, ``**`` any number of keys, and ``[2:5]`` a range of indices.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import glob
import re
from typing import Any, ClassVar

from ..errors import ArgumentError
from .paths import Path, result_for_layers

_PART = r"\.?([^.\[\]]+)|\[([^\[\]]+)\]"
_WHOLE = re.compile(rf"(?:{_PART})*")
_SLICE = re.compile(r"(\d*):(\d*)(?::(\d+))?")
_DEEP = "**"


@dataclasses.dataclass(frozen=True)
class PathPattern:
    """A filter that matches the paths of a pattern.

    Args:
        text: the pattern; the empty pattern matches the root.

    Raises:
        ArgumentError: the text is not a pattern.
    """

    text: str
    asks_of_layers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _WHOLE.fullmatch(self.text) or self.text.startswith("."):
            raise ArgumentError(
                "this text is not a path pattern",
                found=repr(self.text),
                expected="keys joined by dots, indices in brackets, * for any key, ** for any number of keys",
                do="write, for example, 'encoder.layers[*].attention', 'layers[:6]' or '**.kernel'",
            )

    def __call__(self, path: Path, value: Any) -> bool:
        return result_for_layers(self._matches, path, value, self)

    def _matches(self, path: Path, value: Any) -> bool:
        return _matches(_parts(self.text), path)

    def __repr__(self) -> str:
        return repr(self.text)


@functools.lru_cache(maxsize=64)
def _parts(text: str) -> list[str | slice]:
    return [name or _index(bracket) for name, bracket in re.findall(_PART, text)]


def _index(text: str) -> str | slice:
    found = _SLICE.fullmatch(text)
    if found:
        return slice(*(int(bound) if bound else None for bound in found.groups()))
    quoted = text[0] in "'\"" and text[0] == text[-1]
    return glob.escape(text[1:-1]) if quoted else text


def _matches(parts: list[str | slice], path: Path) -> bool:
    if not parts:
        return not path
    first, rest = parts[0], parts[1:]
    if first == _DEEP:
        return any(_matches(rest, path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and _fits(first, path[0]) and _matches(rest, path[1:])


def _fits(part: str | slice, key: Any) -> bool:
    if isinstance(part, str):
        return fnmatch.fnmatchcase(str(key), part)
    return isinstance(key, int) and key in range(key + 1)[part]
