"""The kinds of values in a graph, and the two registries that determine them.

Each value in a walk is of exactly one kind, decided by its type and cached per type; of a method or partial, by its
owner and arguments. (rule G1)

* graph nodes have identity and may be shared or cyclic; a type must be registered itself, not through a base class;
* pytree nodes are values that are rebuilt: list, tuple, dict, ``None``, states, all containers registered with JAX,
  and methods and partials of nodes;
* variables and references are leaves with identity, arrays leaves without;
* everything else is static.

``self.act = self.gate`` stores a method that is bound to the module itself. Its owner is a reference like any other, so
a copy of the module gets a method of the copy; other methods are static values.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath, register_static

from ...core import hooks
from ...errors import GraphError, GraphTypeError, PlaitError
from ...typing import Node, Tree, TreeDef, Value
from ...util.jax_versions import is_mutable_array
from ...util.paths import Path, sort_key, sorted_keys
from ...util.static_values import same_static, static_key
from ...util.words import with_article
from ..variables.cells import Stamp
from ..variables.variables import Variable


class Kind(enum.Enum):
    """The kinds of values in a graph."""

    VARIABLE = "variable"
    GRAPH = "graph node"
    PYTREE = "pytree node"
    REF = "reference"
    ARRAY = "array"
    STATIC = "static value"


# What a node contains, in order: pairs of a key and a child. The keys are those of its type.
Children = Sequence[tuple[Any, Value]]
Flatten = Callable[[Node], tuple[Children, Any]]
SetKey = Callable[[Node, Any, Value], None]
PopKey = Callable[[Node, Any], Value]


@dataclasses.dataclass(frozen=True)
class GraphNodeImpl:
    """How a registered graph node type is flattened and rebuilt.

    ``stamp`` returns the object that records structural changes, or ``None`` for types that do not record them; walks
    over such nodes are never reused.
    """

    type: type
    flatten: Flatten
    set_key: SetKey
    pop_key: PopKey
    create_empty: Callable[[Any], Node]
    clear: Callable[[Node], None]
    init: Callable[[Node, Iterable[tuple[Any, Value]]], None]
    stamp: Callable[[Node], Stamp] | None = None


@dataclasses.dataclass(frozen=True)
class PytreeNodeImpl:
    """How a pytree node type is flattened and rebuilt; without setters, it is immutable for update and pop."""

    type: type
    flatten: Flatten
    unflatten: Callable[[Children, Any], Node]
    set_key: SetKey | None = None
    pop_key: PopKey | None = None


class GenericPytree:
    """Marker type for a container that is registered with JAX but not with plait.

    Example:
        >>> import collections
        >>> plait.graphdef(collections.OrderedDict(a=1)).type is plait.graph.GenericPytree
        True
    """


@dataclasses.dataclass(frozen=True)
class DataElem:
    """Wraps a child returned by a ``flatten`` callback, to treat it as data whatever its type.

    Example:
        >>> plait.graph.DataElem(2.0).value
        2.0
    """

    value: Value


@dataclasses.dataclass(frozen=True)
class StaticElem:
    """Wraps a child returned by a ``flatten`` callback, to treat it as static whatever its type.

    Example:
        >>> plait.graph.StaticElem((1, 2)).value
        (1, 2)
    """

    value: Value


def unwrapped(child: Value) -> Value:
    """A child returned by a ``flatten`` callback, without the wrapper that forces its kind."""
    kind = type(child)
    return child.value if kind is DataElem or kind is StaticElem else child


@register_static
class Static:
    """A pytree without leaves that holds one static value and compares by it.

    Example:
        >>> jax.tree.leaves(plait.graph.Static("relu"))
        []
    """

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash((Static, static_key(self.value)))

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


GRAPH_REGISTRY: dict[type, GraphNodeImpl] = {}
PYTREE_REGISTRY: dict[type, PytreeNodeImpl] = {}
_KINDS: dict[type, Kind] = {}
BY_VALUE: dict[type, Callable[[Value], Kind]] = {}  # types whose objects differ in kind, which is not cached
_STATIC_TYPES = (bool, int, float, complex, str, bytes, type, FunctionType, BuiltinFunctionType, MethodType, np.generic)


def register_graph_node_type(
    type: type,
    flatten: Flatten,
    set_key: SetKey,
    pop_key: PopKey,
    create_empty: Callable[[Any], Node],
    clear: Callable[[Node], None],
    init: Callable[[Node, Iterable[tuple[Any, Value]]], None],
    *,
    stamp: Callable[[Node], Stamp] | None = None,
) -> None:
    """Register a type of graph nodes: objects with identity that can be shared and cyclic.

    Args:
        type: the class; subclasses are not included.
        flatten: ``node -> (sequence of (key, child), metadata)``, in a deterministic order, metadata hashable.
        set_key: ``(node, key, value)`` stores a child; if both the old and the new child are variables, it updates the
            old one.
        pop_key: ``(node, key)`` removes and returns a child.
        create_empty: ``metadata -> node``, a node without children; must not run a user's ``__init__``.
        clear: ``node`` removes all content in place.
        init: ``(node, iterable of (key, child))`` fills an empty node.
        stamp: ``node -> Stamp``, for types that record their structural changes; without it, instances are walked again
            each time.

    Raises:
        GraphError: the type is already registered.

    Example:
        >>> class Box:
        ...     value = None
        >>> plait.graph.register_graph_node_type(
        ...     Box,
        ...     flatten=lambda box: ([("value", box.value)], None),
        ...     set_key=lambda box, key, value: setattr(box, key, value),
        ...     pop_key=lambda box, key: box.__dict__.pop(key),
        ...     create_empty=lambda metadata: Box(),
        ...     clear=lambda box: box.__dict__.clear(),
        ...     init=lambda box, children: box.__dict__.update(children),
        ... )
        >>> box = Box()
        >>> box.value = plait.Param(jnp.zeros(2))
        >>> plait.clone(box).value.shape
        (2,)
    """
    _check_unregistered(type, GRAPH_REGISTRY, Kind.GRAPH)
    GRAPH_REGISTRY[type] = GraphNodeImpl(type, flatten, set_key, pop_key, create_empty, clear, init, stamp)
    _KINDS[type] = Kind.GRAPH


def register_pytree_node_type(
    type: type,
    flatten: Flatten,
    unflatten: Callable[[Children, Any], Node],
    *,
    set_key: SetKey | None = None,
    pop_key: PopKey | None = None,
) -> None:
    """Register a type of pytree nodes of graphs: values without identity.

    Args:
        flatten: ``node -> (sequence of (key, child), metadata)``.
        unflatten: ``(sequence of (key, child), metadata) -> node``.
        set_key: stores a child in ``update``; without it, ``update`` treats the type as immutable.
        pop_key: removes a child in ``pop``; without it, ``pop`` treats the type as immutable.

    Raises:
        GraphError: the type is already registered.

    Example:
        >>> class Pair:
        ...     def __init__(self, first, second):
        ...         self.first, self.second = first, second
        >>> plait.graph.register_pytree_node_type(
        ...     Pair,
        ...     flatten=lambda pair: ([("first", pair.first), ("second", pair.second)], None),
        ...     unflatten=lambda children, metadata: Pair(*(child for _, child in children)),
        ... )
        >>> plait.state(Pair(jnp.zeros(2), 3))["first"].shape
        (2,)
    """
    _check_unregistered(type, PYTREE_REGISTRY, Kind.PYTREE)
    PYTREE_REGISTRY[type] = PytreeNodeImpl(type, flatten, unflatten, set_key, pop_key)
    if type not in GRAPH_REGISTRY:
        _KINDS[type] = Kind.PYTREE


def _check_unregistered(type: type, registry: Mapping[type, object], kind: Kind) -> None:
    if type in registry:
        raise GraphError(
            f"the {kind.value} type {type.__name__} is already registered",
            found="a second registration",
            expected="one registration per type",
            do="remove one of the two; subclasses of plait.Pytree register themselves",
        )


# Classes whose objects users have registered as data. Pytrees among them are still walked.
DATA_TYPES: set[type] = set()


def kind_of(value: Value) -> Kind:
    """The kind of a value."""
    return _KINDS.get(type(value)) or _classify(value)


def _classify(value: Value) -> Kind:
    """Determine the kind of a new type."""
    cls = type(value)
    if cls in BY_VALUE:
        return BY_VALUE[cls](value)
    if issubclass(cls, Variable):
        kind = Kind.VARIABLE
    elif cls in GRAPH_REGISTRY:
        kind = Kind.GRAPH
    elif cls in PYTREE_REGISTRY or issubclass(cls, tuple):
        kind = Kind.PYTREE
    elif issubclass(cls, jax.Array) or isinstance(value, jax.Array):
        # Tracers of references and of arrays have the same types, so this cannot be cached per type.
        return Kind.REF if is_mutable_array(value) else Kind.ARRAY
    elif is_mutable_array(value):
        return Kind.REF
    elif issubclass(cls, (np.ndarray, jax.ShapeDtypeStruct)) or (cls in DATA_TYPES and not _is_jax_container(value)):
        kind = Kind.ARRAY
    elif issubclass(cls, _STATIC_TYPES):
        kind = Kind.STATIC
    else:
        kind = Kind.PYTREE if _is_jax_container(value) else Kind.STATIC
    _KINDS[cls] = kind
    return kind


def _is_jax_container(value: Value) -> bool:
    return not jax.tree_util.all_leaves([value])


def get_node_impl(x: object) -> GraphNodeImpl | PytreeNodeImpl | None:
    """How ``x`` is flattened, or ``None`` for variables and values that are not nodes.

    Example:
        >>> plait.graph.get_node_impl([1]).type, plait.graph.get_node_impl(1)
        (<class 'list'>, None)
    """
    kind = kind_of(x)
    if kind is Kind.GRAPH:
        return GRAPH_REGISTRY[type(x)]
    if kind is Kind.PYTREE:
        return pytree_impl(type(x))
    return None


def pytree_impl(t: type) -> PytreeNodeImpl:
    """The entry for a type of pytree nodes."""
    return PYTREE_REGISTRY.get(t) or PYTREE_REGISTRY[GenericPytree]


# Built-in pytree nodes (rules G8, G9) ---------------------------------------------------------------------------------


def check_index(owner: object, key: Hashable, size: int, at: str | None = None) -> None:
    """Raise if a list or ``List`` of this size has no item at this index; a ``List`` can be extended by one."""
    places = size if isinstance(owner, list) else size + 1
    if not (isinstance(key, int) and 0 <= key < places):
        raise GraphError(
            f"Cannot set key {key!r} of a {type(owner).__name__}",
            at=at,
            found=f"a {type(owner).__name__} of length {size}",
            expected=f"an index below {places}",
            do="append the elements in order: layers.append(layer)",
        )


def updated_in_place(current: Value, value: Value) -> bool:
    """Update a child from its new value if both are variables; whether they are."""
    if not (isinstance(current, Variable) and isinstance(value, Variable)):
        return False
    current.update_from_state(value)
    return True


def _set_list_item(node: list[Value], key: int, value: Value) -> None:
    check_index(node, key, len(node))
    if not updated_in_place(node[key], value):
        node[key] = value


def set_item(node: MutableMapping[Hashable, Value], key: Hashable, value: Value) -> None:
    if not updated_in_place(node.get(key), value):
        node[key] = value


def _flatten_dict(node: dict[Any, Value]) -> tuple[Children, None]:
    try:
        return sorted(node.items(), key=_item_key), None
    except TypeError:
        return [(key, node[key]) for key in sorted_keys(node, "dict")], None


def _item_key(item: tuple[object, object]) -> tuple[int, str, Any]:
    return sort_key(item[0])


register_pytree_node_type(
    list, lambda node: (tuple(enumerate(node)), None), lambda items, _: [v for _, v in items], set_key=_set_list_item
)
register_pytree_node_type(
    tuple, lambda node: (tuple(enumerate(node)), None), lambda items, _: tuple(v for _, v in items)
)
register_pytree_node_type(
    dict, _flatten_dict, lambda items, _: dict(items), set_key=set_item, pop_key=MutableMapping.pop
)
register_pytree_node_type(type(None), lambda node: ((), None), lambda items, _: None)


def jax_key_to_key(entry: object) -> Any:
    """A JAX key entry as a key of a path: what JAX's own classes hold, and others like them; of the rest, the text."""
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return str(entry)


def jax_to_nnx_path(jax_path: KeyPath, /) -> Path:
    """A JAX key path as a plait path.

    Example:
        >>> (path, _), = jax.tree_util.tree_leaves_with_path({"a": [1]})
        >>> plait.graph.jax_to_nnx_path(path)
        ('a', 0)
    """
    return tuple(map(jax_key_to_key, jax_path))


@dataclasses.dataclass(frozen=True)
class _GenericMetadata:
    """How to rebuild a container: its JAX structure (or the class of a tuple not registered with JAX), and the original
    position of each sorted child."""

    treedef: TreeDef
    order: tuple[int, ...]

    def __repr__(self) -> str:
        return str(self.treedef)


def _flatten_generic(node: Node) -> tuple[Children, _GenericMetadata]:
    if isinstance(node, tuple) and not hasattr(node, "_fields") and not _is_jax_container(node):
        return list(enumerate(node)), _GenericMetadata(type(node), tuple(range(len(node))))
    pairs, treedef = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda x: x is not node)
    keys = [jax_key_to_key(path[0]) for path, _ in pairs]
    owner = type(node).__name__
    for key in keys:
        _check_hashable(key, owner)
    places = {key: place for place, key in enumerate(keys)}
    if len(places) != len(keys):
        raise GraphError(
            f"{with_article(owner)} gives two children the same key",
            found=f"the keys {keys}",
            expected="distinct keys",
            do="give each child a different key in jax.tree_util.register_pytree_with_keys",
        )
    order = tuple(places[key] for key in sorted_keys(keys, owner))
    return [(keys[i], pairs[i][1]) for i in order], _GenericMetadata(treedef, order)


def _check_hashable(key: Hashable, owner: str) -> None:
    try:
        hash(key)
    except TypeError as error:
        raise GraphError(
            f"{with_article(owner)} has a key that cannot be hashed",
            found=f"key {key!r} of type {type(key).__name__}",
            expected="keys that are integers or strings",
            do="register the class with hashable key entries",
        ) from error


def _unflatten_generic(items: Children, metadata: _GenericMetadata) -> Node:
    children: list[Value] = [None] * len(items)
    for position, (_, child) in zip(metadata.order, items, strict=True):
        children[position] = child
    if isinstance(metadata.treedef, type):
        return tuple.__new__(metadata.treedef, children)
    return jax.tree_util.tree_unflatten(metadata.treedef, children)


register_pytree_node_type(GenericPytree, _flatten_generic, _unflatten_generic)


def check_node(node: Node, operation: str) -> None:
    """Raise if the root is not a node, variable or array.

    Raises:
        GraphTypeError: names the operation and the type.
    """
    if kind_of(node) is Kind.STATIC:
        raise not_a_node(GraphTypeError, node, operation)


def not_a_node(error: type[PlaitError], node: Node, operation: str) -> PlaitError:
    """The error of a graph operation whose argument is not a graph."""
    return error(
        f"{operation} takes a module, a variable or a container of them",
        found=f"{node!r:.80} of type {type(node).__name__}",
        expected="a plait.Module (or another plait.Pytree), a Variable, an array, or a list, tuple or dict of these",
        do="pass the module itself, or a container of modules",
    )


def change_of(verb: str, owner: Node, key: Hashable, value: Value, at: str) -> Callable[..., Any]:
    """The function that sets or pops (``verb``) a child of an owner, as registered for its type.

    Raises:
        GraphError: the owner is immutable.
    """
    change = getattr(get_node_impl(owner), f"{verb}_key")
    if change is None:
        raise GraphError(
            f"Cannot {verb} key {key!r} of a {type(owner).__name__}, which is immutable",
            at=at,
            found=f"a {type(value).__name__} in a {type(owner).__name__}",
            expected="an entry of a module, or of a container that can be changed in place",
            do="replace the whole container on its owner",
        )
    return change


_IDENTIFIED = (Kind.VARIABLE, Kind.GRAPH)


def is_bound(value: Value) -> bool:
    """Whether a value is a method or partial of a node or variable."""
    return type(value) in BY_VALUE and _refers(value)


def _refers(value: Value) -> bool:
    """Whether a value is a node or variable, or a method, partial or plain container of such values."""
    cls = type(value)
    if cls is MethodType:
        return _refers(value.__self__)
    if cls is functools.partial:
        return any(map(_refers, (value.func, value.args, value.keywords)))
    if cls is list or cls is tuple or cls is dict:
        return any(map(_refers, value.values() if cls is dict else value))
    return kind_of(value) in _IDENTIFIED


def _kind(value: Value) -> Kind:
    return Kind.PYTREE if _refers(value) else Kind.STATIC


def _partial(args: tuple[Tree, ...], func: Callable[..., Tree], keywords: dict[str, Tree]) -> functools.partial[Tree]:
    return functools.partial(func, *args, **keywords)


def _parts(method: MethodType) -> tuple[Children, None]:
    return (("__func__", StaticElem(method.__func__)), ("__self__", method.__self__)), None


BY_VALUE.update({MethodType: _kind, functools.partial: _kind})
PYTREE_REGISTRY[MethodType] = PytreeNodeImpl(
    MethodType,
    _parts,
    lambda items, _: MethodType(*(child for _, child in items)),
)
PYTREE_REGISTRY[functools.partial] = PytreeNodeImpl(
    functools.partial,
    lambda node: ((("args", node.args), ("func", node.func), ("keywords", node.keywords)), None),
    lambda items, _: _partial(**dict(items)),
)


def after_their_owners(items: list[tuple[str, Value]]) -> list[tuple[str, Value]]:
    """The attributes of a node, with methods and partials last if the other attributes lead to all that they refer to,
    which then has its path without them."""
    bound = [item for item in items if is_bound(item[1])]
    if not bound:
        return items
    known = _ids_of([value for _, value in items if not is_bound(value)], inside=True)
    late = [item for item in bound if _ids_of([item[1]], inside=False) <= known]
    names = [name for name, _ in late]
    return [*(item for item in items if item[0] not in names), *late]


def _ids_of(values: list[Value], *, inside: bool) -> set[int]:
    """The identities of the nodes and variables in some values.

    Args:
        inside: whether also of those inside these nodes.
    """
    found: set[int] = set()
    while values:
        value = values.pop()
        kind = kind_of(value)
        if kind in _IDENTIFIED:
            if inside and id(value) not in found and kind is Kind.GRAPH:
                values += [*getattr(value, "__dict__", {}).values(), *getattr(value, "_pytree__elements", ())]
            found.add(id(value))
        elif kind is Kind.PYTREE and value is not None:
            values += [unwrapped(child) for _, child in pytree_impl(type(value)).flatten(value)[0]]
    return found


class Place:
    """The position of a value in a graph.

    Attributes:
        owner: the place of the node that contains the value; ``None`` for the root.
        key: the value's key in its owner.
        value: the value, without the wrapper that forces its kind.
        kind: its kind; data that is not an array counts as an array.
        first: the first place of the same object if it occurred before, otherwise ``None``.
        enter: whether its children come next; a loop over ``visit`` may set it to ``False``.
    """

    __slots__ = ("enter", "first", "key", "kind", "owner", "value")

    def __init__(self, owner: Place | None, key: Hashable, value: Value) -> None:
        wrapper = type(value)
        if wrapper is DataElem or wrapper is StaticElem:
            value = value.value
        kind = kind_of(value)
        if wrapper is DataElem and kind is Kind.STATIC:
            kind = Kind.ARRAY
        self.owner, self.key, self.value, self.kind = owner, key, value, kind
        self.first: Place | None = None
        self.enter = kind is Kind.GRAPH or (kind is Kind.PYTREE and value is not None)

    @property
    def path(self) -> Path:
        """The keys from the root to here."""
        keys = []
        place = self
        while place.owner is not None:
            keys.append(place.key)
            place = place.owner
        return tuple(reversed(keys))


def has_identity(value: Value, kind: Kind) -> bool:
    """Whether walks compare a value by identity: graph nodes, variables and references. (G1)"""
    return kind is Kind.VARIABLE or kind is Kind.GRAPH or kind is Kind.REF


def children_of(node: Node) -> Iterable[tuple[Any, Value]]:
    """The children of a node with their keys, in the order of the walk, as its type registered them."""
    impl = get_node_impl(node)
    return () if impl is None else impl.flatten(node)[0]


def children_if_any(node: Node) -> Iterable[tuple[Any, Value]]:
    """The same, or no children if the node cannot be walked; the walk itself raises the error."""
    try:
        return children_of(node)
    except GraphError:
        return ()


def visit(
    root: Node,
    *,
    is_shared: Callable[[Value, Kind], bool] = has_identity,
    children: Callable[[Node], Iterable[tuple[Any, Value]]] = children_of,
) -> Iterator[Place]:
    """Every place of a graph, owners first.

    Args:
        root: any value.
        is_shared: ``(value, kind) -> bool``: which values count as the same object at all places; other values are new
            each time, but for a plain container that contains itself, which is not entered again.
        children: returns the children of a node; it may omit nodes that cannot be entered.

    Raises:
        SharingError: a layer of a stack is in the graph twice. Not if other ``children`` are given, which is for code
            that looks at any graph, such as that of errors.
    """
    if children is children_of:
        check_walk(root)
    return places(root, is_shared, children)


def check_walk(root: Node) -> None:
    """Raise if a graph must not be walked.

    Raises:
        SharingError: a layer of a stack is in it twice; names both paths.
    """
    if hooks.after_walk is not None:
        hooks.after_walk(root, None)


def places(
    root: Node,
    is_shared: Callable[[Value, Kind], bool] = has_identity,
    children: Callable[[Node], Iterable[tuple[Any, Value]]] = children_of,
) -> Iterator[Place]:
    """``visit`` without the check."""
    met: dict[int, Place] = {}
    plain: dict[int, Place] = {}
    stack = [Place(None, None, root)]
    while stack:
        place = stack.pop()
        if is_shared(place.value, place.kind):
            first = met.setdefault(id(place.value), place)
            if first is not place:
                place.first, place.enter = first, False
        elif place.enter and plain.setdefault(id(place.value), place) is not place:  # shared, or in a cycle
            place.first = _same_above(place)
            place.enter = place.first is None
        yield place
        if place.enter:
            stack.extend(reversed([Place(place, key, child) for key, child in children(place.value)]))


def _same_above(place: Place) -> Place | None:
    """The place of the plain container that contains itself here; the walk refuses such a container."""
    owner = place.owner
    while owner is not None and owner.kind is Kind.PYTREE:
        if owner.value is place.value:
            return owner
        owner = owner.owner
    return None


def children_first(places: Iterable[Place]) -> Iterator[Place]:
    """The same places with children before their owners, the root last."""
    opened: list[Place] = []
    for place in places:
        while opened and opened[-1] is not place.owner:
            yield opened.pop()
        opened.append(place)
    yield from reversed(opened)


def iter_graph_nodes(root: Node) -> Iterator[tuple[Path, Value]]:
    """Every graph node below and including ``root``, once, at its first path; owners before their children."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.GRAPH and place.first is None)


def iter_variables(root: Node) -> Iterator[tuple[Path, Value]]:
    """Every variable below and including ``root``, once, at its first path, in the order of the walk."""
    return ((place.path, place.value) for place in visit(root) if place.kind is Kind.VARIABLE and place.first is None)
