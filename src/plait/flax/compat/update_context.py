"""Update contexts: preserving object identity across any JAX transform, by hand.

One context is used for one round of four steps: split outside, merge inside, split inside, merge outside. The first
split numbers the caller's objects. The first merge creates private objects with the same numbers. The second split
records in the (static) graphdef which old number became which new one. The second merge uses that record to update the
caller's own objects. The numbering is a pure function of the structure, so when a compiled function is called again,
step 4 needs only the recorded graphdef. (U1 to U14, U37 to U40)
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jax.tree_util import register_static

from ...core.functional.merge import leaves_of
from ...core.functional.split import nested_groups
from ...core.graph.graphdef import GraphDef, NodeDef, NodeRef, with_index_mapping
from ...core.graph.locate import check_no_captured_objects
from ...core.graph.unflatten import Builder
from ...core.graph.walks import RefMap
from ...core.nodes.journal import Journal, trace_of
from ...core.states.flat_graphs import flattened
from ...core.states.state import group_leaves
from ...core.transform import Transformation
from ...errors import GraphError
from ...typing import FilterLiteral
from ...util.context_values import held
from ...util.jax_versions import current_trace

CONTEXT = Transformation("update_context", of_model="context.merge(*context.split((model, x)))")


class IndexMap(dict[int, Any]):
    """Index → object, the inverse of a ``RefMap``."""

    @classmethod
    def from_refmap(cls, refmap: RefMap) -> IndexMap:
        """The inverse of ``refmap``."""
        return cls({index: key for key, index in refmap.items()})


@register_static
class UpdateContext:
    """One round of the four steps, created by ``update_context``.

    To JAX a context is an opaque static value. All contexts are equal, so capturing or passing one never causes a
    recompilation.

    Attributes:
        tag: the value that identifies the context.
        ref_index: outer object → outer index, after step 1.
        index_ref: outer index → inner object, between steps 2 and 3.
    """

    __slots__ = ("index_ref", "ref_index", "tag")

    def __init__(self, tag: Hashable) -> None:
        self.tag = tag
        self.ref_index: RefMap | None = None
        self.index_ref: IndexMap | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UpdateContext)

    def __hash__(self) -> int:
        return hash(UpdateContext)

    def __repr__(self) -> str:
        return f"UpdateContext(tag={self.tag!r})"

    def split(self, node: Any, *filters: FilterLiteral) -> Any:
        """Step 1 outside, or step 3 inside: ``plait.split``, recording identities."""
        with _splits(self) as context:
            return context.split(node, *filters)

    def merge(self, graphdef: GraphDef, state: Any, /, *states: Any) -> Any:
        """Step 2 inside, or step 4 outside: ``plait.merge``, reusing the recorded identities.

        Raises:
            TraceContextError: an object of the caller that would change belongs to a different trace.
        """
        with _merges(self) as context:
            return context.merge(graphdef, state, *states)


# The active contexts, outermost first.
_active: ContextVar[tuple[UpdateContext, ...]] = ContextVar("update_contexts", default=())


@contextlib.contextmanager
def update_context(tag: Hashable) -> Iterator[UpdateContext]:
    """A context manager and decorator that opens an update context.

    Args:
        tag: any hashable value, used only to distinguish nested contexts.

    Example:
        >>> model = plait.Linear(2, 2, rngs=plait.Rngs(0))
        >>> @jax.jit
        ... def pure(graphdef, state):
        ...     ctx = plait.current_update_context("demo")
        ...     model = ctx.merge(graphdef, state)
        ...     model.extra = plait.Param(jnp.ones(2))
        ...     return ctx.split(model)
        >>> with plait.update_context("demo") as ctx:
        ...     same = ctx.merge(*pure(*ctx.split(model)))
        >>> same is model, model.extra.shape
        (True, (2,))
    """
    context = UpdateContext(tag)
    try:
        with held(_active, (*_active.get(), context)):
            yield context
    finally:
        context.ref_index = context.index_ref = None


def current_update_context(tag: Hashable) -> UpdateContext:
    """The innermost active context of a tag in this thread or task.

    Raises:
        GraphError: there is no such context; the message names the tag.
    """
    for context in reversed(_active.get()):
        if context.tag == tag:
            return context
    raise GraphError(
        f"there is no active update context with the tag {tag!r}",
        found=f"the tags {[context.tag for context in _active.get()]} in this thread or task",
        expected=f"a `with plait.update_context({tag!r})` around the call",
        do="open the context in the same thread or task",
    )


def split_context(ctxtag: Hashable | None = None) -> contextlib.AbstractContextManager[SplitContext]:
    """Split several roots that share objects: an object from an earlier split becomes a back-reference.

    Args:
        ctxtag: the tag of an active update context; the splits are one of its steps.

    Example:
        >>> shared = plait.Param(1.0)
        >>> with plait.split_context() as ctx:
        ...     first, second = ctx.split({"a": shared}), ctx.split({"b": shared})
        >>> len(first[1]), len(second[1])
        (1, 0)
    """
    return _splits(None if ctxtag is None else current_update_context(ctxtag))


def merge_context(
    ctxtag: Hashable | None = None, inner: bool | None = None
) -> contextlib.AbstractContextManager[MergeContext]:
    """Merge several roots that share objects: the inverse of ``split_context``. If the block raises, the caller's own
    objects are as before.

    Args:
        ctxtag: the tag of an active update context; the merges are one of its steps.
        inner: whether this is the merge inside the transform. By default it is the outer merge if a root has an index
            mapping, otherwise the inner one.
    """
    return _merges(None if ctxtag is None else current_update_context(ctxtag), inner)


@contextlib.contextmanager
def _splits(context: UpdateContext | None) -> Iterator[SplitContext]:
    splits = SplitContext(context)
    yield splits
    if context is None:
        return
    if context.ref_index is None:  # step 1
        context.ref_index = splits.refs
    else:
        context.index_ref = None


@contextlib.contextmanager
def _merges(context: UpdateContext | None, inner: bool | None = None) -> Iterator[MergeContext]:
    with Journal() as journal:
        merges = MergeContext(context, inner, journal)
        yield merges
    if context is not None and merges.inner is not False:  # step 2
        context.index_ref = merges.index_ref


class SplitContext:
    """Splits of several roots with shared indices; created by ``split_context``."""

    def __init__(self, context: UpdateContext | None) -> None:
        self.context = context
        self.refs = RefMap()

    def split(self, node: Any, *filters: FilterLiteral) -> Any:
        """``plait.split``, with indices shared with the other roots of the context."""
        graphdef, *groups = self.flatten(node, *filters)
        return (graphdef, *nested_groups(groups, is_leaf=not isinstance(graphdef, NodeDef)))

    def flatten(self, node: Any, *filters: FilterLiteral, with_paths: bool = True) -> Any:
        """``plait.flatten``, with indices shared with the other roots of the context.

        Raises:
            ArgumentError: in step 3, an object belongs to a different trace and did not come in by a merge.
        """
        graphdef, flat = flattened(node, self.refs, with_paths=with_paths)
        context = self.context
        if context is not None and context.ref_index is not None:  # step 3
            made = context.index_ref or {}
            if made:
                here, inner = current_trace(), [*made.values()]
                own = {id(here), *(id(trace_of(item, here)) for item in inner)}  # traces: this one, and that of step 2
                others = [item for item in self.refs if id(trace_of(item, here)) not in own]
                check_no_captured_objects(CONTEXT, others, set(map(id, inner)), [node])
            graphdef = with_index_mapping(graphdef, self.refs.moved_from(made))
        groups = group_leaves(flat, filters, exhaustive=True) if filters and with_paths else [flat]
        return (graphdef, *groups)


class MergeContext:
    """Merges of several roots with shared indices; created by ``merge_context``."""

    def __init__(self, context: UpdateContext | None, inner: bool | None, journal: Journal) -> None:
        self.context = context
        self.inner = inner
        self.index_ref = IndexMap()
        self._journal = journal

    def merge(self, graphdef: GraphDef, state: Any, /, *states: Any) -> Any:
        """``plait.merge``, with indices shared with the other roots of the context.

        Raises:
            TraceContextError: an object of the caller that would change belongs to a different trace.
        """
        leaves = leaves_of(graphdef, state, *states)
        cache = {new: item for new, item in self._refilled(graphdef).items() if new not in self.index_ref}
        if self.inner is None and not isinstance(graphdef, NodeRef):
            self.inner = _mapping_of(graphdef) is None
        with Journal(self._journal) as journal:
            return Builder(self.index_ref, cache, journal=journal).build(graphdef, leaves)

    unflatten = merge  # it takes flat states too

    def _refilled(self, graphdef: GraphDef) -> dict[int, Any]:
        """Index → the caller's own object, if this is an outer merge."""
        mapping = _mapping_of(graphdef)
        if self.inner or self.context is None or self.context.ref_index is None or mapping is None:
            return {}
        return self.context.ref_index.objects_at(mapping)


def _mapping_of(graphdef: GraphDef) -> Mapping[int, int] | None:
    return getattr(graphdef, "index_mapping", None)
