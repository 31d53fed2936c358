"""Differences between two graphdefs, by path.

Each graphdef becomes a table from paths to definitions, and the two tables are compared. If a whole sub-graph was added
or removed, only its root is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...errors import ArgumentTypeError
from ...util.paths import Path, format_path
from ...util.repr import repr_leaf
from ...util.sentinels import NOTHING
from ...util.static_values import same_static
from ...util.words import describe_type
from .graphdef import GraphDef, LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef, iter_places, path_of


@dataclasses.dataclass(frozen=True)
class Difference:
    """One difference at one path.

    Attributes:
        path: where the graphdefs differ.
        text: a one-line description: ``layers[3].dropout.rate: 0.1 -> 0.2``.
    """

    path: Path
    text: str

    def __str__(self) -> str:
        return self.text


class GraphDiff(tuple[Difference, ...]):
    """The differences between two graphdefs in path order, printed one per line; empty if there are none."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no difference"

    def __repr__(self) -> str:
        return f"<GraphDiff of {len(self)}>\n{self}" if self else "<GraphDiff: no difference>"


def diff(first: GraphDef, second: GraphDef, /, *, root: str = "") -> GraphDiff:
    """The differences between two graphdefs, by path.

    Args:
        first, second: graphdefs, for example ``plait.graphdef(model)`` before and after a change.
        root: a prefix for the paths, such as ``"model"``.

    Returns:
        A sequence of ``Difference``s, printed one per line.

    Example:
        >>> drop = plait.Dropout(0.1, rngs=plait.Rngs(0))
        >>> before = plait.graphdef(drop)
        >>> drop.rate = 0.2
        >>> print(plait.diff(before, plait.graphdef(drop), root="model"))
        model.rate: 0.1 -> 0.2
    """
    for argument in (first, second):
        if not isinstance(argument, GraphDef):
            raise ArgumentTypeError(
                "diff compares graphdefs",
                found=describe_type(argument),
                expected="two GraphDefs",
                do="call plait.diff(plait.graphdef(a), plait.graphdef(b))",
            )
    if first == second:
        return GraphDiff(())
    before, after = _layout(first), _layout(second)
    prefix: Path = (root,) if root else ()
    differences: list[Difference] = []
    covered: list[Path] = []
    for path in {**after, **before}:
        if any(path[: len(top)] == top for top in covered):
            continue
        old, new = before.get(path, NOTHING), after.get(path, NOTHING)
        texts = [*_compare(format_path((*prefix, *path)) or "the root", old, new)]
        differences += [Difference(path, text) for text in texts]
        if texts and _kinds(old) != _kinds(new):
            covered.append(path)
    return GraphDiff(sorted(differences, key=lambda difference: [(isinstance(k, str), k) for k in difference.path]))


def _layout(root: GraphDef) -> dict[Path, Any]:
    """Path → definition; a back-reference becomes the path that it points to."""
    table = _places(root)
    paths_by_index: dict[int | None, Path] = {
        part.index: path for path, part in table.items() if isinstance(part, (NodeDef, VariableDef))
    }
    for path, part in table.items():
        if isinstance(part, NodeRef):
            table[path] = _Shared(paths_by_index.get(part.index, ()), part.type)
    return table


def reference_changes(
    before: Sequence[GraphDef], after: Sequence[GraphDef], moved: Mapping[int, int]
) -> Iterator[tuple[int, Path, str, bool]]:
    """How the roots of a call changed, by path, including objects that moved.

    Args:
        before, after: the graphdefs of the same roots.
        moved: index before → index after, for the objects that existed before.

    Yields:
        (number of the root, path, description, whether the change is only a new variable).
    """
    before_of = {new: old for old, new in moved.items()}
    for number, (old_root, new_root) in enumerate(zip(before, after, strict=True)):
        old_places, new_places = _places(old_root), _places(new_root)
        for path in {**new_places, **old_places}:
            old, new = old_places.get(path, NOTHING), new_places.get(path, NOTHING)
            index, is_new = getattr(new, "index", None), old is NOTHING
            if index is not None and not is_new and before_of.get(index) != getattr(old, "index", None):
                yield number, path, f"a different {new.type.__name__}", False
            elif index is None or is_new or isinstance(new, VariableDef):
                for text in _compare(format_path(path) or "the root", old, new):
                    yield number, path, text, is_new and isinstance(new, VariableDef) and index not in before_of


def _places(root: GraphDef) -> dict[Path, Any]:
    """Path → definition, with back-references unresolved."""
    return {path_of(link): part for link, part in iter_places(root)}


@dataclasses.dataclass(frozen=True)
class _Shared:
    path: Path
    type: Any


def _kinds(part: object) -> tuple[type, type | None]:
    """What must be equal for two parts to be compared further."""
    return type(part), getattr(part, "type", None)


def _name(part: Any) -> str:
    if isinstance(part, VariableDef):
        return f"variable ({part.type.__name__})"
    if isinstance(part, _Shared):
        return f"the same object as {format_path(part.path) or 'the root'}"
    if isinstance(part, LeafDef):
        return "array"
    if isinstance(part, StaticAttribute):
        return repr_leaf(part.value)
    return part.type.__name__


def _compare(place: str, old: Any, new: Any) -> Iterator[str]:
    if old is NOTHING:
        if isinstance(new, VariableDef):
            yield f"new variable {place}"
        elif isinstance(new, StaticAttribute):
            yield f"new attribute {place} = {repr_leaf(new.value)}"
        else:
            yield f"new {_name(new)} {place}" if not isinstance(new, _Shared) else f"new {place}: {_name(new)}"
        return
    if new is NOTHING:
        yield f"{'variable' if isinstance(old, VariableDef) else 'attribute'} {place} was removed ({_name(old)})"
        return
    if isinstance(old, StaticAttribute) and isinstance(new, StaticAttribute):
        if not same_static(old.value, new.value):
            before, after = repr_leaf(old.value), repr_leaf(new.value)
            if before == after:
                before, after = f"{before} (one object)", f"{after} (another object, not equal)"
            yield f"{place}: {before} -> {after}"
        return
    if _kinds(old) != _kinds(new) or isinstance(old, _Shared):
        if old != new:
            yield f"{place}: {_name(old)} -> {_name(new)}"
        return
    if isinstance(old, VariableDef):
        for name in {**old.metadata, **new.metadata}:
            before, after = old.metadata.get(name, NOTHING), new.metadata.get(name, NOTHING)
            if before is NOTHING or after is NOTHING or not same_static(before, after):
                shown = ["nothing" if value is NOTHING else repr(value) for value in (before, after)]
                yield f"{place} metadata {name!r}: {shown[0]} -> {shown[1]}"
    elif isinstance(old, NodeDef) and not same_static(old.metadata, new.metadata):
        yield f"{place} metadata: {old.metadata!r} -> {new.metadata!r}"
