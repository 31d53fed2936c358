"""The faults that can be planted in a file, and where none is planted.

A *place* is a node of the syntax tree with all that may stand there instead. Left alone is what no test can be asked
for: docstrings, annotations and aliases of types, ``__all__``, imports, blocks for type checkers, overloads, assertions
and ``zip(strict=True)`` (they say what cannot happen), and the words of errors and warnings. The values between these
words are changed: one may be missing, or be another, and one that is a part by itself (``found=shape``) ``None``.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper

from .operators import change_value, changed

_STRING = m.SimpleString() | m.FormattedString()
_TYPING = {"TypeVar", "ParamSpec", "TypeVarTuple", "cast", "NewType"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One file with one change.

    Attributes:
        file: relative to the root of the tree.
        number: of the first line that is changed, from 1.
        before: the changed lines as they are, without the blanks around each.
        after: what stands there instead.
        source: the whole file with the change.
        diff: for reading.
    """

    file: str
    number: int
    before: str
    after: str
    source: str
    diff: str


@dataclasses.dataclass(frozen=True)
class Place:
    """A node, and what may stand there instead."""

    file: Path
    module: cst.Module
    node: cst.CSTNode
    others: list[cst.CSTNode]

    def faults(self, root: Path, choose: random.Random) -> Iterator[Fault]:
        """Those that are a change and can be compiled, in a random order."""
        source = self.module.code
        for other in choose.sample(self.others, len(self.others)):
            code = self.module.deep_replace(self.node, other).code  # type: ignore[union-attr]
            try:
                same = ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
                compile(code, str(self.file), "exec")
            except SyntaxError:
                continue
            if not same:
                yield _fault(self.file.relative_to(root).as_posix(), source, code)


def _fault(file: str, source: str, code: str) -> Fault:
    old, new = source.splitlines(), code.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    parts = [part for part in matcher.get_opcodes() if part[0] != "equal"]
    before = [line.strip() for _, start, end, _, _ in parts for line in old[start:end]]
    after = [line.strip() for _, _, _, start, end in parts for line in new[start:end]]
    diff = difflib.unified_diff(old, new, file, file, lineterm="", n=2)
    return Fault(file, parts[0][1] + 1, "\n".join(before), "\n".join(after), code, "\n".join(diff))


def sample(root: Path, files: list[Path], count: int, seed: int) -> list[Fault]:
    """Faults at ``count`` places of these files, all places as likely as each other; fewer where there are no more."""
    places = [place for file in files for place in places_of(file)]
    choose = random.Random(seed)
    choose.shuffle(places)
    faults: list[Fault] = []
    for place in places:
        if len(faults) == count:
            break
        found = next(place.faults(root, choose), None)
        if found is not None and found not in faults:
            faults.append(found)
    return faults


def places_of(file: Path) -> list[Place]:
    """The places of a file."""
    module = MetadataWrapper(cst.parse_module(file.read_text(encoding="utf-8"))).module  # each node of it is there once
    visitor = _Places()
    module.visit(visitor)
    return [Place(file, module, node, others) for node, others in visitor.found]


class _Places(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[cst.CSTNode, list[cst.CSTNode]]] = []
        self.texts: list[cst.Call] = []  # the calls around this node that are given texts for people
        self.functions = 0
        self.targets: set[cst.CSTNode] = set()
        self.raised: set[cst.CSTNode | None] = set()
        self.told: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if _is_left_alone(node) or (not self.functions and _is_alias(node)):
            return False
        if self.texts and (isinstance(node, cst.BaseString) or node in self.told):
            self.found += _changed_values(node, self.texts[-1])
            return False
        if isinstance(node, (cst.AssignTarget, cst.For, cst.CompFor)):
            self.targets.add(node.target)  # a tuple there is no value
        elif isinstance(node, cst.Raise):
            self.raised.add(node.exc)
        elif isinstance(node, cst.Call) and _makes_error(node):
            self.told.update(arg for arg in node.args if arg.keyword is None or arg.keyword.value != "at")
        others = [] if node in self.targets or self.speaks(node) or _cannot_survive(node) else changed(node)
        if others:
            self.found.append((node, others))
        if self.speaks(node):
            self.texts.append(cst.ensure_type(node, cst.Call))
        self.functions += isinstance(node, cst.FunctionDef)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self.speaks(original_node):
            self.texts.pop()
        self.functions -= isinstance(original_node, cst.FunctionDef)

    def speaks(self, node: cst.CSTNode) -> bool:
        """Whether a node is a call that makes an error or a warning, or has it made."""
        return isinstance(node, cst.Call) and (node in self.raised or _makes_error(node))


def _changed_values(text: cst.CSTNode, call: cst.Call) -> Iterator[tuple[cst.CSTNode, list[cst.CSTNode]]]:
    """The values in a text of an error, each with what may stand there: nothing, or another value in texts of it."""
    match text:
        case cst.Arg(keyword=cst.Name(value="found" | "expected" | "do")) if not m.findall(text, _STRING):
            yield text, [text.with_changes(value=cst.Name("None"))]
    values: list[Any] = m.findall(call, m.FormattedStringExpression())
    for each in m.findall(text, m.FormattedString()):
        others = change_value(cst.ensure_type(each, cst.FormattedString), [value.expression for value in values])
        yield each, [*others]


def _is_left_alone(node: cst.CSTNode) -> bool:
    match node:
        case cst.Annotation() | cst.Import() | cst.ImportFrom() | cst.Assert():
            return True
        case cst.Arg(keyword=cst.Name(value="strict")):
            return True
        case cst.SimpleStatementLine(body=[cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString())]):
            return True
        case cst.If(test=test):
            return _name(test) == "TYPE_CHECKING"
        case cst.FunctionDef(decorators=decorators):
            return any(_name(decorator.decorator) == "overload" for decorator in decorators)
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value="__all__"))]):
            return True
        case cst.Call(func=func):
            return _name(func) in _TYPING
    return False


def _is_alias(node: cst.CSTNode) -> bool:
    """Whether a statement outside of functions gives a type a name: ``Rules = Sequence[tuple[str, Any]]``."""
    match node:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))], value=value):
            return name.strip("_")[:1].isupper() and not name.isupper() and not isinstance(value, cst.Call)
    return False


def _makes_error(call: cst.Call) -> bool:
    name = _name(call.func)
    return name.endswith(("Error", "Warning", "_error")) or name == "warn"


def _cannot_survive(node: cst.CSTNode) -> bool:
    """``len(None)``, ``isinstance(None)`` and ``zip(None)`` would only make the tests look good."""
    return isinstance(node, cst.Call) and _name(node.func) in ("len", "isinstance", "zip")


def _name(node: cst.CSTNode) -> str:
    """The last part of a dotted name."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    return node.value if isinstance(node, cst.Name) else ""
