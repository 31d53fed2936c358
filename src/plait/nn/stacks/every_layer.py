"""Variables that the layers of a stack get together.

A stack holds one block for many layers. A method of that block, or of a module in it, that sets a new variable, such as
the empty cache of a decoder, computes the value of one layer. ``for_every_layer`` gives the variable the axes of the
layers, so that each layer has this value, as if the method had been called for each block of a list. (rule ST3)
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...core import hooks
from ...core.graph.axes import PARTITION_NAME, put_axis
from ...core.graph.locate import path_within
from ...core.nodes.nodes import Kind, children_of, kind_of
from ...core.settings import Restoring
from ...core.variables.variables import Variable
from ...util.paths import Path, layers_of

# Stacks whose children were asked for, by id: only so does a program come by a block that holds many layers.
_stacks: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def note_stack(stack: Any) -> None:
    """Record that a walk looks into a stack."""
    _stacks[id(stack)] = stack


def axes_along(model: Any, path: Path) -> list[str | None]:
    """The names of the axes of the stacks on a path, outermost first."""
    axes, node = [], model
    for key in path:
        if layers_of(key) is not None:
            axes.append(getattr(node, "axis", None))
        node = dict(children_of(node)).get(key) if kind_of(node) in (Kind.GRAPH, Kind.PYTREE) else None
    return axes


class _Open(threading.local):
    nodes: tuple[Any, ...] = ()


_open = _Open()


@contextlib.contextmanager
def for_every_layer(node: Any) -> Iterator[None]:
    """Inside the block, the variables that a node sets get the axes of its layers, if it is in a stack."""
    if any(node is each for each in _open.nodes):
        yield
        return
    attributes = getattr(node, "__dict__", {})
    before = {id(value): value for value in attributes.values()}
    with Restoring(_open, nodes=(*_open.nodes, node)):
        yield
    new = [each for each in attributes.items() if isinstance(each[1], Variable) and id(each[1]) not in before]
    sizes, axes = _layers_around(node) if new else ([], [])
    for name, variable in new if sizes else ():
        setattr(node, name, _with_layers(variable, sizes, axes))


def _layers_around(node: Any) -> tuple[list[int], list[str | None]]:
    """The number of layers in each stack that a node is in, outermost first, and the names of their axes."""
    found: tuple[list[int], list[str | None]] = [], []
    for ref in _stacks.valuerefs():
        stack = ref()
        path = None if stack is None else path_within(stack, node)
        sizes = [len(layers) for key in path or () if (layers := layers_of(key)) is not None]
        if path is not None and len(sizes) > len(found[0]):
            found = sizes, axes_along(stack, path)
    return found


def _with_layers(variable: Variable[Any], sizes: Sequence[int], axes: Sequence[str | None]) -> Variable[Any]:
    """The variable of a stacked block in which each layer has the value of this one.

    Args:
        sizes: the numbers of layers, of the outermost stack first.
        axes: the names of their axes.
    """
    shape = tuple(sizes)
    value = jax.tree.map(lambda x: jnp.broadcast_to(x, shape + jnp.shape(x)), variable.get_raw_value())
    whole = variable.copy(value)
    for axis in reversed(axes):
        put_axis(whole, 0, {PARTITION_NAME: axis})
    return whole


hooks.around_change = for_every_layer
