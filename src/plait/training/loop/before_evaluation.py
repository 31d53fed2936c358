"""The state from before an evaluation, which may put averages into the objects and move their iterators, and fail.

An evaluation may also replace a part by another module, and raise before it puts the part back. So what each node and
plain container holds is kept as well, by identity. Those that hold the same are not touched: another thread may undo an
evaluation that is stuck.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from ...checkpoint.positions import KeptPosition, has_position, positions_of
from ...core.functional.split import state
from ...core.functional.update import update
from ...core.nodes.journal import Journal
from ...core.nodes.nodes import Kind, Static, children_if_any, get_node_impl, kind_of, unwrapped, visit
from ...core.nodes.pytree import Pytree
from ...core.states.state import State
from ...core.variables.cells import is_gone
from ...core.variables.variable_kinds import Param
from ...core.variables.variables import Variable
from ...util.paths import describe_path
from .placing import is_buffer

_CONTAINERS = (list, dict, deque, State)


class BeforeEvaluation:
    """The structure, variables and positions of the objects of ``fit``, as they are now."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        positioned = {name: each for name, each in objects.items() if has_position(each)}
        self._positions = {name: KeptPosition(positions_of(each)()) for name, each in positioned.items()}
        self._variables: State = state(objects, graph=True)
        buffers = [leaf for leaf in jax.tree.leaves(self._variables) if is_buffer(leaf)]
        self._buffers = {id(buffer): (buffer, buffer.copy()) for buffer in buffers}  # it may count in them, in place
        self._structure = [*map(_KeptChildren, _changeable(objects))]

    @property
    def objects(self) -> dict[str, Any]:
        """What is saved in their place."""
        return {**jax.tree.map(self._before, self._variables), **self._positions}

    def _before(self, leaf: Any) -> Any:
        return self._buffers[id(leaf)][1] if id(leaf) in self._buffers else leaf

    @property
    def is_donated(self) -> bool:
        """Whether an array was donated since."""
        return _is_donated(self._variables)

    def donated_parameters(self) -> list[str]:
        """The paths of the parameters whose arrays were donated since."""
        parameters = state(self._variables, Param, graph=True).flat_state()
        return [describe_path(path) for path, leaf in parameters if _is_donated(leaf)]

    def put_back(self, objects: Mapping[str, Any]) -> None:
        """Go back to it. Arrays that were donated, usually counts, are those that were made of them."""
        for each in self._structure:
            each.put_back()
        for buffer, before in self._buffers.values():
            buffer[...] = before
        kept = state(
            self._variables,
            lambda _, leaf: isinstance(leaf, Variable) and not _is_donated(leaf.get_raw_value()),
            graph=True,
        )
        update(objects, kept)
        for name, position in self._positions.items():
            objects[name].set_state(position.get_state())


class _KeptChildren:
    """The children of a graph node or a container, as they are now."""

    def __init__(self, node: Any) -> None:
        self._node, self._journal = node, Journal()
        self._children, self._rest = _content(node)
        if isinstance(node, _CONTAINERS):  # the journal would write into a variable that has the place of another
            self._journal.note(_refill, node, self._children)
        else:
            self._journal.note_node(node)

    def put_back(self) -> None:
        """Give it the same children again, but for arrays that were donated and replaced."""
        found = self._found()
        if found is not None and self._is_same(*found):
            return
        self._journal.put_back()
        children = found[0] if found is not None else {}
        for key in children.keys() & self._children.keys():
            if _is_donated_part(self._children[key]):
                _set_child(self._node, key, children[key])

    def _found(self) -> tuple[dict[Any, Any], Any] | None:
        """What it holds by now; ``None`` if it lacks what its type needs to say so."""
        try:
            return _content(self._node)
        except Exception:
            return None

    def _is_same(self, children: dict[Any, Any], rest: Any) -> bool:
        if [*children] != [*self._children] or rest != self._rest:
            return False
        return all(map(operator.is_, children.values(), self._children.values()))


def _changeable(objects: Any) -> Iterator[Any]:
    """The graph nodes, and the containers that can be changed in place, each once."""
    met: set[int] = set()
    for place in visit(objects, children=children_if_any):
        can_change = place.kind is Kind.GRAPH or isinstance(place.value, _CONTAINERS)
        if can_change and id(place.value) not in met:
            met.add(id(place.value))
            yield place.value


def _content(node: Any) -> tuple[dict[Any, Any], Any]:
    """The children by key, and what else is compared: marks, metadata, and the order of the attributes."""
    if isinstance(node, State):  # its nested dicts: a view of one is another object each time
        return {**node._mapping}, None
    if isinstance(node, _CONTAINERS):
        return dict(node.items() if isinstance(node, dict) else enumerate(node)), None
    impl: Any = get_node_impl(node)
    children, metadata = impl.flatten(node)
    names = [*vars(node)] if isinstance(node, Pytree) else None
    return {key: unwrapped(child) for key, child in children}, (Static(metadata), names)


def _refill(container: Any, children: dict[Any, Any]) -> None:
    entries = container.raw_mapping if isinstance(container, State) else container
    entries.clear()
    if isinstance(entries, dict):
        entries.update(children)
    else:
        entries.extend(children.values())


def _set_child(node: Any, key: Any, value: Any) -> None:
    if isinstance(node, _CONTAINERS):
        node[key] = value
    else:
        impl: Any = get_node_impl(node)
        impl.set_key(node, key, value)


def _is_donated_part(child: Any) -> bool:
    """Whether a child that is no variable or node of its own has an array that was donated."""
    return any(is_gone(leaf) for leaf in jax.tree.leaves(child, is_leaf=_has_content) if not _has_content(leaf))


def _has_content(value: Any) -> bool:
    kind = kind_of(value)
    return kind is Kind.VARIABLE or kind is Kind.GRAPH or isinstance(value, _CONTAINERS)


def _is_donated(values: Any) -> bool:
    return any(map(is_gone, jax.tree.leaves(values)))
