"""What a builder would change in existing objects, and whether it may.

A ``Builder`` with a cache refills the caller's own objects. An object may be changed only in the JAX trace that it
belongs to (``trace_guard.py``), and a view of a stack has the structure of all layers. So before the first write each
object of a different trace, and each view, is compared with what it would become. One that would not change may be
among them: it is only read. What a capture takes from a layer may be new in a view. (rules G64, U26, ST3)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..._compat import trace_state
from ...ground.words import with_article
from ..objects.cells import has_ref, metadata_key
from ..objects.named import Sentinel
from ..objects.nodes import PYTREE_REGISTRY, DataElem, GenericPytree, Kind, get_node_impl, kind_of, unwrapped
from ..objects.pytree import Pytree
from ..objects.sowing import RECORD
from ..objects.statics import same_static
from ..objects.trace_guard import path_of, raise_foreign_trace
from ..objects.variables import Variable, cell_of
from .graphdef import GraphDef, LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef

# What a step-4 merge passes for a leaf of the caller that the transformed function did not write.
UNTOUCHED: Any = Sentinel(__name__, "UNTOUCHED", "<untouched>")
_ABSENT: Any = Sentinel(__name__, "_ABSENT", "<absent>")


def trace_of(item: Any, otherwise: Any) -> Any:
    """The trace that a variable or module belongs to; other objects belong to every trace."""
    if isinstance(item, Variable):
        return cell_of(item).trace
    return item._info.trace if isinstance(item, Pytree) else otherwise


def check_refill(graphdefs: Sequence[GraphDef], leaves: Iterable[Any], own: Mapping[int, Any]) -> None:
    """Raise if building these graphs would change an object of a different trace, or the structure of a view.

    Args:
        leaves: one for each leaf definition of all graphdefs, in walk order.
        own: index → existing object, which the builder refills.

    Raises:
        TraceContextError: as for a direct write to the object.
        GraphError: as for a direct change of a view.
    """
    here = trace_state.value
    if any(_is_watched(item, here) for item in own.values()):
        for owner, action in _changes_of_watched(graphdefs, iter(leaves), own, here):
            if trace_of(owner, here) is not here:
                raise_foreign_trace(trace_of(owner, here), owner, action)
            else:
                kind = type(owner).__name__
                what = f"{action[:-2]} {with_article(kind)}" if action.endswith(" a") else f"{action} {kind}"
                raise _fixed(owner)(f"a change that would {what}", path_of(owner))


def _is_watched(item: Any, here: Any) -> bool:
    """Whether an object belongs to a different trace, or to a view."""
    return trace_of(item, here) is not here or _fixed(item) is not None


def _fixed(item: Any) -> Any:
    """What makes the error for a change of structure; ``None`` if it may change."""
    if isinstance(item, Variable):
        return cell_of(item).fixed
    return item._info.fixed if isinstance(item, Pytree) else None


def _changes_of_watched(
    graphdefs: Sequence[GraphDef], leaves: Iterator[Any], own: Mapping[int, Any], here: Any
) -> Iterator[tuple[Any, str]]:
    """The changes to such objects, in walk order: (object, what would be done to it)."""
    # (definition, the present child, the action on the module that it is a part of, and that module if it is watched).
    stack: list[tuple[Any, Any, str, Any]] = [(graphdef, _ABSENT, "", None) for graphdef in reversed(graphdefs)]
    while stack:
        part, current, action, owner = stack.pop()
        leaf = next(leaves, UNTOUCHED) if isinstance(part, (VariableDef, LeafDef)) else None
        target = None if isinstance(part, StaticAttribute) else own.get(part.index)  # type: ignore[arg-type]
        if owner is not None and not _stays(part, current, leaf, target):
            yield owner, action
            owner = None
        if isinstance(part, VariableDef) and target is not None and _is_watched(target, here):
            yield from ((target, change) for change in _changes_of_variable(part, leaf, target, here))
        if not isinstance(part, NodeDef):
            continue
        if part.index is not None:
            owner = target if target is not None and _is_watched(target, here) else None
            current, action = target, ""
        impl = None if owner is None else get_node_impl(unwrapped(current))
        children = {} if impl is None else dict(impl.flatten(unwrapped(current))[0])
        free = RECORD if owner is not None and trace_of(owner, here) is here else None
        stack += [
            (
                entry if isinstance(entry, StaticAttribute) else entry.value,
                children.pop(entry.key, _ABSENT),
                action or f"set the attribute {entry.key!r} of a",
                None if entry.key == free else owner,
            )
            for entry in reversed(part.attributes)
        ]
        children.pop(free, None)
        if children:
            yield owner, action or f"delete the attribute {next(iter(children))!r} of a"


def _stays(part: Any, current: Any, leaf: Any, target: Any) -> bool:
    """Whether a child would be the same as before, apart from what is below it."""
    is_static = kind_of(current) is Kind.STATIC and type(current) is not DataElem
    current = unwrapped(current)
    if isinstance(part, StaticAttribute):
        return is_static and same_static(current, part.value)
    if isinstance(part, (NodeRef, VariableDef)) or part.index is not None:
        return target is not None and current is target
    if isinstance(part, LeafDef):
        return leaf is UNTOUCHED or leaf is current
    if current is None or kind_of(current) is not Kind.PYTREE:
        return current is None and part.type is type(None)
    kind = type(current) if type(current) in PYTREE_REGISTRY else GenericPytree
    return part.type is kind and same_static(part.metadata, get_node_impl(current).flatten(current)[1])  # type: ignore[union-attr]


def _changes_of_variable(part: VariableDef, leaf: Any, variable: Any, here: Any) -> Iterator[str]:
    """What a variable of a different trace would lose: its value, unless it is written through a reference, or its
    metadata; one of a view only the latter."""
    cell = cell_of(variable)
    source = cell_of(leaf) if isinstance(leaf, Variable) else None
    raw = leaf if source is None else source.raw
    if cell.trace is not here and leaf is not UNTOUCHED and raw is not cell.raw and not has_ref(cell):
        yield "change the value of"
    if (part.metadata if source is None else metadata_key(source)) != metadata_key(cell):
        yield "change the metadata of"
