"""Rewrites one program: its imports of Flax NNX become imports of plait; no other byte changes.

    from flax import nnx                 import plait as nnx
    import flax.nnx as nnx               import plait as nnx
    from flax.nnx import Linear          from plait import Linear
    from flax.nnx.nn.linear import L     from plait import L, if that is public
    from flax import linen as nn, nnx    from flax import linen as nn; import plait as nnx, on a line of its own
    import flax … flax.nnx.Linear        import plait … plait.Linear; flax stays imported if it is still used

Only imports and full uses of ``flax.nnx`` are rewritten. One pass collects what the program uses, a second one changes
it; what you should review is reported with its line.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper

from .known import is_module
from .uses import FLAX, HOMES, NNX, Finding, Uses, below_nnx, bound_name, dotted, module_path, target_of


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A rewritten program.

    Args:
        source: its bytes.
        findings: what to review, by line.
    """

    source: bytes
    findings: tuple[Finding, ...]


class UnreadableError(ValueError):
    """A program cannot be parsed; ``line`` is the line, if known."""

    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text)
        self.line = line


def rewrite(source: bytes) -> Rewritten:
    """The program with plait instead of Flax NNX.

    Raises:
        UnreadableError: it is not valid Python, or has an unknown encoding.
    """
    try:
        module = _parsed(source)
        uses = Uses()
        MetadataWrapper(module, unsafe_skip_copy=True).visit(uses)
        uses.judge()
        changed = module.visit(_Rewriter(uses)) if uses.is_concerned else module
        assert isinstance(changed, cst.Module)
        result = changed.bytes
    except RecursionError as error:
        raise UnreadableError("expressions nested too deeply") from error
    return Rewritten(result, tuple(sorted(set(uses.findings), key=lambda found: (found.line, found.text))))


def _parsed(source: bytes) -> cst.Module:
    try:
        module = cst.parse_module(source)
        same = module.bytes == source
    except cst.ParserSyntaxError as error:
        raise UnreadableError("a syntax error", error.raw_line) from error
    except (SyntaxError, ValueError, LookupError) as error:
        raise UnreadableError(str(error) or type(error).__name__) from error
    if not same:
        raise UnreadableError("line endings that LibCST does not preserve")
    return module


def _plait_name(below: tuple[str, ...]) -> cst.Name | cst.Attribute:
    node: cst.Name | cst.Attribute = cst.Name("plait")
    for step in below:
        node = cst.Attribute(node, cst.Name(step))
    return node


class _Rewriter(cst.CSTTransformer):
    """Makes the changes that ``Uses`` found."""

    def __init__(self, uses: Uses) -> None:
        self.uses = uses

    # Full uses of `flax.nnx`.

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return dotted(node) is None or self._home(dotted(node)) is not None

    def _home(self, path: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The part of a dotted name that is ``flax.nnx``, under any alias of flax."""
        for home in HOMES:
            if path is not None and path[0] in self.uses.flax_names and path[1 : len(home)] == home[1:]:
                return path[: len(home)]
        return None

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        path = dotted(original_node)
        if path is not None and self._home(path) == path:
            return cst.Name("plait", lpar=original_node.lpar, rpar=original_node.rpar)
        return updated_node

    # `import …`

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        names: list[cst.ImportAlias] = []
        for alias in original_node.names:
            new = self._aliases(alias)
            # The last one keeps the original comma; the others need a new one.
            names.extend(
                each.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) for each in new[:-1]
            )
            names.append(new[-1].with_changes(comma=alias.comma))
        return updated_node.with_changes(names=names)

    def _aliases(self, alias: cst.ImportAlias) -> list[cst.ImportAlias]:
        path, bound = dotted(alias.name) or ("",), bound_name(alias)
        below, uses = below_nnx(path), self.uses
        if below is not None and below and not is_module(*below):
            return [alias]
        if below is not None and bound is not None:
            return [alias.with_changes(name=_plait_name(below))]
        plait = cst.ImportAlias(_plait_name(below or ()))
        if below is not None:
            return [*([cst.ImportAlias(cst.Name(FLAX))] if FLAX in uses.needs_flax else []), plait]
        name = bound or FLAX
        is_flax = path == (FLAX,) or (path[0] == FLAX and bound is None and FLAX not in uses.has_exact)
        if not is_flax or name not in uses.needs_plait:
            return [alias]
        keeps = path != (FLAX,) or name in uses.needs_flax
        return [*([alias] if keeps else []), plait]

    # `from … import …`

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.Import | cst.FlattenSentinel[cst.BaseSmallStatement]:
        node = original_node
        below = below_nnx(module_path(node))
        if below is not None:
            target = target_of(node, below)
            return node if target is None else node.with_changes(module=_plait_name(target))
        kept, imports = _split(node)
        if not imports:
            return node
        if kept is None:
            return imports[0].with_changes(semicolon=node.semicolon)
        semicolon = cst.Semicolon(whitespace_after=cst.SimpleWhitespace(" "))
        return cst.FlattenSentinel(
            [kept.with_changes(semicolon=semicolon), imports[0].with_changes(semicolon=node.semicolon)]
        )

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.BaseStatement]:
        """A separate line for the names taken out of a ``from flax import …``, with the comments inside it."""
        only = original_node.body[0]
        if (
            len(original_node.body) > 1
            or not isinstance(only, cst.ImportFrom)
            or below_nnx(module_path(only)) is not None
        ):
            return updated_node
        kept, imports = _split(only)
        if not imports:
            return updated_node
        comments = [cst.EmptyLine(comment=cst.Comment(text)) for text in _lost_comments(only, kept)]
        if kept is None:
            lead = [*original_node.leading_lines, *comments]
            return original_node.with_changes(body=imports, leading_lines=lead)
        after = cst.SimpleStatementLine(body=imports, leading_lines=comments)
        return cst.FlattenSentinel([original_node.with_changes(body=[kept]), after])


def _split(node: cst.ImportFrom) -> tuple[cst.ImportFrom | None, list[cst.Import]]:
    """A ``from flax import …`` without nnx, if other names remain, and the import of plait that replaces it."""
    if module_path(node) not in (("flax",), ("flax", "experimental")) or isinstance(node.names, cst.ImportStar):
        return node, []
    ours = [alias for alias in node.names if dotted(alias.name) == (NNX,)]
    if not ours:
        return node, []
    names = [cst.ImportAlias(cst.Name("plait"), cst.AsName(cst.Name(bound_name(alias) or NNX))) for alias in ours]
    commas = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    names = [name.with_changes(comma=commas) for name in names[:-1]] + names[-1:]
    statement = cst.Import(names)
    rest = [alias for alias in node.names if dotted(alias.name) != (NNX,)]
    if not rest:
        return None, [statement]
    if node.names[-1] in ours:
        rest[-1] = rest[-1].with_changes(comma=_last_comma(rest[-1].comma, node.names[-1].comma))
    return node.with_changes(names=rest), [statement]


def _last_comma(comma: Any, last: Any) -> Any:
    """The comma of the new last name: as the list ended before, with any comment after the comma."""
    if not isinstance(comma, cst.Comma) or not isinstance(last, cst.Comma):
        return last
    here, there = comma.whitespace_after, last.whitespace_after
    if not isinstance(here, cst.ParenthesizedWhitespace) or not isinstance(there, cst.ParenthesizedWhitespace):
        return last
    end = there.with_changes(first_line=here.first_line)
    return last.with_changes(whitespace_after=end)


def _lost_comments(before: cst.ImportFrom, after: cst.ImportFrom | None) -> list[str]:
    """Comments inside an import that would be lost."""
    left = [] if after is None else _comments(after)
    lost = []
    for text in _comments(before):
        if text in left:
            left.remove(text)
        else:
            lost.append(text)
    return lost


def _comments(node: cst.CSTNode) -> list[str]:
    found: list[str] = []

    class Collect(cst.CSTVisitor):
        def visit_Comment(self, node: cst.Comment) -> None:
            found.append(node.value)

    node.visit(Collect())
    return found
