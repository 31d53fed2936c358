"""Update contexts: preserving object identity across any JAX transform, by hand.

One context is used for one round of four steps: split outside, merge inside, split inside, merge outside. The first
split numbers the caller's objects. The first merge creates private objects with the same numbers. The second split
records in the (static) graphdef which old number became which new one. The second merge uses that record to update the
caller's own objects. The numbering is a pure function of the structure, so when a compiled function is called again,
step 4 needs only the recorded graphdef. (U1 to U14, U37 to U40)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from jax.tree_util import register_static

from ...core.functional.merge import leaves_of
from ...core.functional.split import nested_groups
from ...core.graph.graphdef import GraphDef, NodeDef, NodeRef, VariableDef, with_index_mapping
from ...core.graph.locate import check_no_captured_objects
from ...core.graph.unflatten import Builder
from ...core.graph.walks import RefMap
from ...core.nodes.journal import Journal, trace_of
from ...core.states.flat_graphs import flattened
from ...core.states.state import group_leaves
from ...core.transform import Transformation
from ...errors import GraphError, InternalError
from ...typing import FilterLiteral
from ...util.jax_versions import current_trace
from ...util.words import describe_type

CONTEXT = Transformation("update_context", of_model="context.merge(*context.split((model, x)))")


K = TypeVar("K")
V = TypeVar("V")
W = TypeVar("W")


class IndexMap(dict[int, Any]):
    """Index → object, the inverse of a ``RefMap``."""

    @classmethod
    def from_refmap(cls, refmap: RefMap) -> IndexMap:
        """The inverse of ``refmap``."""
        return cls({index: key for key, index in refmap.items()})


class _Stacks(threading.local):
    """The active contexts of this thread, by tag."""

    def __init__(self) -> None:
        self.by_tag: dict[Hashable, list[UpdateContext]] = {}


_stacks = _Stacks()


def compose_mapping(ab: Mapping[K, V], bc: Mapping[V, W], /) -> dict[K, W]:
    """``{a: c}`` for each ``b`` present in both.

    Example:
        >>> plait.graph.compose_mapping({1: "a", 2: "b"}, {"a": True})
        {1: True}
    """
    return {a: bc[b] for a, b in ab.items() if b in bc}


def compose_mapping_reversed(ab: Mapping[K, V], bc: Mapping[V, W], /) -> dict[W, K]:
    """``{c: a}`` for each ``b`` present in both.

    Example:
        >>> plait.graph.compose_mapping_reversed({1: "a", 2: "b"}, {"a": True})
        {True: 1}
    """
    return {bc[b]: a for a, b in ab.items() if b in bc}


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
        with SplitContext(self) as context:
            return context.split(node, *filters)

    def merge(self, graphdef: GraphDef, state: Any, /, *states: Any) -> Any:
        """Step 2 inside, or step 4 outside: ``plait.merge``, reusing the recorded identities.

        Raises:
            GraphError: there was no split before, or ``graphdef`` is a back-reference or not a graphdef.
            TraceContextError: an object of the caller that would change belongs to a different trace.
        """
        if not isinstance(graphdef, (NodeDef, VariableDef)):
            raise GraphError(
                "an update context merges only whole graphs",
                found=describe_type(graphdef),
                expected="the graphdef of a node or variable",
                do="merge the graphdef that the context's split returned",
            )
        if self.ref_index is None:
            raise GraphError(
                "merge was called before any split of this update context",
                at=f"the context {self.tag!r}",
                found="no reference index",
                expected="calls in the order split, merge, split, merge",
                do="call ctx.split(model) first",
            )
        with MergeContext(self) as context:
            return context.merge(graphdef, state, *states)

    def flatten_end(self, ref_index: RefMap) -> None:
        """Advance after a split: store the outer indices, or drop the inner objects."""
        if self.ref_index is None:
            self.ref_index = ref_index
        else:
            self.index_ref = None

    def unflatten_end(self, index_ref: IndexMap, inner_merge: bool | None = None) -> None:
        """Advance after a merge: an inner merge stores its objects for the split that follows."""
        if inner_merge is None or inner_merge:
            self.index_ref = index_ref

    def mapping_to(self, new: RefMap) -> dict[int, int] | None:
        """Outer index → new index of the objects that are still reachable; ``None`` in step 1."""
        return None if self.ref_index is None else new.moved_from(self.index_ref or {})

    def clear(self) -> None:
        """Drop all references."""
        self.ref_index = None
        self.index_ref = None


class _Entered(threading.local):
    """The contexts that a manager has entered in this thread."""

    def __init__(self) -> None:
        self.contexts: list[UpdateContext] = []


class _UpdateContextManager(contextlib.ContextDecorator):
    """Enters a fresh context each time; usable as a decorator."""

    def __init__(self, tag: Hashable) -> None:
        self.tag = tag
        self._entered = _Entered()

    def __reduce__(self) -> tuple[Any, ...]:
        return update_context, (self.tag,)

    def __enter__(self) -> UpdateContext:
        context = UpdateContext(self.tag)
        _stacks.by_tag.setdefault(self.tag, []).append(context)
        self._entered.contexts.append(context)
        return context

    def __exit__(self, *_: Any) -> None:
        if not self._entered.contexts:
            raise InternalError(
                f"internal error: there is no context with the tag {self.tag!r} to exit",
                found="an empty stack of contexts",
                expected="the context that was entered",
                do="exit each context in the thread that entered it",
            )
        context = self._entered.contexts.pop()
        stack = _stacks.by_tag.pop(self.tag)
        if rest := [each for each in stack if each is not context]:  # all contexts are equal
            _stacks.by_tag[self.tag] = rest
        context.clear()


def update_context(tag: Hashable) -> _UpdateContextManager:
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
    return _UpdateContextManager(tag)


def current_update_context(tag: Hashable) -> UpdateContext:
    """The innermost active context of a tag in this thread.

    Raises:
        GraphError: there is no such context; the message names the tag.
    """
    stack = _stacks.by_tag.get(tag)
    if not stack:
        raise GraphError(
            f"there is no active update context with the tag {tag!r}",
            found=f"the tags {list(_stacks.by_tag)} in this thread",
            expected=f"a `with plait.update_context({tag!r})` around the call",
            do="open the context in the same thread",
        )
    return stack[-1]


class SplitContext:
    """Splits of several roots with shared indices; created by ``split_context``."""

    __slots__ = ("_refs", "context")

    def __init__(self, context: UpdateContext | None) -> None:
        self.context = context
        self._refs: RefMap | None = None

    def __enter__(self) -> SplitContext:
        self._refs = RefMap()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        refs, self._refs = self._refs, None
        if kind is None and self.context is not None:
            assert refs is not None
            self.context.flatten_end(refs)

    def split(self, node: Any, *filters: FilterLiteral) -> Any:
        """``plait.split``, with indices shared with the other roots of the context."""
        graphdef, *groups = self.flatten(node, *filters)
        return (graphdef, *nested_groups(groups, is_leaf=not isinstance(graphdef, NodeDef)))

    def flatten(self, node: Any, *filters: FilterLiteral, with_paths: bool = True) -> Any:
        """``plait.flatten``, with indices shared with the other roots of the context.

        Raises:
            ArgumentError: in step 3, an object belongs to a different trace and did not come in by a merge.
        """
        if self._refs is None:
            raise _ended("split")
        graphdef, flat = flattened(node, self._refs, with_paths=with_paths)
        if self.context is not None:
            if self.context.index_ref is not None:  # step 3
                here, inner = current_trace(), [*self.context.index_ref.values()]
                own = {id(here), *(id(trace_of(item, here)) for item in inner)}  # traces: this one, and that of step 2
                others = [item for item in self._refs if id(trace_of(item, here)) not in own]
                check_no_captured_objects(CONTEXT, others, set(map(id, inner)), [node])
            graphdef = with_index_mapping(graphdef, self.context.mapping_to(self._refs))
        groups = group_leaves(flat, filters, exhaustive=True) if filters and with_paths else [flat]
        return (graphdef, *groups)


def _ended(verb: str) -> GraphError:
    return GraphError(
        f"a {verb} context was used after its with block",
        found="a context that has ended",
        expected="calls inside the block",
        do=f"open a new {verb}_context",
    )


class MergeContext:
    """Merges of several roots with shared indices; created by ``merge_context``. If the block raises, the caller's own
    objects are as before the first of them."""

    __slots__ = ("_index_ref", "_journal", "context", "inner")

    def __init__(self, context: UpdateContext | None, inner: bool | None = None) -> None:
        self.context = context
        self.inner = inner
        self._index_ref: IndexMap | None = None

    def __enter__(self) -> MergeContext:
        self._index_ref = IndexMap()
        self._journal = Journal()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._journal.__exit__(*raised)
        index_ref, self._index_ref = self._index_ref, None
        if raised[0] is None and self.context is not None:
            assert index_ref is not None
            self.context.unflatten_end(index_ref, self.inner)

    def merge(self, graphdef: GraphDef, state: Any, /, *states: Any) -> Any:
        """``plait.merge``, with indices shared with the other roots of the context.

        Raises:
            TraceContextError: an object of the caller that would change belongs to a different trace.
        """
        if self._index_ref is None:
            raise _ended("merge")
        leaves = leaves_of(graphdef, state, *states)
        cache = {new: item for new, item in self._refilled(graphdef).items() if new not in self._index_ref}
        if self.inner is None and not isinstance(graphdef, NodeRef):
            self.inner = _mapping_of(graphdef) is None
        with Journal(self._journal) as journal:
            return Builder(self._index_ref, cache, journal=journal).build(graphdef, leaves)

    def _refilled(self, graphdef: GraphDef) -> dict[int, Any]:
        """Index → the caller's own object, if this is an outer merge."""
        mapping = _mapping_of(graphdef)
        if self.inner or self.context is None or mapping is None:
            return {}
        assert self.context.ref_index is not None
        return self.context.ref_index.objects_at(mapping)

    def unflatten(self, graphdef: GraphDef, flat: Any, /, *flats: Any) -> Any:
        """``plait.unflatten``, with indices shared with the other roots of the context."""
        return self.merge(graphdef, flat, *flats)


def _mapping_of(graphdef: GraphDef) -> Mapping[int, int] | None:
    return getattr(graphdef, "index_mapping", None)


def split_context(ctxtag: Hashable | None = None) -> SplitContext:
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
    return SplitContext(None if ctxtag is None else current_update_context(ctxtag))


def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> MergeContext:
    """Merge several roots that share objects: the inverse of ``split_context``.

    Args:
        ctxtag: the tag of an active update context; the merges are one of its steps.
        inner: whether this is the merge inside the transform. By default it is the outer merge if a root has an index
            mapping, otherwise the inner one.
    """
    return MergeContext(None if ctxtag is None else current_update_context(ctxtag), inner)
