"""``List`` and ``Dict``: containers that are modules, with identity and tracked changes.

Plain lists and dicts of modules also work as attributes. These two can be shared, can be arguments of a transform, and
report every change to the structure clock. (rule G65)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, MutableSequence
from typing import Any, Self, TypeVar, overload

from jax.tree_util import SequenceKey

from ...typing import Value
from ...util.named import from_named
from ..traces.guard import check_trace
from ..variables.cells import mark_changed
from .attributes import DATA, Mark, data, is_data
from .jax_flattening import hide_static, show_static
from .module import Module
from .nodes import DataElem, check_index, updated_in_place
from .pytree import Pytree, check_not_fixed, own_info

A = TypeVar("A")


class List(Module, MutableSequence[A], _slots=True):
    """A mutable sequence of modules, variables, arrays or static values; elements have integer keys in paths.

    Args:
        items: the elements.

    Example:
        >>> layers = plait.List([plait.Linear(2, 2, rngs=plait.Rngs(0))])
        >>> layers.append(plait.Linear(2, 3, rngs=plait.Rngs(1)))
        >>> len(layers), plait.state(layers)[1]["kernel"].shape
        (2, (2, 3))
    """

    __slots__ = ("_pytree__elements",)
    _pytree__elements: list[Value]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        node = super().__new__(cls)
        _set_elements(node, [])
        return node

    def __init__(self, items: Iterable[A] = (), /) -> None:
        self.extend(items)

    def __len__(self) -> int:
        return len(self._pytree__elements)

    @overload
    def __getitem__(self, index: int) -> A: ...
    @overload
    def __getitem__(self, index: slice) -> list[A]: ...
    def __getitem__(self, index: Any) -> Any:
        return self._pytree__elements[index]

    def __setitem__(self, index: Any, value: Value) -> None:
        if isinstance(index, slice):
            self._pytree__change(lambda items, new: items.__setitem__(index, new), *_unmarked(value))
        else:  # without a mark an element keeps its status, like attributes
            values, statuses = _unmarked([value])
            new_statuses = statuses if any(statuses) else None
            self._pytree__change(lambda items, new: items.__setitem__(index, new[0]), values, new_statuses)

    def __delitem__(self, index: Any) -> None:
        self._pytree__change(lambda items, _: items.__delitem__(index), [], [])

    def insert(self, index: int, value: A) -> None:
        """Insert a value before an index."""
        self._pytree__change(lambda items, new: items.insert(index, new[0]), *_unmarked([value]))

    def _pytree__change(
        self, edit: Callable[[list[Any], list[Any]], None], values: list[Value], statuses: list[str | None] | None
    ) -> None:
        """Edit the elements with new values, and their marks with new statuses, if they change.

        Args:
            edit: ``(items, new)`` changes a list.
        """
        check_trace(self._pytree__info.trace, self, "change a")
        check_not_fixed(self)
        marks = self._pytree__info.marks or {}
        if statuses is not None and (marks or any(statuses)):
            known = [marks.get(place) for place in range(len(self._pytree__elements))]
            edit(known, statuses)
            named = {key: status for key, status in marks.items() if type(key) is not int}
            placed = {place: status for place, status in enumerate(known) if status is not None}
            own_info(self).marks = {**named, **placed}
        edit(self._pytree__elements, values)
        mark_changed(self._pytree__info)

    def __iter__(self) -> Iterator[A]:
        return iter(self._pytree__elements)

    def __add__(self, other: Iterable[A]) -> List[A]:
        return List([*self._pytree__marked(), *(other._pytree__marked() if isinstance(other, List) else other)])

    def _pytree__is_marked(self, place: int) -> bool:
        return place in (self._pytree__info.marks or ())

    def _pytree__marked(self) -> list[Value]:
        """The elements with their marks."""
        return [
            data(item) if self._pytree__is_marked(place) else item for place, item in enumerate(self._pytree__elements)
        ]

    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of sequences and mappings

    # As a graph node

    def _pytree__graph_flatten(self) -> tuple[list[tuple[Any, Value]], Any]:
        attributes, metadata = super()._pytree__graph_flatten()
        elements = enumerate(self._pytree__elements)
        if self._pytree__info.marks:
            elements = [(i, DataElem(item) if self._pytree__is_marked(i) else item) for i, item in elements]
        return [*elements, *attributes], metadata

    def _pytree__graph_set_key(self, key: Any, value: Value) -> None:
        if isinstance(key, str):
            super()._pytree__graph_set_key(key, value)
            return
        check_index(self, key, len(self))
        if key == len(self):
            self.append(value)
        elif not updated_in_place(self[key], value):
            self[key] = value

    def _pytree__graph_pop_key(self, key: Any) -> Value:
        return self.pop(key) if isinstance(key, int) else super()._pytree__graph_pop_key(key)

    @classmethod
    def _pytree__graph_create_empty(cls, metadata: Any) -> Self:
        node = super()._pytree__graph_create_empty(metadata)
        _set_elements(node, [])
        return node

    def _pytree__graph_clear(self) -> None:
        self._pytree__elements.clear()
        super()._pytree__graph_clear()

    def _pytree__graph_init(self, children: Iterable[tuple[Any, Value]]) -> None:
        children = list(children)
        self._pytree__elements.extend(value for key, value in children if isinstance(key, int))
        super()._pytree__graph_init((key, value) for key, value in children if not isinstance(key, int))

    # As a JAX pytree

    def _pytree__parts(self) -> tuple[list[Value], Hashable]:
        children, aux = super()._pytree__parts()
        elements = enumerate(self._pytree__elements)
        shown = [item if self._pytree__is_marked(place) else hide_static(item, place) for place, item in elements]
        return [*shown, *children], (len(shown), aux)

    @staticmethod
    def _pytree__keys(aux: Any) -> list[Hashable]:
        return [*map(SequenceKey, range(aux[0])), *Pytree._pytree__keys(aux[1])]

    @classmethod
    def _pytree__unflatten(cls, aux: Any, children: Iterable[Value]) -> Self:
        count, rest = aux
        children = list(children)
        node = super()._pytree__unflatten(rest, children[count:])
        _set_elements(node, [show_static(child) for child in children[:count]])
        return node

    def __getstate__(self) -> dict[str, object]:
        return super().__getstate__() | {"elements": list(self._pytree__elements)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _set_elements(self, list(from_named(state["elements"])))
        super().__setstate__(state)

    def _pytree__fields(self) -> Iterator[tuple[str, Value]]:
        for item in self._pytree__elements:
            yield "", item
        yield from super()._pytree__fields()


_set_elements = List.__dict__["_pytree__elements"].__set__


def _unmarked(items: Iterable[Value]) -> tuple[list[Value], list[str | None]]:
    """Elements without their marks, and the marks that have an effect: ``data`` on values that are not data by
    themselves."""
    items = list(items)
    values = [item.value if type(item) is Mark else item for item in items]
    statuses = [
        DATA if type(item) is Mark and item.status == DATA and not is_data(item.value) else None for item in items
    ]
    return values, statuses


class Dict(Module, MutableMapping[str, A]):
    """A mutable mapping whose items are attributes: ``d["a"]`` and ``d.a`` are the same.

    Args:
        *args: a mapping or pairs, as for ``dict``.
        **kwargs: more items.

    Example:
        >>> heads = plait.Dict(left=plait.Linear(2, 1, rngs=plait.Rngs(0)))
        >>> heads["left"] is heads.left, list(heads)
        (True, ['left'])
    """

    def __init__(self: Dict[Any], *args: Any, **kwargs: Any) -> None:  # the values of a dict are of many classes
        for name, value in dict(*args, **kwargs).items():
            setattr(self, name, value)

    def __getitem__(self, name: str) -> A:
        return self.__dict__[name]

    def __setitem__(self, name: str, value: Value) -> None:
        setattr(self, name, value)

    def __delitem__(self, name: str) -> None:
        if name not in self.__dict__:
            raise KeyError(name)
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.__dict__)

    def __getattr__(self, name: str) -> Any:  # for type checkers: items are attributes
        raise AttributeError(f"the Dict has no item {name!r}; it has {[*self.__dict__]}")

    __eq__, __hash__ = object.__eq__, object.__hash__  # pyright: ignore[reportAssignmentType]  # not those of mappings
