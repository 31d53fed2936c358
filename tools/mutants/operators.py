"""What is changed: mutmut's operators, and a few that people think of who plant faults by hand.

An operator takes a node of a LibCST tree and yields nodes to stand in its place, as mutmut's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import libcst as cst
from mutmut.mutation.mutators import mutation_operators

Operator = Callable[[Any], Iterable[cst.CSTNode]]


def drop_operand(node: cst.BooleanOperation) -> Iterable[cst.BaseExpression]:
    """``a and b`` → ``a``, ``b``."""
    for side in (node.left, node.right):
        yield side.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def drop_element(node: cst.Tuple | cst.List | cst.Set) -> Iterable[cst.BaseExpression]:
    """``(a, b)`` → ``(a,)``, ``(b,)``."""
    if len(node.elements) > 1:
        for place in range(len(node.elements)):
            kept = [element for i, element in enumerate(node.elements) if i != place]
            if isinstance(node, cst.Tuple) and len(kept) == 1:
                kept = [kept[0].with_changes(comma=cst.Comma())]
            yield node.with_changes(elements=kept)


def drop_statement(node: cst.SimpleStatementLine) -> Iterable[cst.SimpleStatementLine]:
    """A statement that only does something, as a call does, → ``pass``."""
    match node.body:
        case [cst.Expr(value=cst.Call()) | cst.Del()]:
            yield node.with_changes(body=[cst.Pass()])


def force_branch(node: cst.If | cst.CompIf) -> Iterable[cst.CSTNode]:
    """A condition → ``True``, ``False``."""
    for value in ("True", "False"):
        yield node.with_changes(test=cst.Name(value), whitespace_before_test=cst.SimpleWhitespace(" "))


def return_nothing(node: cst.Return) -> Iterable[cst.Return]:
    """``return x`` → ``return None``."""
    if node.value is not None and not (isinstance(node.value, cst.Name) and node.value.value == "None"):
        yield node.with_changes(value=cst.Name("None"), whitespace_after_return=cst.SimpleWhitespace(" "))


def change_value(text: cst.FormattedString, values: Iterable[cst.BaseExpression]) -> Iterable[cst.FormattedString]:
    """``f"{x}, not {y}"`` → ``f", not {y}"``, ``f"{y}, not {y}"``: a value is missing, or another of ``values``."""
    for place, part in enumerate(text.parts):
        if isinstance(part, cst.FormattedStringExpression):
            others = [part.with_changes(expression=value.deep_clone()) for value in values]
            for instead in ([], *([other] for other in others if not other.deep_equals(part))):
                yield text.with_changes(parts=[*text.parts[:place], *instead, *text.parts[place + 1 :]])


OPERATORS: tuple[tuple[type | tuple[type, ...], Operator], ...] = (
    *mutation_operators,
    (cst.BooleanOperation, drop_operand),
    ((cst.Tuple, cst.List, cst.Set), drop_element),
    (cst.SimpleStatementLine, drop_statement),
    ((cst.If, cst.CompIf), force_branch),
    (cst.Return, return_nothing),
)


def changed(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Everything that may stand in the place of a node."""
    return [other for kind, operator in OPERATORS if isinstance(node, kind) for other in operator(node)]
