"""Code objects: what they contain, as a short text that is equal in all processes, and the variables of closures."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

from ..core.objects.named import Sentinel

EMPTY: Any = Sentinel(__name__, "EMPTY", "<empty>")


@functools.lru_cache(maxsize=8192)
def code_token(code: CodeType) -> str:
    """The content of a code object, without its line numbers and file."""
    constants = [_constant(value) if type(value) in _NOT_BY_REPR else value for value in code.co_consts]
    shape = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    sum = hashlib.sha256(repr((shape, names, constants)).encode("utf-8", "surrogatepass"))
    sum.update(code.co_code)
    sum.update(code.co_exceptiontable)
    return sum.hexdigest()[:40]


_NOT_BY_REPR = frozenset({CodeType, frozenset, tuple})


def _constant(value: Any) -> Any:
    if type(value) is CodeType:
        return code_token(value)
    if type(value) is frozenset:  # its order differs between processes
        return ["frozenset", *sorted(map(repr, map(_constant, value)))]
    return ("tuple", *map(_constant, value)) if type(value) is tuple else value


def inner_codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and the code objects inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from inner_codes(constant)


def digest(kind: str, parts: Iterable[str]) -> str:
    """One short text for several texts."""
    sum = hashlib.sha256(kind.encode())
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        sum.update(b"%d:" % len(raw))
        sum.update(raw)
    return f"{kind}:{sum.hexdigest()[:40]}"


def cells_of(f: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of enclosing functions that a function uses."""
    return zip(f.__code__.co_freevars, f.__closure__ or (), strict=True)


def content_of(cell: Any) -> Any:
    """The content of a cell; one without a content gives ``EMPTY``."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY
