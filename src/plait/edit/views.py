"""Copies of a graph that share its variables but differ in static settings, nodes or leaves.

(rules D5, D9, G55, G56)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.functional.merge import clone, merge
from ..core.graph.modes import check_mode
from ..core.graph.traversal import find_duplicates
from ..core.graph.walks import Walk, path_of
from ..core.nodes.module import change_modes, mode_names, set_attributes
from ..core.nodes.nodes import Place, PytreeNodeImpl, children_first, get_node_impl, iter_graph_nodes, visit
from ..core.states.live import are_live
from ..core.states.pure_dicts import plain_value
from ..core.variables.cells import as_stored
from ..core.variables.filters import to_predicate
from ..core.variables.variables import Variable
from ..errors import ArgumentError, GraphError
from ..typing import FilterLiteral
from ..util.paths import Path, describe_path
from ..util.repr import Text
from ..util.words import describe_type

N = TypeVar("N")

# An entry of the section Args: ``name: text``, ``a, b: text``, ``*names: text`` or ``name (type): text``.
_ENTRY = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*)(?: \([^)]*\))?: ?(.*)")


def with_attributes(
    node: N,
    /,
    *,
    only: FilterLiteral = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **attributes: Any,
) -> N:
    """A copy that shares the variables, with existing attributes replaced on the matching modules.

    Args:
        graph: as in ``split``.

    Raises:
        ArgumentError: no matching module has an attribute.

    Example:
        >>> drop = plait.Dropout(0.5, rngs=plait.Rngs(0))
        >>> plait.with_attributes(drop, deterministic=True).deterministic, drop.deterministic
        (True, False)
    """
    copied = clone(node, variables=False, graph=graph)
    set_attributes(copied, to_predicate(only), attributes, raise_if_not_found=raise_if_not_found)
    return copied


def view(
    node: N,
    /,
    *,
    only: FilterLiteral = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **settings: Any,
) -> N:
    """A copy that shares the variables, with different mode settings.

    Each matching object with a ``set_view`` gets the settings that its ``set_view`` accepts.

    Args:
        only: the objects to change.
        raise_if_not_found: whether to raise if no object accepts a setting.
        graph: as in ``split``.
        **settings: for example ``deterministic=True, use_running_average=True``.

    Raises:
        ArgumentError: no object accepts some of the settings; the message names them.

    Example:
        >>> drop = plait.Dropout(0.5, rngs=plait.Rngs(0))
        >>> plait.view(drop, deterministic=True)(jnp.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """
    copied = clone(node, variables=False, graph=graph)
    unused = set(settings)
    for value in _viewed(copied, only):
        names = mode_names(value)
        chosen = settings if names is None else {name: v for name, v in settings.items() if name in names}
        change_modes(value, chosen)
        unused -= set(chosen)
    if unused and raise_if_not_found:
        raise ArgumentError(
            f"Unused keys found in nnx.view: {sorted(unused)}",
            found="no set_view method that accepts them",
            expected="parameters of a set_view method",
            do="list the settings: print(plait.view_info(model))",
        )
    return copied


def _viewed(node: Any, only: FilterLiteral) -> list[Any]:
    """The matching objects that have modes."""
    predicate = to_predicate(only)
    places = iter_graph_nodes(node)
    return [value for path, value in places if mode_names(value) != set() and predicate(path, value)]


def view_info(node: Any, /, *, only: FilterLiteral = ..., graph: bool | None = None) -> str:
    """The settings that ``view`` accepts for a graph: for each class, by its qualified name, the
    arguments, their defaults and descriptions.

    Args:
        graph: as in ``split``.

    Example:
        >>> print(plait.view_info(plait.Dropout(0.5, rngs=plait.Rngs(0))))
        Dropout:
          deterministic: bool | None = None whether to return the input unchanged.
    """
    check_mode(node, graph)
    sections: dict[str, str] = {}
    for value in _viewed(node, only):
        method = type(value).set_view
        parameters = list(inspect.signature(method).parameters.values())[1:]
        texts = _argument_texts(inspect.getdoc(method) or "")
        name = type(value).__qualname__
        lines = [f"{name}:"]
        for parameter in parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                continue
            if isinstance(parameter.annotation, str):
                parameter = parameter.replace(annotation=Text(parameter.annotation))
            lines += [f"  {parameter}", *(f"    {line}" for line in texts.get(parameter.name, ()))]
        sections[name] = "\n".join(lines)
    return "\n".join(sections[name] for name in sorted(sections))


def _argument_texts(doc: str) -> dict[str, list[str]]:
    """The lines for each argument in the section ``Args`` of a docstring."""
    lines = doc.splitlines()
    texts: dict[str, list[str]] = {}
    if "Args:" not in lines:
        return texts
    names: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if not line.strip():
            break
        depth = len(line) - len(line.lstrip())
        entry = _ENTRY.match(line.strip())
        if entry and depth <= 4:
            names = [name.lstrip("*") for name in entry[1].split(", ")]
            for name in names:
                texts[name] = [entry[2]]
        else:
            for name in names:
                texts[name].append(line.strip())
    return texts


def map(f: Callable[[Path, Any], Any], node: N, /, *, recreate_variables: bool = True, graph: bool | None = None) -> N:
    """A new graph with ``f(path, leaf)`` for each leaf.

    The leaves are those of ``node`` itself: if ``f`` writes to a variable, ``node`` changes. The new graph shares no
    variables with ``node``: if ``f`` returns its argument, the new graph gets a copy, but not under ``live_states``.

    Args:
        graph: as in ``split``.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> plait.map(lambda path, leaf: leaf.replace(leaf * 0), model).kernel.sum().item()
        0.0
    """
    check_mode(node, graph)
    walk = Walk()
    graphdef = walk.add(node)
    shared = set() if are_live() else {id(leaf) for leaf in walk.leaves}
    mapped = [f(path_of(link), leaf) for link, leaf in zip(walk.links, walk.leaves, strict=True)]
    leaves = [leaf.copy() if isinstance(leaf, Variable) and id(leaf) in shared else leaf for leaf in mapped]
    return merge(graphdef, leaves, copy=False, recreate_variables=recreate_variables)


def recursive_map(f: Callable[[Path, Any], Any], node: Any, /, *, graph: bool | None = None) -> Any:
    """Replace every node and leaf, children first, on a copy that shares variables.

    A shared object is mapped once, and its replacement is used everywhere.

    Args:
        f: ``(path, value) -> value``.
        graph: as in ``split``.

    Raises:
        GraphError: a node contains itself.
    """
    check_mode(node, graph)
    done: dict[Place, Any] = {}
    children: dict[Place | None, list[tuple[Any, Any]]] = {}
    for place in children_first(visit(node)):
        first = place.first or place
        if place.first is None:
            given = _rebuilt(place, children.pop(place, []))
            done[place] = f(place.path, given)
        elif first not in done:
            raise GraphError(
                "recursive_map found a cycle",
                at=describe_path(place.path),
                found=f"{describe_type(place.value)} that contains itself",
                expected="a graph without cycles",
                do="remove the cycle first, or map the state with plait.map",
            )
        children.setdefault(place.owner, []).append((place.key, done[first]))
    return children[None][0][1]


def _rebuilt(place: Place, children: list[tuple[Any, Any]]) -> Any:
    """A node with new children; a leaf unchanged."""
    if not place.enter:
        return place.value
    impl = get_node_impl(place.value)
    metadata = impl.flatten(place.value)[1]  # type: ignore[union-attr]
    if isinstance(impl, PytreeNodeImpl):
        return impl.unflatten(children, metadata)
    node = impl.create_empty(metadata)  # type: ignore[union-attr]
    impl.init(node, children)  # type: ignore[union-attr]
    return node


def with_vars(
    node: N,
    /,
    *,
    ref: bool | None = None,
    hijax: bool | None = None,
    mutable: bool | None = None,
    only: FilterLiteral = ...,
    allow_duplicates: bool = False,
    graph: bool | None = None,
) -> N:
    """A copy in which the matching variables are created again with different flags.

    Args:
        ref: whether to store values in JAX references.
        mutable: the older name of ``ref``.
        allow_duplicates: whether a matching variable may have two paths.
        graph: as in ``split``.

    Raises:
        GraphError: a matching variable has two paths.
        NotImplementedError: ``hijax=True``.
    """
    check_mode(node, graph)
    if hijax:
        raise NotImplementedError("with_vars: hijax=True is not supported by plait; omit it")
    ref = mutable if ref is None else ref
    predicate = to_predicate(only)
    if not allow_duplicates:
        for paths in find_duplicates(node, only=lambda path, value: isinstance(value, Variable)):
            raise GraphError(
                "with_vars does not accept shared variables",
                at=" and ".join(describe_path(path) for path in paths),
                found="one variable at both (a duplicate)",
                expected="each variable at one path",
                do="pass allow_duplicates=True",
            )

    def remake(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, Variable) or ref is None or not predicate(path, leaf):
            return leaf
        value = plain_value(leaf)
        metadata = {**leaf.get_metadata(), "ref": ref}
        return type(leaf).from_metadata(as_stored(value, metadata), metadata)

    return map(remake, node, graph=True)
