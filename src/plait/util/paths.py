"""Paths: locations in a graph, how they are ordered, and how they are printed.

A path is a tuple of keys (attribute names and indices) from a root. Keys sort by kind first, integers before strings,
then by value; errors print a path the way a user would write the access: ``encoder.layers[3].kernel``.

A key such as ``"0:24"`` or ``"1:24:6"`` means a range of layers whose arrays are stacked into one; it is written
as the slice that selects them from the list of layers: ``blocks[0:24].kernel``.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import FilterError, GraphError
from .words import with_article

Key = int | str
Path = tuple[Any, ...]


def sort_key(key: Any) -> tuple[int, str, Any]:
    """Order of the keys of one node: integers, then strings, then other kinds by the name of their type."""
    kind = type(key)
    if kind is str:
        return (1, "", key)
    if kind is int:
        return (0, "", key)
    if isinstance(key, int) and not isinstance(key, bool):
        return (0, "", int(key))
    if isinstance(key, str):
        return (1, "", str(key))
    if isinstance(key, tuple):  # a path as a key, whose entries may be both numbers and names
        return (2, "tuple", [sort_key(entry) for entry in key])
    return (2, kind.__name__, key)


def sorted_keys(keys: Any, owner: str = "mapping") -> list[Any]:
    """The keys of one node, sorted.

    Raises:
        GraphError: a key cannot be hashed or compared with the others.
    """
    keys = list(keys)
    try:
        return sorted(keys, key=sort_key)
    except TypeError as error:
        odd = next((key for key in keys if not isinstance(key, (int, str))), keys[0])
        raise GraphError(
            f"{with_article(owner)} has a key that cannot be ordered",
            found=f"key {odd!r} of type {type(odd).__name__}",
            expected="keys that are integers or strings, or all of one sortable type",
            do="use str or int keys",
        ) from error


def format_path(path: Path) -> str:
    """Format a path as an access: ``('layers', 3, 'kernel')`` becomes ``layers[3].kernel``."""
    text = ""
    for key in path:
        if isinstance(key, str) and key.isidentifier():
            text += f".{key}" if text else key
        elif layers_of(key) is not None:
            text += f"[{key}]"
        else:
            text += f"[{key!r}]"
    return text


def parse_path(text: str) -> Path:
    """Parse the output of ``format_path``: ``layers[3].kernel`` becomes ``('layers', 3, 'kernel')``.

    Raises:
        GraphError: the text is not such a path.
    """
    keys: list[Any] = []
    place = 0
    while place < len(text):
        name = _NAME.match(text, place)
        if name is not None and (name[0].startswith(".") == bool(keys)) and name[1].isidentifier():
            keys.append(name[1])
            place = name.end()
            continue
        key, place = _bracketed(text, place)
        keys.append(key)
    return tuple(keys)


_NAME = re.compile(r"\.?(\w+)")
_LONGEST_KEY, _MOST_BRACKETS = 1_000, 20  # of a key in brackets: a text that anybody wrote must not take long


def _bracketed(text: str, place: int) -> tuple[Any, int]:
    """The key in brackets at a position, and the position after it."""
    end = text.find("]", place)
    if text.startswith("[", place) and layers_of(text[place + 1 : end]) is not None:
        return text[place + 1 : end], end + 1
    for _ in range(_MOST_BRACKETS):
        if not text.startswith("[", place) or not 0 <= end - place <= _LONGEST_KEY:
            break
        try:
            key = ast.literal_eval(text[place + 1 : end])
            hash(key)
            return key, end + 1
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # a bracket inside a string
            end = text.find("]", end + 1)
    raise GraphError(
        "this text is not a path",
        at=f"character {place}",
        found=repr(text),
        expected="names separated by dots, and keys in brackets",
        do="write it as errors print it: layers[3].kernel",
    )


def describe_path(path: Path) -> str:
    """Format a path for error messages, which also name the root."""
    return format_path(path) or "the root"


def layers_key(layers: range) -> str:
    """The key of these layers, stacked: ``range(1, 24, 6)`` becomes ``"1:24:6"``."""
    return f"{layers.start}:{layers.stop}" + (f":{layers.step}" if layers.step != 1 else "")


def layers_of(key: Any) -> range | None:
    """The layers that a key means; ``None`` for any other key."""
    return _layers_of(key) if type(key) is str and ":" in key else None


@functools.lru_cache(maxsize=1024)
def _layers_of(key: str) -> range | None:
    found = _LAYERS.fullmatch(key)
    layers = range(*(int(bound) for bound in found.groups() if bound)) if found and found[3] != "0" else None
    return layers if layers else None


_LAYERS = re.compile(r"(\d{1,18}):(\d{1,18})(?::(\d{1,18}))?")


def iter_layer_paths(path: Path) -> Iterator[tuple[Path, tuple[int, ...]]]:
    """Each layer of a path with keys of stacked layers: the layer's path, and its index in the arrays."""
    places = [place for place, key in enumerate(path) if layers_of(key) is not None]
    for index in itertools.product(*(range(len(layers_of(path[place]) or ())) for place in places)):
        layer = list(path)
        for place, number in zip(places, index, strict=True):
            layer[place] = (layers_of(path[place]) or range(0))[number]
        yield tuple(layer), index


def in_list_order(paths: Iterable[Path]) -> list[tuple[int, Path, tuple[int, ...]]]:
    """Each layer of each path: the number of the path, and what ``iter_layer_paths`` yields; as a list is walked.

    Args:
        paths: in the order of a walk, in which those of a stack are next to each other.
    """
    starts: dict[Path, int] = {}
    found = []
    for number, path in enumerate(paths):
        places = [place for place, key in enumerate(path) if layers_of(key) is not None]
        begins = [starts.setdefault(path[:place], number) for place in places]
        for layer, index in iter_layer_paths(path):
            order = [part for begin, place in zip(begins, places, strict=True) for part in (begin, layer[place])]
            found.append(([*order, number], (number, layer, index)))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def has_layers(path: Path) -> bool:
    """Whether a path has a key of stacked layers."""
    return any(type(key) is str and ":" in key and layers_of(key) is not None for key in path)


def result_for_layers(predicate: Callable[[Path, Any], bool], path: Path, value: Any, filter: Any) -> bool:
    """The result of a predicate, which must be the same for each layer of a path of stacked layers.

    Args:
        filter: the filter to show in the error.

    Raises:
        FilterError: the results differ; the message names a layer that matches and one that does not.
    """
    if not has_layers(path):
        return predicate(path, value)
    answers: dict[bool, Path] = {}
    for layer, _ in iter_layer_paths(path):
        answers.setdefault(bool(predicate(layer, value)), layer)
    if len(answers) == 1:
        return next(iter(answers))
    raise FilterError(
        "a filter selects some layers of a stack, but their arrays are stored as one",
        at=describe_path(path),
        found=f"{filter!r:.80} matches {describe_path(answers[True])}, but not {describe_path(answers[False])}",
        expected="the same result for all layers of the stack",
        do="select within one layer, model.blocks[3]; or convert the stack to a list first: plait.as_list(model)",
    )
