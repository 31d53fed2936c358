"""Parameter groups: which transformation updates which parameters. (rule O11)

A ``tx`` is a transformation, a list of ``tx``, applied one after the other, or a mapping from filters to ``tx``, of
which the first that matches a parameter counts. ``None`` freezes a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.nodes.pytree import Pytree
from ..core.variables.filters import All, Any_, Everything, Not, to_predicate
from ..edit.selection import with_patterns
from ..errors import ArgumentTypeError, OptimizerError
from ..util.paths import Path, describe_path
from ..util.words import describe_filter, describe_type, first_few
from . import layerwise_updates
from .layerwise_updates import Values, nested


class Groups(NamedTuple):
    """A mapping from filters to transformations, in its order, in which the first match counts."""

    filters: tuple[Any, ...]
    parts: tuple[Any, ...]  # None for a frozen group


def resolve_tx(tx: Any, name: str) -> Any:
    """A ``tx`` in a form that can be compared: lists as tuples, mappings as ``Groups``.

    Args:
        name: of the optimizer, for errors.

    Raises:
        ArgumentTypeError: a part of it is no gradient transformation; names the type.
    """
    if isinstance(tx, Mapping):
        parts = [None if part is None else resolve_tx(part, name) for part in tx.values()]
        return Groups(tuple(map(with_patterns, tx)), tuple(parts))
    if isinstance(tx, Sequence) and not isinstance(tx, str) and not hasattr(tx, "update"):
        return tuple(resolve_tx(part, name) for part in tx)
    check_transformation(tx, name)
    return tx


def check_transformation(tx: Any, name: str) -> None:
    """Raise if a value lacks ``init`` and ``update``.

    Raises:
        ArgumentTypeError: names the type.
    """
    if not callable(getattr(tx, "init", None)) or not callable(getattr(tx, "update", None)):
        known = getattr(tx, "__name__", None) if callable(tx) and not isinstance(tx, Pytree) else None
        raise ArgumentTypeError(
            f"tx of {name} is not a gradient transformation",
            found=f"the function {known}" if known else describe_type(tx),
            expected="an object with init and update, such as Optax optimizers return",
            do=f"for example tx=optax.{known or 'adam'}(1e-3)",
        )


def trained(tx: Any) -> Any:
    """The filter for parameters that no mapping of a ``tx`` freezes; ``None`` if nothing is frozen."""
    if not _is_composed(tx):
        return None
    inner = [*map(trained, tx.parts if isinstance(tx, Groups) else tx)]
    if not isinstance(tx, Groups):
        rest = [each for each in inner if each is not None]
        return All(*rest) if rest else None
    if None not in tx.parts and not any(inner):
        return None
    found: Any = Everything()  # what is in no group is an error later
    for filter, part, own in reversed([*zip(tx.filters, tx.parts, inner, strict=True)]):
        found = All(Not(filter), found)
        if part is not None:
            found = Any_(filter if own is None else All(filter, own), found)
    return found


def _is_composed(tx: Any) -> bool:
    return isinstance(tx, Groups) or (isinstance(tx, tuple) and not hasattr(tx, "update"))


def ways_of(tx: Any, selected: Mapping[Path, Any], values: Values) -> Iterator[str]:
    """How each transformation treats the layers of stacks, in the order in which they come in ``tx``."""
    if isinstance(tx, Groups):
        for part, own in _groups(tx, selected):
            yield from ways_of(part, selected, _only(values, own))
    elif _is_composed(tx):
        for part in tx:
            yield from ways_of(part, selected, values)
    elif tx is not None:
        yield layerwise_updates.way_for(tx, values)


def init(tx: Any, selected: Mapping[Path, Any], values: Values, ways: Iterator[str]) -> Any:
    """The state of a ``tx``: a tuple for a list, and for the groups of a mapping.

    Args:
        selected: the parameters, by path.
        values: their values; those of a group alone, inside a mapping.
        ways: from ``ways_of``.
    """
    if isinstance(tx, Groups):
        groups = _groups(tx, selected)
        return tuple(() if part is None else init(part, selected, _only(values, own), ways) for part, own in groups)
    if _is_composed(tx):
        return tuple(init(part, selected, values, ways) for part in tx)
    return layerwise_updates.init(tx, values, next(ways))


def update(
    tx: Any,
    selected: Mapping[Path, Any],
    gradients: Values,
    opt_state: Any,
    values: Values,
    extra: dict[str, Any],
    ways: Iterator[str],
) -> tuple[Any, Any]:
    """The updates, as a nested ``State``, and the new state; the arguments are those of ``init``."""
    if isinstance(tx, Groups):
        updates, states = dict(gradients), []
        for (part, own), old in zip(_groups(tx, selected), opt_state, strict=True):
            own = [path for path in own if path in values]
            if part is None:
                states.append(())
                continue
            given = _only(gradients, own), old, _only(values, own)
            found, new = update(part, selected, *given, extra, ways)
            updates.update({path: at(found, path) for path in own})
            states.append(new)
        return nested(updates), tuple(states)
    if _is_composed(tx):
        states = []
        for part, old in zip(tx, opt_state, strict=True):
            found, new = update(part, selected, gradients, old, values, extra, ways)
            gradients = {path: at(found, path) for path in values}
            states.append(new)
        return nested(gradients), tuple(states)
    return layerwise_updates.update(tx, gradients, opt_state, values, extra, next(ways))


def at(tree: Any, path: Path) -> Any:
    """The entry at a path of nested mappings."""
    for key in path:
        tree = tree[key]
    return tree


def _only(values: Values, paths: Sequence[Path]) -> Values:
    return {path: values[path] for path in paths if path in values}


def _groups(tx: Groups, selected: Mapping[Path, Any]) -> list[tuple[Any, list[Path]]]:
    """The transformation and the paths of each group.

    Raises:
        OptimizerError: a parameter is in no group.
    """
    predicates = [*map(to_predicate, tx.filters)]
    found: list[tuple[Any, list[Path]]] = [(part, []) for part in tx.parts]
    left = []
    for path, leaf in selected.items():
        group = next((number for number, predicate in enumerate(predicates) if predicate(path, leaf)), None)
        (left if group is None else found[group][1]).append(path)
    if left:
        raise OptimizerError(
            "parameters are in no group of the optimizer",
            at=first_few([*map(describe_path, left)]),
            found=f"the groups {', '.join(map(describe_filter, tx.filters))}",
            expected="a group for each parameter that wrt selects",
            do="add a last group for all others: {..., ...: optax.adamw(1e-3)}, or {..., ...: None} to freeze them",
        )
    return found
