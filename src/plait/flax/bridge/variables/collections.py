"""Converts trees: ``{collection: nested values or boxes}`` to nested variables, and back. (rules B16 to B18)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ....core.functional.merge import merge
from ....core.functional.split import split, state
from ....core.graph.graphdef import GraphDef
from ....core.intermediates.variable_names import variable_name_from_type
from ....core.rngs import RngState
from ....core.states.state import from_flat_state, to_flat_state
from ....core.variables.filters import Not
from ....core.variables.variables import Variable
from ....errors import ArgumentError, GraphError
from ....util.paths import Path, describe_path, has_layers, layers_of
from ....util.sentinels import NOTHING
from ....util.words import with_article
from .boxed_variables import to_linen_var, to_nnx_var
from .collection_types import BARE_COLLECTIONS, is_bare, variable_type_name

Collections = dict[str, Any]


def linen_vars_to_nnx_attrs(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Linen variables as the attributes of a plait module.

    Args:
        variables: ``{collection: nested dictionaries of values or boxes}``; anything but a mapping is a leaf.

    Returns:
        Nested dictionaries of variables, without the level of collections.

    Raises:
        ArgumentError: two collections have a leaf at the same path, or a value is not in a collection.

    Example:
        >>> attrs = plait.bridge.linen_vars_to_nnx_attrs({"params": {"dense": {"bias": jnp.zeros(2)}}})
        >>> type(attrs["dense"]["bias"]).__name__
        'Param'
    """
    attrs: dict[str, Any] = {}
    for collection, tree in variables.items():
        for path, leaf in iter_leaves(tree):
            if not path:
                raise ArgumentError(
                    "a value is not in a collection",
                    found=f"{leaf!r:.80} under {collection!r}",
                    expected="a mapping from names to values for each collection",
                    do="pass {'params': variables} if these are parameters",
                )
            _place(attrs, path, to_nnx_var(collection, leaf), collection)
    return attrs


def iter_leaves(tree: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """The leaves of nested mappings, with their paths."""
    if isinstance(tree, Mapping) and not isinstance(tree, Variable):
        for key, value in tree.items():
            yield from iter_leaves(value, (*path, key))
    else:
        yield path, tree


def _place(attrs: dict[str, Any], path: Path, variable: Variable[Any], collection: str) -> None:
    node = attrs
    for place, key in enumerate(path[:-1]):
        node = node.setdefault(key, {})
        if isinstance(node, Variable):
            raise _collision(path[: place + 1], node, variable, collection)
    if path[-1] in node:
        raise _collision(path, node[path[-1]], variable, collection)
    node[path[-1]] = variable


def _collision(path: Path, first: Any, second: Variable[Any], collection: str) -> ArgumentError:
    if not isinstance(first, Variable):
        first = next(leaf for _, leaf in iter_leaves(first))
    return ArgumentError(
        "two collections have a value at the same path, but an attribute holds only one variable",
        at=describe_path(path),
        found=f"a {type(first).__name__} of collection {variable_type_name(type(first))!r}, "
        f"and a {type(second).__name__} of collection {collection!r}",
        expected="one variable for each path",
        do="rename one of the two in the Linen module",
    )


def immutable_changed(collection: str, at: str, leaf: Any, mutable: Any) -> ArgumentError:
    """The error for a new value in a collection that is not listed as mutable."""
    return ArgumentError(
        f"a variable of the immutable collection {collection!r} was changed",
        at=at,
        found=f"a new value of {with_article(type(leaf).__name__)}, with mutable={mutable!r}",
        expected=f"{collection!r} among the mutable collections, or mutable=False to discard changes",
        do=f"apply(..., mutable=[{collection!r}])",
    )


def nnx_attrs_to_linen_vars(attrs: Mapping[Any, Any]) -> Collections:
    """The inverse of ``linen_vars_to_nnx_attrs``: each variable goes to the collection of its class.

    A graphdef goes to the collection ``nnx``. The layers of a ``Stack`` are those of ``nn.scan`` along axis 0:
    ``blocks["0:24"]["kernel"]`` becomes ``params["blocks"]["kernel"]``.

    Raises:
        ArgumentError: a leaf is neither a variable nor a graphdef, or its class has no collection name.

    Example:
        >>> plait.bridge.nnx_attrs_to_linen_vars({"scale": plait.BatchStat(1.0)})
        {'batch_stats': {'scale': 1.0}}
    """
    collections: Collections = {}
    for path, leaf in iter_leaves(attrs):
        if isinstance(leaf, Variable):
            name, value = variable_name_from_type(type(leaf)), to_linen_var(leaf)
        elif isinstance(leaf, GraphDef):
            name, value = "nnx", leaf
        else:
            raise ArgumentError(
                "a value belongs to no collection",
                at=describe_path(path) if path else None,
                found=f"{leaf!r:.80} of type {type(leaf).__name__}",
                expected="a variable, whose class has a collection",
                do="wrap it, for example plait.Param(value)",
            )
        put_leaf(collections, (name, *path_in_linen(path)), value)
    return collections


def put_leaf(tree: dict[Any, Any], path: Path, value: Any) -> None:
    """Set a leaf in nested dictionaries, and make missing dictionaries."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def find_leaf(tree: Any, path: Path) -> Any:
    """The value at a path of nested mappings, or ``NOTHING``."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return NOTHING
        tree = tree[key]
    return tree


def find_bare(stored: Mapping[str, Any], path: Path) -> tuple[str, Any]:
    """The stored array that is not in a variable, at a path, and its collection; or ``NOTHING``. (rule B29)"""
    for collection in BARE_COLLECTIONS:
        found = find_leaf(stored, (collection, *path))
        if found is not NOTHING and not isinstance(found, Mapping):
            return collection, found
    return BARE_COLLECTIONS[0], NOTHING


def to_collections(model: Any) -> Collections:
    """The variables of a model by collection, in the form that Linen code and ``TrainState`` use.

    Random state is omitted, since Linen stores none. A ``Stack`` has the form of ``nn.scan`` along axis 0.

    Args:
        model: a module, or any graph.

    Raises:
        ArgumentError: an array is not in a variable, or a variable class has no collection name; names the path.

    Example:
        >>> plait.bridge.to_collections(plait.Linear(2, 3, rngs=plait.Rngs(0)))["params"]["kernel"].shape
        (2, 3)
    """
    return nnx_attrs_to_linen_vars(state(model, Not(RngState), graph=True))


def path_in_linen(path: Path) -> Path:
    """The path of a variable in Linen, where the stack is replaced by one block with all its layers."""
    return tuple(key for key in path if not _is_whole_stack(key)) if has_layers(path) else path


def _is_whole_stack(key: Any) -> bool:
    layers = layers_of(key)
    return layers is not None and layers.start == 0 and layers.step == 1


def from_collections(collections: Mapping[str, Any], like: Any) -> Any:
    """Build a model from variables by collection; the inverse of ``to_collections``.

    Args:
        collections: the result of ``to_collections``, or the variables of a Linen module with the same names; boxed or
            not. Dictionaries may be frozen.
        like: a model of the same structure, concrete or abstract, which supplies the structure, the random state, and
            the metadata of values without a box; also arrays outside of variables that the collections lack.

    Returns:
        A new model. ``like`` is not changed.

    Raises:
        GraphError: values are missing, unexpected, in a different collection or of a different shape; names collection
            and path.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> like = plait.eval_shape(lambda: plait.Linear(2, 3, rngs=plait.Rngs(0)))
        >>> copy = plait.bridge.from_collections(plait.bridge.to_collections(model), like)
        >>> bool((copy.kernel[...] == model.kernel[...]).all())
        True
    """
    graphdef, whole = split(like, graph=True)
    flat = dict(to_flat_state(whole))
    taken: list[Path] = []
    for path, leaf in flat.items():
        if isinstance(leaf, Variable) and not isinstance(leaf, RngState):
            collection = variable_name_from_type(type(leaf))
            theirs = path_in_linen(path)
            found = find_leaf(collections, (collection, *theirs))
            if found is NOTHING:
                raise _absent(collections, collection, theirs)
            flat[path] = _converted(collection, path, found, leaf)
            taken.append((collection, *theirs))
        elif is_bare(leaf):
            collection, found = find_bare(collections, path_in_linen(path))
            if found is not NOTHING:
                flat[path] = found
                taken.append((collection, *path_in_linen(path)))
    for path, _ in iter_leaves(collections):
        if not any(path[: len(known)] == known for known in taken):
            raise GraphError(
                "the collections have a value that the model lacks",
                at=f"collection {path[0]!r}, {describe_path(path[1:])}",
                found=f"collections {sorted(map(str, collections))}",
                expected="the paths of the variables of `like`, each in the collection of its class",
                do="remove the value, or pass a `like` that has the variable",
            )
    return merge(graphdef, from_flat_state(flat.items()))


def _absent(collections: Mapping[str, Any], collection: str, path: Path) -> GraphError:
    others = [name for name in collections if find_leaf(collections, (name, *path)) is not NOTHING]
    return GraphError(
        "the collections lack a variable of the model",
        at=f"collection {collection!r}, {describe_path(path)}",
        found=f"it is in collection {others[0]!r}" if others else f"collections {sorted(map(str, collections))}",
        expected=f"a value in collection {collection!r}",
        do="pass the collections of a model with the same structure, or register the name of its class",
    )


def _converted(collection: str, path: Path, found: Any, leaf: Variable[Any]) -> Variable[Any]:
    """The variable for a leaf of the model. A value without a box gets the model's metadata."""
    variable = to_nnx_var(collection, found)
    if variable.get_raw_value() is found:
        variable = leaf.copy(value=found)
    shape, expected = (getattr(each.get_raw_value(), "shape", None) for each in (variable, leaf))
    if shape != expected:
        raise GraphError(
            "a value does not have the shape of the model's variable",
            at=f"collection {collection!r}, {describe_path(path)}",
            found=f"shape {shape}",
            expected=f"shape {expected}",
            do="pass the collections of a model with the same sizes",
        )
    return variable
