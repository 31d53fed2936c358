"""The names in bytecode: which globals and imported modules code uses, and with which attributes. (rule W3)"""

from __future__ import annotations

import dis
import functools
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

from .bytecode import decoded
from .outside import REACHING_ATTRIBUTES

Chain = tuple[str, ...]
Import = tuple[int, str, Chain]


class Names(NamedTuple):
    """The names that code uses.

    Attributes:
        chains: a global followed by its accessed attributes: ``("np", "random", "rand")``.
        imports: uses of modules that the code imports itself: level, name of the module, accessed attributes.
        assigned: globals that it assigns.
        reaching: attributes through which it can reach any value, such as ``__globals__``.
    """

    chains: tuple[Chain, ...]
    imports: tuple[Import, ...]
    assigned: tuple[str, ...]
    reaching: tuple[str, ...]


class Step(NamedTuple):
    """An instruction: what it does, and with which name."""

    kind: str
    name: Any


@functools.lru_cache(maxsize=8192)
def names_in(code: CodeType) -> Names:
    """The names that a code object uses, without the functions that are defined in it."""
    steps = _steps(code)
    imports = {
        (level, module, (*path, *chain[1:])): None
        for name, (level, module, path) in _imported(steps)
        for chain in _uses(name, code)
    }
    assigned = {step.name: None for step in steps if step.kind == "assign"}
    reaching = {step.name: None for step in steps if step.kind == "attribute" and step.name in REACHING_ATTRIBUTES}
    reaching |= {each: None for each in code.co_consts if isinstance(each, str) and each in REACHING_ATTRIBUTES}
    return Names(globals_in(code), tuple(imports), tuple(assigned), tuple(reaching))


@functools.lru_cache(maxsize=8192)
def globals_in(code: CodeType) -> tuple[Chain, ...]:
    """The globals that a code object uses, each followed by its accessed attributes."""
    if not code.co_names:
        return ()
    return tuple({chain: None for kind, chain in _chains(_steps(code)) if kind == "global"})


_KINDS = {
    "LOAD_ATTR": "attribute", "LOAD_METHOD": "attribute", "IMPORT_NAME": "import", "IMPORT_FROM": "from",
    "LOAD_GLOBAL": "global", "LOAD_FROM_DICT_OR_GLOBALS": "global", "LOAD_NAME": "global", "STORE_NAME": "store",
    "STORE_GLOBAL": "assign", "DELETE_GLOBAL": "assign", "SWAP": "swap",
}  # fmt: skip


_VERBS = {"LOAD": "local", "STORE": "store", "DELETE": "other"}
_OF_LOCALS = {
    operation: [_VERBS[verb] for verb in re.findall("LOAD|STORE|DELETE", operation)]
    for operation in dis.opmap
    if "_FAST" in operation or "DEREF" in operation
}


@functools.lru_cache(maxsize=64)
def _steps(code: CodeType) -> list[Step]:
    return [*_instructions(code)]


def _instructions(code: CodeType) -> Iterator[Step]:
    """The instructions; those for two local variables at once are two steps."""
    cells = {*code.co_cellvars, *code.co_freevars}
    before: list[Any] = [None, None]
    for operation, value in decoded(code):
        if operation in _OF_LOCALS:
            names = value if isinstance(value, tuple) else (value,)
            for verb, name in zip(_OF_LOCALS[operation], names, strict=False):
                is_cell = name in cells and "_FAST" in operation  # the cell itself, for a function defined here
                yield Step("other" if is_cell else verb, name)
        elif operation == "IMPORT_NAME":
            yield Step("import", (*before[-2:], value))
        else:
            yield Step(_KINDS.get(operation, "other"), value)
            if operation == "LOAD_NAME":  # a variable of a class body, or a global
                yield Step("local", value)
        before = [before[-1], value]


def _chains(steps: list[Step]) -> Iterator[tuple[str, Chain]]:
    """The variables that are loaded, each with the attributes that follow."""
    for i, step in enumerate(steps):
        if step.kind not in ("global", "local"):
            continue
        chain = [step.name]
        for after in steps[i + 1 :]:
            if after == Step("local", step.name) and step.kind == "global":
                continue
            if after.kind != "attribute":
                break
            chain.append(after.name)
        yield step.kind, tuple(chain)


def _uses(name: str, code: CodeType) -> Iterator[Chain]:
    """The uses of a local variable, also by functions that are defined in the code."""
    for kind, chain in _chains(_steps(code)):
        if kind == "local" and chain[0] == name:
            yield chain
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and name in inner.co_freevars:
            yield from _uses(name, inner)


def _imported(steps: list[Step]) -> Iterator[tuple[str, Import]]:
    """The variables to which imports assign: ``import a.b as c`` is ``c`` for ``b`` of ``a``."""
    base: Import | None = None
    last: Import | None = None
    for step in steps:
        if step.kind == "import":
            level, names, module = step.name
            base = last = (level or 0, module if names or level else module.partition(".")[0], ())
        elif step.kind == "from" and base is not None:
            last = (base[0], base[1], (*base[2], step.name))
        elif step.kind == "swap":
            base = last
        elif step.kind == "store" and last is not None:
            yield step.name, last
            last = None
