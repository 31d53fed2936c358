"""Graphdefs: the static half of a graph, interned so that equal structures are one object.

A graphdef describes types, static attributes, variable metadata, sharing and cycles, but not values, shapes or dtypes.
Parts are built bottom-up and looked up in one table of weak references, keyed by their own parts, which are already
interned. So equality and hash are as cheap as for a pointer, no matter how deep the graph is. A part with a static
value that cannot be hashed is not interned: it is compared by content, and hashing it raises an error with the path.
(rules G11 to G17; ``docs/decisions/0001-interned-structure.md``)
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from jax.tree_util import register_static

from ...typing import Value
from ...util.named import from_named, to_named
from ...util.paths import Path
from ...util.repr import Text, render_object, repr_fields, repr_leaf
from ...util.static_values import BY_VALUE, HashableMapping, closures_in, content_key, static_key

N = TypeVar("N")
T = TypeVar("T")


# A path under construction is a linked list, (link to the owner, key), so deep graphs do not need quadratic memory.
Link: TypeAlias = "tuple[Link, Hashable] | None"


def path_of(link: Link) -> Path:
    """The path of a link."""
    keys = []
    while link is not None:
        link, key = link
        keys.append(key)
    return tuple(reversed(keys))


class _Ref(weakref.ref["_Part"]):
    """A weak reference to a part, with the part's key in the table."""

    __slots__ = ("number",)
    number: int


# Hash of the key → parts with that hash. ``_intern`` adds entries; an entry is removed when its part dies; the table
# keeps nothing alive. The key itself is stored only on its part, because it may reference a model (a bound method as a
# static attribute), and the model may reference the part.
_TABLE: dict[int, tuple[_Ref, ...]] = {}
_LOCK = threading.RLock()  # re-entrant: garbage collection inside may run ``_forget``


def _intern(key: Hashable, make: Callable[..., Any], *args: Any) -> Any:
    """The existing part with this key, or a new one."""
    number = hash(key)
    own = None
    while True:
        bucket = _TABLE.get(number, ())
        for ref in bucket:
            part = ref()
            if part is not None and part._key == key:
                return part
        if own is None:
            made = make(*args)
            made._key = key
            own = _Ref(made, _forget)
            own.number = number
        with _LOCK:
            if _TABLE.get(number, ()) is bucket:  # otherwise another thread was faster, perhaps with this very part
                _TABLE[number] = (*bucket, own)
                return own()


def _forget(dead: _Ref) -> None:
    with _LOCK:
        rest = tuple(ref for ref in _TABLE.get(dead.number, ()) if ref is not dead)
        if rest:
            _TABLE[dead.number] = rest
        else:
            _TABLE.pop(dead.number, None)


class _Part:
    """A piece of a graphdef. ``_key`` is ``None`` if the part could not be interned.

    This is the case if it contains a static value that cannot be hashed, and so may change in place. Such parts are
    equal if their contents were equal when they were created.
    """

    __slots__ = ("__weakref__", "_key")
    _fields: tuple[str, ...] = ()
    _key: Hashable

    def __init__(self, *values: object) -> None:
        self._key = None
        for name, value in zip(self._fields, values, strict=True):
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name in self._fields:
            raise AttributeError(f"{type(self).__name__}.{name} cannot be assigned: graphdefs are immutable")
        object.__setattr__(self, name, value)

    def __eq__(self, other: Any) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        if self._key is not None or other._key is not None:
            return False  # an interned part is equal only to itself
        return all(map(operator.eq, _contents(self), _contents(other)))

    def __hash__(self) -> int:
        return object.__hash__(self) if self._key is not None else hash(tuple(_contents(self)))

    def __repr__(self) -> str:
        return repr_fields(type(self).__name__, [(name, Text(_show(value))) for name, value in self._pytree__fields()])

    def _pytree__fields(self) -> list[tuple[str, object]]:
        return [(name, getattr(self, name)) for name in self._fields if getattr(self, name) is not None]

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        fields = [(k, dict(v) if isinstance(v, HashableMapping) else v) for k, v in self._pytree__fields()]
        return render_object(type(self), fields, path, subtree_renderer)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), tuple(to_named(getattr(self, name)) for name in self._fields))

    def __deepcopy__(self, memo: dict[int, object]) -> _Part:
        return self  # it is immutable


def _show(value: object) -> str:
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple) and any(isinstance(item, _Part) for item in value):
        return repr_fields("", [("", item) for item in value], brackets="()")
    if isinstance(value, HashableMapping):
        return repr(dict(value))
    return repr_leaf(value)


class GraphDef(_Part, Generic[N]):
    """The static, hashable description of a graph: types, static attributes, variable metadata and sharing.

    Equal structures have equal graphdefs, whichever objects they come from; values, shapes and dtypes are not included.
    JAX treats a graphdef as static. In annotations, ``GraphDef[Model]`` states which class it describes.

    Example:
        >>> a, b = (plait.Linear(2, 3, rngs=plait.Rngs(seed)) for seed in (0, 1))
        >>> plait.graphdef(a) == plait.graphdef(b)
        True
    """

    # Computed on first use and never pickled: the number of leaves, the plan of ``unflatten.py``, the places of
    # ``state_leaves.py``. ``_plain`` is the same graphdef without its index mapping.
    __slots__ = ("_num_leaves", "_places", "_plain", "_plan")

    type: Any
    index: int | None
    apply: ClassVar[Callable[..., Any]]  # set by core/states

    @property
    def nodes(self) -> tuple[NodeDef | NodeRef | VariableDef, ...]:
        """All nodes, back-references and variables, in the order of the walk."""
        return tuple(part for part in iter_parts(self) if isinstance(part, (NodeDef, NodeRef, VariableDef)))

    @property
    def num_leaves(self) -> int:
        """How many leaves a matching state has."""
        return cached_on(self, "_num_leaves", _count_leaves)


def _count_leaves(graphdef: GraphDef) -> int:
    return sum(isinstance(part, (VariableDef, LeafDef)) for part in iter_parts(graphdef))


@register_static
class NodeDef(GraphDef):
    """A graph node or pytree node.

    Attributes:
        type: the class, or ``GenericPytree``.
        index: number in the walk for graph nodes, ``None`` for pytree nodes.
        attributes: the entries, in walk order.
        metadata: what the type's ``flatten`` returned in addition to the children.
        index_mapping: outer index → new index, only on a root inside an update context.
    """

    __slots__ = _fields = ("type", "index", "attributes", "metadata", "index_mapping")

    attributes: tuple[SubGraphAttribute | LeafAttribute | StaticAttribute, ...]
    metadata: Any
    index_mapping: HashableMapping[int, int] | None


@register_static
class NodeRef(GraphDef):
    """A back-reference to a node or variable that was visited before."""

    __slots__ = _fields = ("type", "index")


@register_static
class VariableDef(GraphDef):
    """A variable: its class, index and metadata."""

    __slots__ = _fields = ("type", "index", "metadata", "index_mapping")

    metadata: HashableMapping[str, object]
    index_mapping: HashableMapping[int, int] | None


@register_static
class LeafDef(GraphDef):
    """An array, reference or data leaf; ``index`` is set only for references, which have identity."""

    __slots__ = _fields = ("index",)
    type = None


class _Attribute(_Part):
    """One entry of a node: a key and the definition of its child."""

    __slots__ = _fields = ("key", "value")

    key: Hashable
    value: Value


@register_static
class SubGraphAttribute(_Attribute):
    """A child that is a node, or a back-reference to one."""

    __slots__ = ()
    value: NodeDef | NodeRef


@register_static
class LeafAttribute(_Attribute):
    """A child that is a leaf: a variable, a back-reference to one, or an array marker."""

    __slots__ = ()
    value: VariableDef | NodeRef | LeafDef


@register_static
class StaticAttribute(_Attribute):
    """A child that is a static value.

    Attributes:
        has_closures: whether what it closes over may change.
        _content: the key of a value that cannot be hashed, taken during the walk.
    """

    __slots__ = ("_content", "has_closures")

    def __init__(self, key: Hashable, value: Value) -> None:
        super().__init__(key, value)
        self.has_closures = any(closures_in(value))


def _make_attribute(cls: type[_Attribute], key: Hashable, value: GraphDef) -> Any:
    """The interned entry of a sub-node or leaf."""
    if value._key is None:
        return cls(key, value)
    # In the key, an interned part is represented by its id. The new part references it, so the id stays valid.
    return _intern((cls, type(key), key, id(value)), cls, key, value)


sub_graph_attribute: Callable[[Hashable, GraphDef], SubGraphAttribute] = functools.partial(
    _make_attribute, SubGraphAttribute
)
leaf_attribute: Callable[[Hashable, GraphDef], LeafAttribute] = functools.partial(_make_attribute, LeafAttribute)


def _own_key(value: object) -> Hashable:
    """The ``static_key`` of a value; most are numbers, texts, or empty."""
    kind = type(value)
    return (kind, value) if kind in BY_VALUE or (kind is tuple and not value) else static_key(value)


def static_attribute(key: Hashable, value: object, *, exact: bool = True) -> StaticAttribute:
    """The interned entry of a static value; ``exact`` as for ``static_key``."""
    try:
        own = _own_key(value) if exact else static_key(value, exact=False)
        identity = (StaticAttribute, type(key), key, own)
        return _intern(identity, StaticAttribute, key, value)
    except TypeError:
        attribute = StaticAttribute(key, value)
        attribute._content = content_key(value)
        return attribute


def node_def(type: Any, index: int | None, attributes: tuple[_Attribute, ...], metadata: object) -> NodeDef:
    """The interned definition of a node."""
    try:
        if all(entry._key is not None for entry in attributes):
            identity = (NodeDef, type, index, tuple(map(id, attributes)), _own_key(metadata))
            return _intern(identity, NodeDef, type, index, attributes, metadata, None)
    except TypeError:
        pass
    return NodeDef(type, index, attributes, metadata, None)


def node_ref(type: Any, index: int) -> NodeRef:
    """The interned back-reference."""
    return _intern((NodeRef, type, index), NodeRef, type, index)


def variable_def(type: Any, index: int, metadata: HashableMapping[str, object]) -> VariableDef:
    """The interned definition of a variable."""
    try:
        key = metadata._key or metadata.key()
        return _intern((VariableDef, type, index, key), VariableDef, type, index, metadata, None)
    except TypeError:
        return VariableDef(type, index, metadata, None)


def leaf_def(index: int | None = None) -> LeafDef:
    """The interned array marker; with an index, a reference."""
    return _intern((LeafDef, index), LeafDef, index)


def with_index_mapping(graphdef: GraphDef, mapping: Mapping[int, int] | None) -> GraphDef:
    """The same definition with a different index mapping on its root. A back-reference has no index mapping."""
    frozen = None if mapping is None else HashableMapping(mapping)
    if not isinstance(graphdef, (NodeDef, VariableDef)) or graphdef.index_mapping == frozen:
        return graphdef
    plain = getattr(graphdef, "_plain", graphdef)
    if frozen is None:
        return plain
    if plain._key is None:
        return _mapped(plain, frozen)
    return _intern((type(plain), id(plain), frozen), _mapped, plain, frozen)


def _mapped(plain: NodeDef | VariableDef, mapping: HashableMapping[int, int]) -> GraphDef:
    graphdef = type(plain)(*(getattr(plain, name) for name in plain._fields[:-1]), mapping)
    object.__setattr__(graphdef, "_plain", plain)  # keeps the id in the key valid
    return graphdef


_MAKERS: dict[type, Callable[..., _Part]] = {
    NodeRef: node_ref,
    LeafDef: leaf_def,
    SubGraphAttribute: sub_graph_attribute,
    LeafAttribute: leaf_attribute,
    StaticAttribute: static_attribute,
}


def _rebuild(cls: type[_Part], fields: tuple[Any, ...]) -> _Part:
    """Unpickle a part into the table."""
    fields = tuple(map(from_named, fields))
    if cls in _MAKERS:
        return _MAKERS[cls](*fields)
    plain = node_def(*fields[:-1]) if cls is NodeDef else variable_def(*fields[:-1])
    return with_index_mapping(plain, fields[-1])


def cached_on(graphdef: GraphDef, name: str, make: Callable[[GraphDef], T]) -> T:
    """The result of ``make`` for a graphdef, cached on it; an index mapping does not affect it."""
    graphdef = getattr(graphdef, "_plain", graphdef)
    found = getattr(graphdef, name, None)
    if found is None:
        found = make(graphdef)
        object.__setattr__(graphdef, name, found)
    return found


def iter_places(root: GraphDef) -> Iterator[tuple[Link, Any]]:
    """All definitions and static attributes of a graphdef with their links, in the order of the walk."""
    stack: list[tuple[Link, Any]] = [(None, root)]
    while stack:
        link, part = stack.pop()
        yield link, part
        if type(part) is NodeDef:
            for entry in reversed(part.attributes):
                stack.append(((link, entry.key), entry if type(entry) is StaticAttribute else entry.value))


def iter_parts(root: GraphDef) -> Iterator[GraphDef]:
    """All definitions of a graphdef in the order of the walk."""
    return (part for _, part in iter_places(root) if type(part) is not StaticAttribute)


def _contents(part: _Part) -> Iterator[object]:
    """The contents by which a part that is not interned is compared: the same for equal parts, without recursion."""
    stack: list[_Part] = [part]
    while stack:
        part = stack.pop()
        if part._key is not None:
            yield id(part)
        elif isinstance(part, StaticAttribute):
            yield type(part.key), part.key, part._content
        elif isinstance(part, _Attribute):
            yield type(part), type(part.key), part.key
            stack.append(part.value)
        elif isinstance(part, NodeDef):
            yield part.type, part.index, part.index_mapping, len(part.attributes), content_key(part.metadata)
            stack.extend(reversed(part.attributes))
        elif isinstance(part, VariableDef):
            yield part.type, part.index, part.index_mapping, content_key(dict(part.metadata))
