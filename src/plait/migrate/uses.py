"""Collects what a program imports and uses of Flax NNX, and what you should review."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import libcst as cst
from libcst.metadata import PositionProvider

from .known import NO_HIJAX, OLD_OPTIMIZER, OLD_UPDATE, difference, has_name, is_module

HOMES = (("flax", "experimental", "nnx"), ("flax", "nnx"))
NNX, FLAX = "nnx", "flax"
_IMPORT_IN_TEXT = re.compile(r"^\s*(>>> )?(from flax import .*\bnnx\b|(from|import) flax\.nnx\b)", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to review.

    Args:
        line: its line, from 1.
        text: the message.
    """

    line: int
    text: str


class Uses(cst.CSTVisitor):
    """What a program imports and uses of Flax. Visit a module with it, then call ``judge``."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.nnx_names: set[str] = set()  # names bound to the module nnx
        self.flax_names: set[str] = set()  # names bound to the package flax
        self.imported: dict[str, tuple[str, ...]] = {}  # names bound to members of nnx
        self.attributes: list[tuple[tuple[str, ...], int]] = []
        self.names: list[tuple[str, int]] = []
        self.calls: list[tuple[tuple[str, ...], cst.Call, int]] = []
        self.made: dict[str, tuple[str, ...]] = {}  # the function whose result was assigned to a name
        self.has_plait = False
        self.is_concerned = False
        self.needs_flax: set[str] = set()  # aliases of flax that are used for more than nnx
        self.needs_plait: set[str] = set()  # aliases of flax through which nnx is used
        self.has_exact: set[str] = set()  # aliases of flax bound by `import flax` or `import flax.nnx`

    def _line(self, node: cst.CSTNode) -> int:
        return self.get_metadata(PositionProvider, node).start.line  # type: ignore[attr-defined]

    def _find(self, line: int, text: str) -> None:
        self.findings.append(Finding(line, text))

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            path = dotted(alias.name) or ("",)
            below, bound = below_nnx(path), bound_name(alias)
            if path[0] == "plait":
                self.has_plait = True
            if below is not None:
                self.is_concerned = True
                if bound is not None:
                    self._import_module(below, bound, self._line(node))
                else:
                    self._check_module(below, self._line(node))
            if path[0] == FLAX and bound is None:
                self.flax_names.add(FLAX)
                if below is not None or path == (FLAX,):
                    self.has_exact.add(FLAX)
            elif path == (FLAX,) and bound is not None:
                self.flax_names.add(bound)
                self.has_exact.add(bound)
        return False

    def _import_module(self, below: tuple[str, ...], bound: str, line: int) -> None:
        if not below:
            self.nnx_names.add(bound)
        elif self._check_module(below, line):
            self.imported[bound] = below

    def _check_module(self, below: tuple[str, ...], line: int) -> bool:
        is_known = not below or is_module(*below)
        if not is_known:
            self._find(line, f"plait has no public module nnx.{'.'.join(below)}; the import is unchanged")
        return is_known

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        path, line = module_path(node), self._line(node)
        if path == ("plait",):
            self.has_plait = True
        if path in (("flax",), ("flax", "experimental")) and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                if dotted(alias.name) == (NNX,):
                    self.is_concerned = True
                    self.nnx_names.add(bound_name(alias) or NNX)
        below = below_nnx(path)
        if below is not None:
            self.is_concerned = True
            target = target_of(node, below)
            if target is None:
                what = f"nnx.{'.'.join(below)}"
                self._find(line, f"plait has no public module {what}; the import is unchanged")
            elif isinstance(node.names, cst.ImportStar):
                self._find(line, "a star import lacks the names that plait loads on first use, such as Optimizer")
            else:
                for alias in node.names:
                    member = (*target, *(dotted(alias.name) or ()))
                    self.imported[bound_name(alias) or member[-1]] = member
                    self._check_name(member, line)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        path = dotted(node)
        if path is None:
            return True
        self.attributes.append((path, self._line(node)))
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.append((node.value, self._line(node)))

    def visit_Call(self, node: cst.Call) -> None:
        path = dotted(node.func)
        if path is not None:
            self.calls.append((path, node, self._line(node)))

    def visit_Assign(self, node: cst.Assign) -> None:
        if isinstance(node.value, cst.Call):
            made = dotted(node.value.func)
            for target in node.targets:
                name = dotted(target.target)
                if made is not None and name is not None:
                    self.made[name[-1]] = made

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        text = node.raw_value
        if _IMPORT_IN_TEXT.search(text):
            self._find(self._line(node), "a string imports flax.nnx, and is unchanged")
        if text == "flax.nnx" or text.startswith(("flax.nnx.", "flax.nnx:")):
            self._find(self._line(node), f"the string {text!r} names flax.nnx and is unchanged")

    def judge(self) -> None:
        """Turn the collected uses into findings, and decide which names are still used."""
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
                self._find(min(taken), "the name plait is used here, and clashes with the added import")

    def _member(self, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """The member of nnx that an expression names."""
        if path[0] in self.nnx_names:
            return path[1:]
        if path[0] in self.flax_names:
            return below_nnx((FLAX, *path[1:]))
        return None

    def _check_name(self, member: tuple[str, ...], line: int) -> None:
        if not has_name(member):
            depth = next(depth for depth in range(1, len(member) + 1) if not has_name(member[:depth]))
            self._find(line, f"plait has no nnx.{'.'.join(member[:depth])}")
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
        """The member of nnx that a dotted name calls."""
        return self._member(path) or self.imported.get(path[0])

    def _is_optimizer(self, path: tuple[str, ...]) -> bool:
        """Whether the program assigns an ``nnx.Optimizer`` to this name."""
        made = self.made.get(path[-1]) if path else None
        return made is not None and (self._called(made) or ("",))[-1] == "Optimizer"


def target_of(node: cst.ImportFrom, below: tuple[str, ...]) -> tuple[str, ...] | None:
    """The module of plait with the names of ``from flax.nnx.below import …``: its root, or a public module."""
    if not below or (len(below) == 1 and is_module(*below)):
        return below
    if isinstance(node.names, cst.ImportStar):
        return None
    names = [dotted(alias.name) or ("",) for alias in node.names]
    places: tuple[tuple[str, ...], ...] = ((), below) if is_module(*below) else ((),)
    return next((place for place in places if all(has_name((*place, *name)) for name in names)), None)


def module_path(node: cst.ImportFrom) -> tuple[str, ...] | None:
    """The dotted name after ``from``; ``None`` for a relative import."""
    return dotted(node.module) if node.module is not None and not node.relative else None


def dotted(node: Any) -> tuple[str, ...] | None:
    """``("a", "b")`` for the expression ``a.b``."""
    if isinstance(node, cst.Name):
        return (node.value,)
    if isinstance(node, cst.Attribute):
        owner = dotted(node.value)
        return None if owner is None else (*owner, node.attr.value)
    return None


def below_nnx(path: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The part after ``flax.nnx`` in a dotted name; ``None`` for other names."""
    for home in HOMES:
        if path is not None and path[: len(home)] == home:
            return path[len(home) :]
    return None


def bound_name(alias: cst.ImportAlias) -> str | None:
    """The name after ``as``."""
    return alias.asname.name.value if alias.asname and isinstance(alias.asname.name, cst.Name) else None
