"""Schemas of JSON and msgpack data in files: what each value must be, as data, with one check for every reader.

    {"step": Either(int, None), "files": {str: (size, checksum)}, "time?": float}

A schema is one of these:

    a type                    a value of exactly this type; ``float`` accepts an int too, but ``int`` no bool
    a string                  this string
    ``None``                  null
    a function                a value for which it returns true; its docstring says what it accepts
    ``[schema]``              a list of such values
    ``(schema, schema)``      a list of this length
    ``{str: schema}``         values under any names; a function instead of ``str`` accepts some of them
    ``{"a": …, "b?": …}``     values under these names, of which ``b`` may be missing; further names are ignored
    ``Either(schema, …)``     a value that fits one of them
    ``Any``                   any value, nested at most 100 deep
"""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import sys
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASH_128 = re.compile("[0-9a-f]{32}")
MOST_JSON = 2**28  # bytes; no index or manifest is as long
_DEEPEST, _CONTAINERS = 100, (dict, list, tuple)  # levels of them
_LONGEST_NAME = 255  # bytes, of most disks
_MOST_AXES = 64  # of NumPy
_MOST_ELEMENTS = 2**56  # no machine has as much memory; below it, sizes in bytes fit into 64 bits


class SchemaError(ValueError):
    """Data in a file does not fit its schema; the message says where, and what was found and expected."""


class Either:
    """A value that fits one of several schemas.

    Args:
        schemas: these schemas.
    """

    def __init__(self, *schemas: Any) -> None:
        self.schemas = schemas


def parse_json(content: bytes, schema: Any) -> Any:
    """The value that JSON text describes, if it fits a schema.

    Raises:
        SchemaError: it is not JSON, is nested too deeply, has a name twice in one object, or does not fit.
    """
    try:
        value = json.loads(content, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"no JSON that can be read ({type(error).__name__}: {error!s:.80})") from error
    check_schema(value, schema)
    return value


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """The dictionary of an object in JSON or msgpack: other readers take the first of two values of one name.

    Raises:
        ValueError: a name is there twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name that is there twice")
    return found


def check_schema(value: Any, schema: Any, at: str = "") -> None:
    """Raise if a value does not fit a schema.

    Raises:
        SchemaError: says at which place.
    """
    if isinstance(schema, dict):
        _need(isinstance(value, dict), value, "an object", at)
        for name, inner in schema.items():
            if not isinstance(name, str):
                for key, item in value.items():
                    check_schema(key, name, f"a name in {at or 'it'}")
                    check_schema(item, inner, f"{at}[{key!r:.80}]")
            elif name.removesuffix("?") in value:
                check_schema(value[name.removesuffix("?")], inner, f"{at}[{name.removesuffix('?')!r}]")
            else:
                _need(name.endswith("?"), value, f"an object with {name!r}", at)
    elif isinstance(schema, (list, tuple)):
        _need(isinstance(value, (list, tuple)), value, "a list", at)
        _need(isinstance(schema, list) or len(value) == len(schema), value, f"a list of {len(schema)} values", at)
        for number, item in enumerate(value):
            check_schema(item, schema[0 if isinstance(schema, list) else number], f"{at}[{number}]")
    elif isinstance(schema, Either):
        _need(any(fits(value, each) for each in schema.schemas), value, _expected(schema), at)
    else:
        _need(fits(value, schema), value, _expected(schema), at)


def fits(value: Any, schema: Any) -> bool:
    """Whether a value fits a schema."""
    if schema is Any:
        return _is_shallow(value)
    if schema is None or isinstance(schema, str):
        return value == schema
    if isinstance(schema, type):
        return type(value) is schema or (schema is float and type(value) is int)
    if isinstance(schema, Callable):
        return bool(schema(value))
    try:
        check_schema(value, schema)
    except SchemaError:
        return False
    return True


def _is_shallow(value: Any) -> bool:
    """Whether functions that call themselves for each level, such as ``repr``, have no trouble with a value."""
    level, depth = [value], 0
    while level and depth <= _DEEPEST:
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, _CONTAINERS)]
        level, depth = [item for items in inner for item in items], depth + 1
    return not level


def _expected(schema: Any) -> str:
    if isinstance(schema, Either):
        return " or ".join(map(_expected, schema.schemas))
    if schema is Any:
        return f"a value that is nested at most {_DEEPEST} deep"
    if isinstance(schema, type):
        return f"a value of type {schema.__name__}"
    if isinstance(schema, Callable):
        text = (schema.__doc__ or schema.__name__).splitlines()[0].rstrip(".").replace("``", "")
        return text[0].lower() + text[1:]
    return {dict: "an object", list: "a list", tuple: "a list", str: repr(schema)}.get(type(schema), "null")


def _need(condition: bool, value: Any, expected: str, at: str) -> None:
    if not condition:
        raise SchemaError(f"{reprlib.repr(value)} {at and f'as {at} '}instead of {expected}")


def size(value: Any) -> bool:
    """A whole number from 0 that fits into 63 bits."""
    return type(value) is int and 0 <= value < 2**63


def finite(value: Any) -> bool:
    """A finite number."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def shape(value: Any) -> bool:
    """The shape of an array: up to 64 sizes."""
    if not isinstance(value, (list, tuple)) or len(value) > _MOST_AXES or not all(map(size, value)):
        return False
    return math.prod(filter(None, value)) < _MOST_ELEMENTS


def sha256(value: Any) -> bool:
    """A SHA-256 checksum of 64 hexadecimal digits."""
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def checksum(value: Any) -> bool:
    """A checksum in hexadecimal digits: SHA-256, or one of 128 bits."""
    return sha256(value) or (isinstance(value, str) and _HASH_128.fullmatch(value) is not None)


def file_name(value: Any) -> bool:
    r"""The name of a file in the folder itself, of up to 255 bytes, without ``/``, ``\`` and ``:``."""
    if not isinstance(value, str) or value in ("", ".", "..") or set(value) & set("/\\:\0"):
        return False
    try:
        return len(os.fsencode(value)) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


def inner_path(value: Any) -> bool:
    r"""A path inside the folder: names separated by ``/``, without ``..``."""
    return isinstance(value, str) and PurePosixPath(value).as_posix() == value and all(map(file_name, value.split("/")))
