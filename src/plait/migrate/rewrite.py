"""Rewrite one program: its imports of Flax NNX become imports of plait, and every other byte stays as it is.

    from flax import nnx                 import plait as nnx
    import flax.nnx as nnx               import plait as nnx
    from flax.nnx import Linear          from plait import Linear
    from flax.nnx.nn.linear import L     from plait import L, if that is public
    from flax import linen as nn, nnx    from flax import linen as nn; import plait as nnx, on a line of its own
    import flax … flax.nnx.Linear        import plait … plait.Linear; flax stays imported where it is still used

Only imports are rewritten, and uses of ``flax.nnx`` written out. A program is read once to see what it uses, and then
changed; what needs a person's eye is reported with its line.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from .known import NO_HIJAX, OLD_OPTIMIZER, OLD_UPDATE, difference, has_name, is_module

_HOMES = (("flax", "experimental", "nnx"), ("flax", "nnx"))
_NNX, _FLAX = "nnx", "flax"
_IMPORT_IN_TEXT = re.compile(r"^\s*(>>> )?(from flax import .*\bnnx\b|(from|import) flax\.nnx\b)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something for a person to look at.

    Args:
        line: where, from 1.
        text: what.
    """

    line: int
    text: str


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A program after the rewriting.

    Args:
        source: its bytes.
        findings: what needs a person's eye, by line.
    """

    source: bytes
    findings: tuple[Finding, ...]


class UnreadableError(ValueError):
    """A program cannot be parsed; ``line`` says where, if that is known."""

    def __init__(self, text: str, line: int | None = None) -> None:
        super().__init__(text)
        self.line = line


def rewrite(source: bytes) -> Rewritten:
    """The program with plait in the place of Flax NNX.

    Raises:
        UnreadableError: it is no Python, or has an encoding that is unknown.
    """
    module = _parsed(source)
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    uses = _Uses()
    wrapper.visit(uses)
    uses.judge()
    changed = module.visit(_Rewriter(uses)) if uses.is_concerned else module
    assert isinstance(changed, cst.Module)
    return Rewritten(changed.bytes, tuple(sorted(set(uses.findings), key=lambda found: (found.line, found.text))))


def _parsed(source: bytes) -> cst.Module:
    try:
        module = cst.parse_module(source)
        same = module.bytes == source
    except cst.ParserSyntaxError as error:
        raise UnreadableError("a syntax error", error.raw_line) from error
    except (SyntaxError, ValueError, LookupError, RecursionError) as error:
        raise UnreadableError(str(error) or type(error).__name__) from error
    if not same:
        raise UnreadableError("line ends that LibCST does not keep")
    return module


def _dotted(node: Any) -> tuple[str, ...] | None:
    """``("a", "b")`` for the expression ``a.b``."""
    if isinstance(node, cst.Name):
        return (node.value,)
    if isinstance(node, cst.Attribute):
        owner = _dotted(node.value)
        return None if owner is None else (*owner, node.attr.value)
    return None


def _below_nnx(path: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """What follows ``flax.nnx`` in a dotted name; ``None`` if it is another."""
    for home in _HOMES:
        if path is not None and path[: len(home)] == home:
            return path[len(home) :]
    return None


def _bound_name(alias: cst.ImportAlias) -> str | None:
    return alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else None


class _Uses(cst.CSTVisitor):
    """What a program imports and uses of Flax."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.nnx_names: set[str] = set()  # names bound to the module nnx
        self.flax_names: set[str] = set()  # names bound to the package flax
        self.imported: dict[str, tuple[str, ...]] = {}  # names bound to members of nnx
        self.attributes: list[tuple[tuple[str, ...], int]] = []
        self.names: list[tuple[str, int]] = []
        self.calls: list[tuple[tuple[str, ...], cst.Call, int]] = []
        self.made: dict[str, tuple[str, ...]] = {}  # what was called for the value that a name was given
        self.has_plait = False
        self.is_concerned = False
        self.needs_flax: set[str] = set()  # names of flax that are used for more than nnx
        self.needs_plait: set[str] = set()  # names of flax that nnx is reached through
        self.has_exact: set[str] = set()  # names of flax bound by `import flax` or `import flax.nnx`

    def _line(self, node: cst.CSTNode) -> int:
        return self.get_metadata(PositionProvider, node).start.line  # type: ignore[attr-defined]

    def _find(self, line: int, text: str) -> None:
        self.findings.append(Finding(line, text))

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            path = _dotted(alias.name) or ("",)
            below, bound = _below_nnx(path), _bound_name(alias)
            if path[0] == "plait":
                self.has_plait = True
            if below is not None:
                self.is_concerned = True
                if bound is not None:
                    self._import_module(below, bound, self._line(node))
                else:
                    self._check_module(below, self._line(node))
            if path[0] == _FLAX and bound is None:
                self.flax_names.add(_FLAX)
                if below is not None or path == (_FLAX,):
                    self.has_exact.add(_FLAX)
            elif path == (_FLAX,) and bound is not None:
                self.flax_names.add(bound)
                self.has_exact.add(bound)
        return False

    def _import_module(self, below: tuple[str, ...], bound: str, line: int) -> None:
        if not below:
            self.nnx_names.add(bound)
        elif self._check_module(below, line):
            self.imported[bound] = below

    def _check_module(self, below: tuple[str, ...], line: int) -> bool:
        is_known = not below or (len(below) == 1 and is_module(below[0]))
        if not is_known:
            self._find(line, f"plait has no public module nnx.{'.'.join(below)}; the import is left as it is")
        return is_known

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        path = _dotted(node.module) if node.module is not None and not node.relative else None
        line = self._line(node)
        if path == ("plait",):
            self.has_plait = True
        if path in (("flax",), ("flax", "experimental")) and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                if _dotted(alias.name) == (_NNX,):
                    self.is_concerned = True
                    self.nnx_names.add(_bound_name(alias) or _NNX)
        below = _below_nnx(path)
        if below is not None:
            self.is_concerned = True
            target = _from_target(node, below)
            if target is None:
                what = f"nnx.{'.'.join(below)}"
                self._find(line, f"plait has no public module {what}; the import is left as it is")
            elif isinstance(node.names, cst.ImportStar):
                self._find(
                    line, "a star import does not bring the names that plait loads on first use, such as Optimizer"
                )
            else:
                for alias in node.names:
                    member = (*target, *(_dotted(alias.name) or ()))
                    self.imported[_bound_name(alias) or member[-1]] = member
                    self._check_name(member, line)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        path = _dotted(node)
        if path is None:
            return True
        self.attributes.append((path, self._line(node)))
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.append((node.value, self._line(node)))

    def visit_Call(self, node: cst.Call) -> None:
        path = _dotted(node.func)
        if path is not None:
            self.calls.append((path, node, self._line(node)))

    def visit_Assign(self, node: cst.Assign) -> None:
        if isinstance(node.value, cst.Call):
            made = _dotted(node.value.func)
            for target in node.targets:
                name = _dotted(target.target)
                if made is not None and name is not None:
                    self.made[name[-1]] = made

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        text = node.raw_value
        if _IMPORT_IN_TEXT.search(text):
            self._find(self._line(node), "a text imports flax.nnx, and is left as it is")
        if text == "flax.nnx" or text.startswith(("flax.nnx.", "flax.nnx:")):
            self._find(self._line(node), f"the string {text!r} names flax.nnx and is left as it is")

    def judge(self) -> None:
        """Turn what was seen into findings, and decide which names stay in use."""
        for path, line in self.attributes:
            below = self._member(path)
            if below is None and path[0] in self.flax_names:
                self.needs_flax.add(path[0])
            elif below is not None:
                if path[0] in self.flax_names:
                    self.needs_plait.add(path[0])
                    self.is_concerned = True
                self._check_name(below, line)
            elif path[0] in self.imported:
                self._check_name((*self.imported[path[0]], *path[1:]), line)
        for name, _ in self.names:
            if name in self.flax_names:
                self.needs_flax.add(name)
        for path, call, line in self.calls:
            self._check_call(path, call, line)
        if self.needs_plait and not self.has_plait:
            taken = [line for name, line in self.names if name == "plait"]
            taken += [line for path, line in self.attributes if path[0] == "plait"]
            if taken:
                self._find(min(taken), "the name plait is used here for something else than the import that was added")

    def _member(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """What of nnx an expression names."""
        if path[0] in self.nnx_names:
            return path[1:]
        if path[0] in self.flax_names:
            return _below_nnx((_FLAX, *path[1:]))
        return None

    def _check_name(self, member: tuple[str, ...], line: int) -> None:
        if not has_name(member):
            shown = member if is_module(member[0]) else member[:1]
            self._find(line, f"plait has no nnx.{'.'.join(shown[:2])}")
        elif difference(member):
            self._find(line, f"nnx.{member[0]}: {difference(member)}")

    def _check_call(self, path: tuple[str, ...], call: cst.Call, line: int) -> None:
        keywords = {arg.keyword.value for arg in call.args if arg.keyword is not None}
        stars = any(arg.star for arg in call.args)
        if path[-1] == "update" and len(call.args) == 1 and not stars and self._is_optimizer(path[:-1]):
            self._find(line, f"nnx.Optimizer: {OLD_UPDATE}")
        member = self._called(path)
        if member is None:
            return
        if member[-1:] == ("Optimizer",) and "wrt" not in keywords and len(call.args) < 3 and not stars:
            self._find(line, f"nnx.Optimizer: {OLD_OPTIMIZER}")
        if "hijax" in keywords:
            self._find(line, f"nnx.{'.'.join(member)}: {NO_HIJAX}")

    def _called(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """What of nnx is called by a dotted name."""
        return self._member(path) or self.imported.get(path[0])

    def _is_optimizer(self, path: tuple[str, ...]) -> bool:
        """Whether something of this name is made by ``nnx.Optimizer`` in the program."""
        made = self.made.get(path[-1]) if path else None
        return made is not None and (self._called(made) or ("",))[-1] == "Optimizer"


def _from_target(node: cst.ImportFrom, below: tuple[str, ...]) -> tuple[str, ...] | None:
    """Where in plait the names of ``from flax.nnx.below import …`` are: at its root, or in a public module."""
    if not below or (len(below) == 1 and is_module(below[0])):
        return below
    if isinstance(node.names, cst.ImportStar):
        return None
    names = [_dotted(alias.name) or ("",) for alias in node.names]
    return () if all(has_name(name) for name in names) else None


def _plait_name(below: tuple[str, ...]) -> cst.Name | cst.Attribute:
    node: cst.Name | cst.Attribute = cst.Name("plait")
    for step in below:
        node = cst.Attribute(node, cst.Name(step))
    return node


class _Rewriter(cst.CSTTransformer):
    """Makes the changes that ``_Uses`` has found to be needed."""

    def __init__(self, uses: _Uses) -> None:
        self.uses = uses

    # Uses of `flax.nnx`, written out.

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return _dotted(node) is None or self._home(_dotted(node)) is not None

    def _home(self, path: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The part of a dotted name that is ``flax.nnx``, under whatever name flax has."""
        for home in _HOMES:
            if path is not None and path[0] in self.uses.flax_names and path[1 : len(home)] == home[1:]:
                return path[: len(home)]
        return None

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        path = _dotted(original_node)
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
            # The comma of the last one is that of the original; those before it need one of their own.
            names.extend(
                each.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))) for each in new[:-1]
            )
            names.append(new[-1].with_changes(comma=alias.comma))
        return updated_node.with_changes(names=names)

    def _aliases(self, alias: cst.ImportAlias) -> list[cst.ImportAlias]:
        path, bound = _dotted(alias.name) or ("",), _bound_name(alias)
        below, uses = _below_nnx(path), self.uses
        if below is not None and below and not (len(below) == 1 and is_module(below[0])):
            return [alias]
        if below is not None and bound is not None:
            return [alias.with_changes(name=_plait_name(below))]
        plait = cst.ImportAlias(_plait_name(below or ()))
        if below is not None:
            return [*([cst.ImportAlias(cst.Name(_FLAX))] if _FLAX in uses.needs_flax else []), plait]
        name = bound or _FLAX
        is_flax = path == (_FLAX,) or (path[0] == _FLAX and bound is None and _FLAX not in uses.has_exact)
        if not is_flax or name not in uses.needs_plait:
            return [alias]
        keeps = path != (_FLAX,) or name in uses.needs_flax
        return [*([alias] if keeps else []), plait]

    # `from … import …`

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.Import | cst.FlattenSentinel[cst.BaseSmallStatement]:
        node = original_node
        path = _dotted(node.module) if node.module is not None and not node.relative else None
        below = _below_nnx(path)
        if below is not None:
            target = _from_target(node, below)
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
        """A line of its own for what came out of a ``from flax import …``, with the comments that stood inside."""
        only = original_node.body[0]
        if (
            len(original_node.body) > 1
            or not isinstance(only, cst.ImportFrom)
            or _below_nnx(_module_path(only)) is not None
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


def _module_path(node: cst.ImportFrom) -> tuple[str, ...] | None:
    return _dotted(node.module) if node.module is not None and not node.relative else None


def _split(node: cst.ImportFrom) -> tuple[cst.ImportFrom | None, list[cst.Import]]:
    """A ``from flax import …`` without nnx, if anything is left, and the import of plait that takes its place."""
    if _module_path(node) not in (("flax",), ("flax", "experimental")) or isinstance(node.names, cst.ImportStar):
        return node, []
    ours = [alias for alias in node.names if _dotted(alias.name) == (_NNX,)]
    if not ours:
        return node, []
    names = [cst.ImportAlias(cst.Name("plait"), cst.AsName(cst.Name(_bound_name(alias) or _NNX))) for alias in ours]
    commas = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    names = [name.with_changes(comma=commas) for name in names[:-1]] + names[-1:]
    statement = cst.Import(names)
    rest = [alias for alias in node.names if _dotted(alias.name) != (_NNX,)]
    if not rest:
        return None, [statement]
    if node.names[-1] in ours:
        rest[-1] = rest[-1].with_changes(comma=_last_comma(rest[-1].comma, node.names[-1].comma))
    return node.with_changes(names=rest), [statement]


def _last_comma(comma: Any, last: Any) -> Any:
    """The comma of what is now the last one: the list ends as it ended, and a comment after the comma stays."""
    if not isinstance(comma, cst.Comma) or not isinstance(last, cst.Comma):
        return last
    here, there = comma.whitespace_after, last.whitespace_after
    if not isinstance(here, cst.ParenthesizedWhitespace) or not isinstance(there, cst.ParenthesizedWhitespace):
        return last
    end = there.with_changes(first_line=here.first_line)
    return last.with_changes(whitespace_after=end)


def _lost_comments(before: cst.ImportFrom, after: cst.ImportFrom | None) -> list[str]:
    """Comments that stood inside an import and would be gone."""
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
