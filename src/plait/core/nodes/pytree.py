"""``Pytree``, the base class of all plait objects: graph nodes, and JAX pytrees.

Attributes are stored in the instance's ``__dict__``. plait's data about an object (its trace, version and explicit
marks) is stored in a separate ``NodeInfo``, which is also the object's stamp. (rules G58 to G66)
"""

from __future__ import annotations

import copy
import copyreg
import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey

from ...errors import (
    ArgumentError,
    ArgumentTypeError,
    ReplacedVariableWarning,
)
from ...typing import Node, Value
from ...util.jax_versions import trace_state
from ...util.named import from_named, to_named
from ...util.notices import warn
from ...util.paths import sort_key
from ...util.repr import repr_fields
from ...util.sentinels import NOTHING
from ...util.static_values import HashableMapping, same_static
from ...util.words import describe_type, name_of_class
from ..traces.guard import check_trace, known_path, raise_foreign_trace
from ..variables.cells import ARRAYS, NodeInfo, UnseenInfo, is_gone, mark_changed, run_through, unusable
from ..variables.variables import Variable
from .attributes import (
    DATA,
    STATIC,
    Mark,
    check_no_marks_inside,
    check_static,
    declared_statuses,
    holds_data,
    is_data,
    is_only_abstract,
)
from .jax_flattening import check_no_cycle, hide_static, show_static, watched
from .nodes import (
    DataElem,
    Kind,
    StaticElem,
    after_their_owners,
    check_walk,
    kind_of,
    register_graph_node_type,
    updated_in_place,
)

# Where plait stores its data about an object and its class.
RESERVED = frozenset({"_pytree__info", "_pytree__walks", "_pytree__elements", "_pytree__declared", "_pytree__is_tree"})


_NUMBERS = frozenset({bool, int, float, complex})  # in place of data they are data
_PLAIN_CONTAINERS = (list, tuple, dict)
_PLAIN_VALUES = (bool, int, float, str, type(None))


class Pytree:
    """Base class of all plait objects: a graph node, and a JAX pytree unless the class is defined with
    ``pytree=False``.

    Example:
        >>> class Point(plait.Pytree):
        ...     def __init__(self, x, name):
        ...         self.x, self.name = jnp.asarray(x), name
        >>> jax.tree.map(lambda leaf: leaf * 2, Point([1, 2], "p")).x.tolist()
        [2, 4]
    """

    # Python stores the parameters of a generic class, ``Net[int]()``, in ``__orig_class__`` of the object. As a slot it
    # is not an attribute of the graph, so the graphdef stays equal to that of ``Net()``.
    __slots__ = ("__orig_class__", "__weakref__", "_pytree__info", "_pytree__walks")

    _pytree__info: NodeInfo
    _pytree__declared: ClassVar[dict[str, str]] = {}
    _pytree__is_tree: ClassVar[bool] = True
    _pytree__takes_parts: ClassVar[bool] = False  # whether ``update`` adds a dict of variables under a new name

    def __init_subclass__(cls, *, pytree: bool | None = None, _slots: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.__dict__.get("__slots__") and not _slots:
            raise ArgumentTypeError(
                f"{cls.__name__} defines __slots__",
                found=f"__slots__ = {cls.__dict__['__slots__']!r}",
                expected="attributes in __dict__, where plait can find them",
                do="remove __slots__ from the class",
            )
        if "__new__" in cls.__dict__:
            cls.__new__ = _with_info(cls.__new__)
        if pytree is not None:
            cls._pytree__is_tree = pytree
        cls._pytree__declared = declared_statuses(cls) if cls._pytree__is_tree else {}
        register_graph_node_type(
            cls,
            cls._pytree__graph_flatten,
            cls._pytree__graph_set_key,
            cls._pytree__graph_pop_key,
            cls._pytree__graph_create_empty,
            cls._pytree__graph_clear,
            cls._pytree__graph_init,
            stamp=own_info,
        )
        if cls._pytree__is_tree:
            jax.tree_util.register_pytree_with_keys(
                cls, cls._pytree__flatten_with_keys, cls._pytree__unflatten, cls._pytree__flatten
            )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        new = super().__new__  # of another base, if one has it
        return empty_object(cls) if new is _new else _with_info(new)(cls, *args, **kwargs)

    def __setattr__(self, name: str, value: Value) -> None:
        try:
            info = self._pytree__info
        except AttributeError:  # within a __new__
            info = _made_info(self)
        if info.trace is not trace_state.value:
            raise_foreign_trace(info.trace, self, f"set the attribute {name!r} of a")
        status = None
        if type(value) is Mark:
            status, value = value.status, value.value
            if value is NOTHING:
                raise ArgumentTypeError(
                    f"{status}() was assigned without a value",
                    at=f"{type(self).__name__}.{name}",
                    found=f"plait.{status}()",
                    expected=f"plait.{status}(value)",
                    do=f"pass the value: self.{name} = plait.{status}(value)",
                )
            if not self._pytree__is_tree:
                status = None
        known = status or (info.marks and info.marks.get(name)) or self._pytree__declared.get(name)
        kind, before = type(value), self.__dict__.get(name, NOTHING)
        if kind in _NUMBERS and before is not NOTHING and known is None and self._pytree__is_tree and is_data(before):
            known = status = DATA
        if kind in _PLAIN_CONTAINERS:
            check_no_marks_inside(value, name, type(self))
        if (
            (kind is jax.ShapeDtypeStruct or kind in _PLAIN_CONTAINERS)
            and known is None
            and is_only_abstract(value)
            and (before is NOTHING or not holds_data(before))
        ):
            known = status = STATIC
        if known is STATIC or known == STATIC:
            check_static(value, name, type(self))
        if before is NOTHING and name in RESERVED:
            raise ArgumentError(
                f"the attribute name {name!r} is reserved",
                at=f"{type(self).__name__}.{name}",
                found=f"an assignment to {name!r}",
                expected=f"any name but {sorted(RESERVED)}",
                do=f"choose another name, for example {name.lstrip('_')!r}",
            )
        if info.version and info.structure_error is not None and (status is not None or not _same_plain(before, value)):
            check_not_fixed(self)
        if isinstance(before, Variable) and isinstance(value, ARRAYS):
            _warn_of_replaced(self, name, before)
        if status is not None:
            info = own_info(self)
            info.marks = {**(info.marks or {}), name: status}
        object.__setattr__(self, name, value)
        info = self._pytree__info  # read again: a walk in another thread may have replaced it by the node's own info
        if info.version and (status is not None or not _same_plain(before, value)):
            mark_changed(info)

    def __delattr__(self, name: str) -> None:
        info = self._pytree__info
        check_trace(info.trace, self, f"delete the attribute {name!r} of a")
        check_not_fixed(self)
        object.__delattr__(self, name)
        if info.marks:
            info.marks.pop(name, None)
        mark_changed(self._pytree__info)

    # As a graph node --------------------------------------------------------------------------------------------------

    def _pytree__graph_flatten(self) -> tuple[list[tuple[str, Value]], Any]:
        items = after_their_owners(sorted(self.__dict__.items()))
        marks = self._pytree__info.marks
        if not marks and not self._pytree__declared:
            return items, None
        statuses = {**self._pytree__declared, **(marks or {})}
        for position, (name, value) in enumerate(items):
            status = statuses.get(name)
            if status == STATIC:
                check_static(value, name, type(self))
                items[position] = (name, StaticElem(value))
            elif status == DATA and kind_of(value) is Kind.STATIC:
                items[position] = (name, DataElem(value))
        return items, _in_order(marks) if marks else None

    def _pytree__graph_set_key(self, key: Any, value: Value) -> None:
        if updated_in_place(self.__dict__.get(key), value):
            return
        if not isinstance(key, str):
            raise self._pytree__no_such_key("set", key)
        check_kept_status(self, key, value)
        setattr(self, key, Mark(DATA, value, {}) if key not in self.__dict__ and is_only_abstract(value) else value)

    def _pytree__graph_pop_key(self, key: Any) -> Value:
        if key not in self.__dict__:
            raise self._pytree__no_such_key("pop", key)
        value = self.__dict__[key]
        delattr(self, key)
        return value

    def _pytree__no_such_key(self, verb: str, key: Hashable) -> ArgumentError:
        return ArgumentError(
            f"Cannot {verb} key {key!r} of {describe_type(self)}",
            found=f"a key of type {type(key).__name__}, and the attributes {sorted(self.__dict__)}",
            expected="an attribute name" if verb == "set" else "an existing attribute",
            do="check the path",
        )

    @classmethod
    def _pytree__graph_create_empty(cls, metadata: Any) -> Self:
        return empty_object(cls, metadata)

    def _pytree__graph_clear(self) -> None:
        self.__dict__.clear()
        self._pytree__info.marks = None
        self._pytree__info.mark_rebuilt()

    def _pytree__graph_init(self, children: Iterable[tuple[str, Value]]) -> None:
        self.__dict__.update(children)
        self._pytree__info.mark_rebuilt()

    # As a JAX pytree (rule G63) ---------------------------------------------------------------------------------------

    def _pytree__parts(self) -> tuple[list[Value], Hashable]:
        """Children in name order, and the static part."""
        names, children, rest, methods = [], [], {}, []
        marks = self._pytree__info.marks
        statuses = {**self._pytree__declared, **marks} if marks else self._pytree__declared
        for name, value in sorted(self.__dict__.items()):
            status, kind = statuses.get(name), kind_of(value)
            if type(value) is MethodType and value.__self__ is self:
                methods.append((name, value.__func__))
                continue
            is_container = kind is Kind.PYTREE and status is None
            if is_container:
                is_static = value is None or not holds_data(value, (name,))
            else:
                is_static = status == STATIC or (kind is Kind.STATIC and status != DATA)
            if is_static:
                rest[name] = value
            else:
                names.append(name)
                children.append(hide_static(value, name) if is_container else value)
        return children, _TreeAux((*names,), HashableMapping(rest), _in_order(marks) if marks else (), (*methods,))

    @staticmethod
    def _pytree__keys(aux: Any) -> list[Hashable]:
        return [*map(GetAttrKey, aux.names)]

    def _pytree__flatten_with_keys(self) -> Any:
        children, aux = self._pytree__parts()
        check_no_cycle(self)
        check_walk(self)
        return [*zip(self._pytree__keys(aux), children, strict=True)], aux

    def _pytree__flatten(self) -> Any:
        children, aux = self._pytree__parts()
        return watched(self, children), aux

    @classmethod
    def _pytree__unflatten(cls, aux: Any, children: Iterable[Value]) -> Self:
        node = empty_object(cls, aux.marks)
        attributes = node.__dict__
        for name, child in zip(aux.names, children, strict=True):
            attributes[name] = show_static(child)
        attributes.update(aux.static._items)
        attributes.update((name, MethodType(function, node)) for name, function in aux.methods)
        return node

    # Copies and text --------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, object]:
        check_walk(self)
        return {"attributes": dict(self.__dict__), "marks": self._pytree__info.marks}

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self).__reduce__ is not object.__reduce__:  # from a subclass, or from another base of it
            return self.__reduce__()
        return copyreg.__newobj__, (type(self),), to_named(self.__getstate__())  # type: ignore[attr-defined]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(from_named(state["attributes"]))
        info = own_info(self)
        info.marks = state["marks"]
        mark_changed(info)

    def __copy__(self) -> Self:
        node = empty_object(type(self), self._pytree__info.marks)
        node.__setstate__(self.__getstate__() | {"marks": node._pytree__info.marks})
        return node

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        node = empty_object(type(self), self._pytree__info.marks)
        memo[id(self)] = node
        node.__setstate__(copy.deepcopy(to_named(self.__getstate__()), memo))
        return node

    def __repr__(self) -> str:
        return repr_fields(type(self).__name__, self._pytree__fields())

    def _pytree__fields(self) -> Iterator[tuple[str, Value]]:
        for name, value in self.__dict__.items():
            if not name.startswith("_"):
                yield name, value


def _in_order(marks: dict[Any, str]) -> tuple[tuple[Any, str], ...]:
    """Marks as static values; the keys are names, or indices of a ``List``."""
    return tuple((key, marks[key]) for key in sorted(marks, key=sort_key))


def _warn_of_replaced(node: Pytree, name: str, variable: Variable[Value]) -> None:
    owner, kind = known_path(node) or type(node).__name__, type(variable).__name__
    warn(
        ReplacedVariableWarning,
        f"a {kind} was replaced by an array",
        at=f"{owner}.{name}",
        found="an array, which no filter by type selects: an optimizer does not update it",
        expected=f"a new value for the {kind}, which stays in the module",
        do=f"write the value into the variable: module.{name}[...] = value; or create a new one: "
        f"module.{name} = {name_of_class(type(variable))}(value)",
    )


_LOCK = threading.RLock()  # re-entrant: garbage collection inside may run a finalizer that walks a module


def own_info(node: Pytree) -> NodeInfo:
    """The info of one node; a shared one is replaced by the node's own."""
    info = node._pytree__info
    if type(info) is NodeInfo:
        return info
    with _LOCK:
        if type(node._pytree__info) is UnseenInfo:  # otherwise another thread was faster
            _set_info(node, NodeInfo(info.trace))
        return node._pytree__info


_new: Callable[[type], Node] = object.__new__


_get_info: Callable[[Node], NodeInfo] = Pytree.__dict__["_pytree__info"].__get__
_set_info: Callable[[Node, NodeInfo], None] = Pytree.__dict__["_pytree__info"].__set__


_set_walks: Callable[[Node, object], None] = Pytree.__dict__["_pytree__walks"].__set__


def empty_object(cls: type, marks: Mapping[Any, str] | Iterable[tuple[Any, str]] | None = None) -> Node:
    """An object of a plait class with a copy of the marks and no attributes; the user's ``__init__`` does not run."""
    node = _new(cls)
    _set_info(node, NodeInfo(trace_state.value, dict(marks) if marks else None))
    _set_walks(node, None)  # never unset, or a user's delegating __getattr__ would return those of another object
    return node


def _with_info(new: Callable[..., Any]) -> Callable[..., Any]:
    """A user's ``__new__``, which may call that of ``object``, with plait's data about the object."""

    @functools.wraps(new)
    def wrapper(cls: type, *args: Any, **kwargs: Any) -> Any:
        node = new(cls, *args, **kwargs)
        if isinstance(node, Pytree):
            _made_info(node)
        return node

    return wrapper


def _made_info(node: Pytree) -> NodeInfo:
    """The info of an object that ``object.__new__`` may have made, without one."""
    try:
        return _get_info(node)
    except AttributeError:
        _set_info(node, NodeInfo(trace_state.value))
        _set_walks(node, None)
        return _get_info(node)


def empty_objects(classes: Sequence[type]) -> list[Node]:
    """``empty_object`` without marks, for many classes at once."""
    info = UnseenInfo(trace_state.value)
    nodes = [*map(_new, classes)]
    run_through(map(_set_info, nodes, itertools.repeat(info)))
    run_through(map(_set_walks, nodes, itertools.repeat(None)))
    return nodes


def check_not_fixed(node: Node) -> None:
    """Raise before the structure of a node is changed that must not change.

    Raises:
        GraphError: the node belongs to a view of a stack, whose layers all have one structure.
    """
    structure_error = node._pytree__info.structure_error
    if structure_error is not None:
        raise structure_error("a changed attribute, or a value that sow stores as one,", None)


def _same_plain(before: object, value: object) -> bool:
    """Whether an assignment leaves the structure unchanged: the same object, or an equal number or string."""
    return before is value or (type(before) in _PLAIN_VALUES and same_static(before, value))


def check_kept_status(node: Pytree, name: str, value: Value) -> None:
    """Raise if an update would replace a plain static value by a variable or array. (rule G38)"""
    current = node.__dict__.get(name, NOTHING)
    if current is NOTHING or not holds_data(value):
        return
    statuses = {**node._pytree__declared, **(node._pytree__info.marks or {})}
    if statuses.get(name) != DATA and kind_of(current) is Kind.STATIC:
        check_static(value, name, type(node))


class _TreeAux(NamedTuple):
    """The auxiliary data of a module as a JAX pytree. A mark ``data`` is not compared: that its attribute is a child
    says the same, and a tree of prefix values needs the mark where the model needs none. The methods are the module's
    own, by attribute."""

    names: tuple[str, ...]
    static: HashableMapping[str, object]
    marks: tuple[tuple[str, str], ...]
    methods: tuple[tuple[str, object], ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TreeAux) and self._compared() == other._compared()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._compared())

    def _compared(self) -> tuple[object, ...]:
        return self.names, self.static, self.methods, tuple([mark for mark in self.marks if mark[1] != DATA])


def copied_buffers(leaf: Value) -> Value:
    """The leaf with a copied buffer.

    Raises:
        DonatedArrayError: it was donated to an earlier call.
    """
    if is_gone(leaf):
        raise unusable(leaf, None)
    return jnp.copy(leaf) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf)
