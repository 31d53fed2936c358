"""Parts of a model whose arrays plait does not see as parameters: layers of other libraries, and plain objects.

A layer of Flax or Equinox is a pytree, so its arrays are leaves, but none is a ``Param``; a plain Python object is
static, so its arrays are constants. Nothing trains either, and nothing else would say so. Whoever differentiates or
optimizes a model warns of them, once for each structure; ``jit`` warns of objects of Flax, whose changes it would
lose. (rule G69)
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import jax
import jax.numpy as jnp
from jax.tree_util import KeyPath

from ...errors import LostUpdateWarning, UntrainedPartWarning
from ...typing import Node, Tree, Value
from ...util.notices import warn
from ...util.paths import describe_path
from ...util.words import describe_type
from ..nodes.nodes import Kind, Place, visit
from ..nodes.pytree import Pytree, own_info
from ..variables.variables import Variable
from .graphdef import GraphDef
from .walks import is_graph_leaf

# Objects of these packages have arrays that a user knows nothing of, such as those of compiled functions.
_OURS = frozenset({__name__.partition(".")[0], "jax", "jaxlib", "numpy", "optax"})
# The structures that were looked at; an entry goes with its structure.
_known: weakref.WeakSet[GraphDef] = weakref.WeakSet()
_NO_HOLDERS = (str, bytes, int, float, complex, type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
MOST_OBJECTS = 10_000  # of a plain object, which may refer to anything


def warn_of_untrained(who: str, root: Node, graphdef: GraphDef) -> None:
    """Warn of the parts of a model that hold arrays which nothing trains.

    Args:
        who: the function or class that trains the rest.
        graphdef: of the model.

    Warns:
        UntrainedPartWarning: names the path of each.
    """
    if graphdef in _known:
        return
    _known.add(graphdef)
    for place in visit(root):
        if place.owner is not None and _is_marked(place.owner.value, place.key) and not isinstance(place.value, Pytree):
            place.enter = False
        elif place.first is None and _is_untrained(place):
            place.enter = False
            warn(
                UntrainedPartWarning,
                f"{who}: a part of the model holds arrays that are not variables of plait, so it is not trained",
                at=describe_path(place.path),
                found=f"{describe_type(place.value)} of {type(place.value).__module__.partition('.')[0]}",
                expected="plait's layers, or arrays in plait.Param",
                do="make the layer with `import plait as nnx` instead of flax.nnx; wrap a Linen module in "
                "plait.bridge.ToNNX; put other arrays in plait.Param, or mark constants: plait.data(layer) for a layer "
                "that is a pytree, plait.static(value) for any other object",
            )


def warn_of_flax(arguments: Tree, name: Callable[[KeyPath], str]) -> None:
    """Warn of objects of Flax among the arguments of ``jit``, which are trees of arrays for it.

    Args:
        arguments: those of a call.
        name: of a JAX path in them, the name for the user.

    Warns:
        LostUpdateWarning: names the place of each.
    """
    flax = sys.modules["flax.nnx"]
    if flax.Pytree is Pytree:  # under ``plait.as_flax``
        return
    for path, value in jax.tree_util.tree_leaves_with_path(
        arguments, is_leaf=lambda value: is_graph_leaf(value) or isinstance(value, flax.Pytree)
    ):
        if isinstance(value, flax.Pytree):
            warn(
                LostUpdateWarning,
                "jit: an object of Flax is a tree of arrays for plait, so what the function writes to it is lost",
                at=name(path),
                found=f"{describe_type(value)} of flax",
                expected="plait's objects",
                do="make it with `import plait as nnx` instead of flax.nnx, or use flax.nnx.jit",
            )


def _is_untrained(place: Place) -> bool:
    value = place.value
    if type(value).__module__.partition(".")[0] in _OURS:
        return False
    if place.kind is Kind.STATIC:
        return not isinstance(value, _NO_HOLDERS) and any(map(_is_weight, _held(value)))
    # Containers of arrays are what they say; what is called is a layer.
    is_layer = place.kind is Kind.PYTREE and callable(value)
    return is_layer and any(map(_is_weight, jax.tree.leaves(value)))


def _is_marked(owner: Node, key: Hashable) -> bool:
    """Whether the user wrote ``plait.data`` or ``plait.static`` around the value."""
    return isinstance(owner, Pytree) and (key in owner._pytree__declared or key in (own_info(owner).marks or ()))


def _is_weight(value: Value) -> bool:
    if isinstance(value, (Variable, Pytree)):
        return True
    if isinstance(value, jax.Array):
        return bool(jnp.issubdtype(value.dtype, jnp.inexact))
    return hasattr(type(value), "requires_grad") and bool(value.requires_grad)  # one of PyTorch


def _held(value: Value) -> Iterator[Value]:
    """What an object holds in attributes, at any depth, through containers and other objects."""
    stack, met = [value], {id(value)}
    while stack and len(met) < MOST_OBJECTS:
        each = stack.pop()
        if each is not value:
            yield each
        if isinstance(each, (*_NO_HOLDERS, jax.Array, Variable, Pytree)):
            continue
        if isinstance(each, Mapping):
            inner = [*each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            inner = [*each]
        else:
            inner = [*getattr(each, "__dict__", {}).values()]
        fresh = [one for one in inner if id(one) not in met]
        met.update(map(id, fresh))
        stack.extend(fresh)
