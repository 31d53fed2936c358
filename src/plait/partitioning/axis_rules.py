"""Logical axis rules map the names that a model gives its axes to the axes of a mesh.

A rule is a pair ``(logical name, mesh axis)``. Names of variables are renamed one by one (``from_sharding_rules``);
names of boxes are assigned by priority (``logical_to_mesh_axes``), where no mesh axis is used twice. (rules M29 to M32)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import PartitionSpec

from ..core.settings import Restoring, Settings, declared
from ..errors import ArgumentError
from ..util.sentinels import NOTHING

Rules = Sequence[tuple[str, Any]]


class _Rules(Settings):
    rules: Rules = ()
    last_counts: bool = False  # whether a name of a variable may have several rules; if so, the last one counts

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _checked(value) if name == "rules" else value)


current = declared("logical axis rules", _Rules())


class RulesFallback(enum.Enum):
    """What to do with an axis that no rule matches."""

    AXIS_IS_UNSHARDED = "axis_is_unsharded"
    RAISE_ERROR = "raise_error"
    NO_CONSTRAINT = "no_constraint"


def logical_axis_rules(rules: Rules) -> Restoring:
    """Set the rules of this thread or task for a ``with`` block or a decorated function.

    Args:
        rules: pairs of a logical name and a mesh axis: a name, a tuple of names, or ``None`` (not sharded).

    Example:
        >>> with plait.logical_axis_rules([("embed", None), ("mlp", "model")]):
        ...     plait.spmd.get_logical_axis_rules()
        (('embed', None), ('mlp', 'model'))
    """
    return Restoring(current, rules=rules)


def set_logical_axis_rules(rules: Rules) -> None:
    """Set the rules of this thread or task."""
    current.rules = rules


def get_logical_axis_rules() -> Rules:
    """The rules of this thread or task."""
    return current.rules


def _checked(rules: Any) -> Rules:
    if isinstance(rules, (str, Mapping)) or not isinstance(rules, Sequence):
        raise ArgumentError(
            "logical axis rules are a sequence of pairs",
            found=f"a {type(rules).__name__}: {rules!r:.80}",
            expected="such as [('embed', None), ('mlp', 'model')]",
            do="pass a list of pairs; for a dict: list(rules.items())",
        )
    for rule in rules:
        if not isinstance(rule, (tuple, list)) or len(rule) != 2 or not isinstance(rule[0], str):
            raise ArgumentError(
                "a logical axis rule is a pair (logical name, mesh axis)",
                found=f"{rule!r:.80}",
                expected="such as ('mlp', 'model')",
                do="write each rule as a pair",
            )
        check_names([rule[1]], f"the rule for {rule[0]!r}")
    return tuple((name, tuple(axis) if isinstance(axis, list) else axis) for name, axis in rules)


def composite_rules(context: Rules, local: Rules) -> Rules:
    """Both sets of rules combined.

    Raises:
        ArgumentError: one name has two targets; the error names both.
    """
    if not context or not local:
        return context or local or ()
    targets = dict(context)
    for name, axis in local:
        if name in targets and targets[name] != axis:
            raise ArgumentError(
                "logical axis rules contradict each other",
                found=f"{name!r} -> {targets[name]!r} in the context, {name!r} -> {axis!r} of the variable",
                expected="one target for a name",
                do="rename one of the two, or drop the rule from logical_axis_rules or sharding_rules",
            )
        targets[name] = axis
    # Second rules of the context are kept; check_one_target finds them.
    return (*context, *((name, axis) for name, axis in local if (name, axis) not in context))


def check_names(names: Any, what: str) -> None:
    """Raise for anything but a tuple of axis names: a single name, or entries that are not names.

    Raises:
        ArgumentError: the error names the entry.
    """
    entries = names if isinstance(names, (tuple, list)) else ()
    wrong = [entry for entry in entries if not _is_entry(entry)]
    if wrong or not isinstance(names, (tuple, list)):
        raise ArgumentError(
            "axis names are a tuple with an entry for each axis",
            at=what,
            found=f"the entry {wrong[0]!r:.80}" if wrong else f"a {type(names).__name__}: {names!r:.80}",
            expected="for each axis a name, a tuple of names, or None; such as ('embed', None)",
            do=f"write a tuple, with a comma: ({names!r:.60},)" if isinstance(names, str) else "name the axes",
        )


def _is_entry(entry: Any) -> bool:
    parts = entry if isinstance(entry, (tuple, list)) else (entry,)
    return entry is None or entry is PartitionSpec.UNCONSTRAINED or all(isinstance(part, str) for part in parts)


def check_one_target(names: Any, rules: Rules, what: str) -> None:
    """Raise if the rules contradict each other about a name that a variable uses.

    For boxes a second rule is a fallback; the name of a variable has one meaning.

    Raises:
        ArgumentError: the error names both targets.
    """
    if current.last_counts:
        return
    used = {part for name in names for part in (name if isinstance(name, (tuple, list)) else (name,))}
    targets: dict[str, Any] = {}
    for name, axis in rules:
        if name in used and targets.setdefault(name, axis) != axis:
            raise ArgumentError(
                "logical axis rules contradict each other",
                at=what,
                found=f"{name!r} -> {targets[name]!r} and {name!r} -> {axis!r}",
                expected="one target for a name",
                do="drop one of the two, or use two names",
            )


def from_sharding_rules(sharding: Any, rules: Rules) -> tuple[Any, ...]:
    """Axis names, with each name that has a rule replaced by its target.

    Example:
        >>> plait.spmd.from_sharding_rules(("embed", "mlp", None), [("mlp", "model")])
        ('embed', 'model', None)
    """
    targets = dict(rules)

    def rename(entry: Any) -> Any:
        if isinstance(entry, (tuple, list)):
            renamed = [targets.get(name, name) for name in entry]
            flat = [part for name in renamed for part in (name if isinstance(name, tuple) else (name,))]
            return tuple(name for name in flat if name is not None) or None
        return targets.get(entry, entry) if isinstance(entry, str) else entry

    return tuple(map(rename, sharding))


def logical_to_mesh_axes(
    names: Any, rules: Rules | None = None, *, fallback: RulesFallback = RulesFallback.AXIS_IS_UNSHARDED
) -> PartitionSpec | None:
    """The spec of an array whose axes have these logical names.

    Rules are tried in order; one applies if its name is among ``names``, that axis has no target yet, and no other axis
    uses one of its mesh axes already.

    Args:
        names: for each axis a name, a tuple of names, or ``None``. If ``names`` itself is ``None``, so is the result.
        rules: default: those of the thread.

    Raises:
        ArgumentError: a name is repeated, or no rule matches a name and ``fallback`` says to raise.

    Example:
        >>> plait.meta.logical_to_mesh_axes(("batch", "mlp"), [("batch", "data"), ("mlp", "data"), ("mlp", "model")])
        P('data', 'model')
    """
    if names is None:
        return None
    rules = get_logical_axis_rules() if rules is None else _checked(rules)
    names = tuple(names)
    named = [name for name in names if isinstance(name, str)]
    repeated = sorted({name for name in named if named.count(name) > 1})
    if repeated:
        raise ArgumentError(
            "a logical axis name is repeated",
            found=f"{', '.join(map(repr, repeated))} in {names}",
            expected="each name once",
            do="give the axes different names",
        )
    assigned: list[Any] = [NOTHING if isinstance(name, str) else name for name in names]
    used: set[Any] = set()
    for name, axis in rules:
        if name in names and assigned[names.index(name)] is NOTHING:
            axes = set(axis) if isinstance(axis, tuple) else {axis} - {None}
            if not axes & used:
                assigned[names.index(name)] = axis
                used |= axes
    missing = [name for name, axis in zip(names, assigned, strict=True) if axis is NOTHING]
    if missing and fallback is RulesFallback.RAISE_ERROR:
        raise ArgumentError(
            "no rule matches a logical axis name",
            found=f"{', '.join(map(repr, missing))} in {names}",
            expected=f"one of {[name for name, _ in rules]}",
            do="add a rule, or (name, None) for an axis that is not sharded",
        )
    if missing and fallback is RulesFallback.NO_CONSTRAINT:
        return None
    return PartitionSpec(*(None if axis is NOTHING else axis for axis in assigned))
