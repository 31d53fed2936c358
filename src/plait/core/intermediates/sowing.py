"""Sowing: recording intermediate values while a module runs. (rules D1, D2)

While ``capture`` runs, each module has a record in ``_pytree__sown``: the captured kinds and the variables sown so
far. It is an ordinary attribute, so transforms handle it like any other. Without a record, values become attributes.

A transform declares here what cannot leave its body. ``Module`` gets its methods here.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax.numpy as jnp

from ...errors import ArgumentError, ShapeError
from ...typing import Metadata, Node, Value
from ...util.jax_versions import current_trace, trace_state, transform_of
from ...util.notices import deprecated
from ...util.words import describe_type, with_article
from .. import hooks
from ..graph.graphdef import VariableDef
from ..graph.unflatten import UNTOUCHED, Builder, plan_of
from ..nodes.journal import Journal
from ..nodes.module import Module
from ..nodes.nodes import iter_graph_nodes
from ..settings import Restoring, Settings, declared
from ..traces.guard import check_trace
from ..variables.variable_kinds import Perturbation
from ..variables.variables import Variable
from .variable_names import variable_type_from_name

R = TypeVar("R")

RECORD = "_pytree__sown"
_SHARED = "shared by all of"  # in a record: the transform that shares the module


def _append(values: tuple[Value, ...], value: Value) -> tuple[Value, ...]:
    return (*values, value)


class _Sowing(Settings):
    keep: bool = False  # as attributes, without a warning
    capture_noop: bool = False  # of calls that do not say it


class _Enclosing(threading.local):
    transform: str | None = None


settings, _enclosing = declared("sown values", _Sowing()), _Enclosing()


def keeping_sown() -> Restoring:
    """Store sown values as attributes without a warning, because Linen collections are created from them."""
    return Restoring(settings, keep=True)


def sows(module: Node) -> bool:
    """Whether it is a module with a record."""
    return RECORD in getattr(module, "__dict__", ())


def around_body(body: Any, entered: Any, call: Callable[[], R]) -> R:
    """Call the function of a body, where it is known what sowing cannot do there."""
    with _kept_in(body, entered):
        out = call()
    if body.propagation.structural == RECORD:
        _restore_structure(entered)
    return out


def _restore_structure(entered: Any) -> None:
    """Only the values of the function's arguments are carried out, and what is sown: their records stay."""
    records = [(node, vars(node)[RECORD]) for node in entered.index_ref.values() if sows(node)]
    values = iter(entered.values)
    with Journal() as journal:
        builder = Builder({}, entered.index_ref, journal=journal)
        for graphdef in entered.structure.roots:
            leaves = zip(plan_of(graphdef).leaf_defs, values, strict=False)
            builder.build(graphdef, [UNTOUCHED if isinstance(part, VariableDef) else value for part, value in leaves])
    for node, record in records:
        set_record(node, record)


def recorded_in(roots: Iterable[Node]) -> str | None:
    """The record, where there is one: what modules sow leaves every call."""
    return RECORD if any(map(sows, roots)) else None


def _kept_in(body: Any, entered: Any) -> AbstractContextManager[object]:
    """Inside the block something is traced that keeps what is sown: a branch, a turn of a loop without outputs, or one
    of the examples that share a module."""
    if not body.name.has_outputs:
        return Restoring(_enclosing, transform=_enclosing.transform or body.name)
    if body.rules.axis is None:
        return contextlib.nullcontext()
    roots = [root for root, prefix in zip(entered.roots, body.prefixes, strict=True) if prefix is None]
    return _shared_by_all([node for root in roots if sows(root) for _, node in iter_graph_nodes(root)], body.name)


@contextlib.contextmanager
def _shared_by_all(modules: Iterable[Node], transform: str) -> Iterator[None]:
    """Inside the block a transform maps over examples that share these modules. Their records say so, and go with them
    into transforms inside."""
    records = [module.__dict__[RECORD] for module in modules if sows(module)]
    told = [record for record in records if _SHARED not in record]
    for record in told:
        record[_SHARED] = transform
    try:
        yield
    finally:
        for record in told:
            del record[_SHARED]


def set_record(module: Node, record: Metadata | None) -> None:
    """Give a module a record; ``None`` removes it."""
    check_trace(module._pytree__info.trace, module, f"set the attribute {RECORD!r} of a")
    if record is None:
        module.__dict__.pop(RECORD, None)
    else:
        module.__dict__[RECORD] = record
    module._pytree__info.mark_rebuilt()


def what_shuts_in(module: Node) -> str | None:
    """The transform that keeps what this module would sow now; ``None`` if it gets out."""
    if _enclosing.transform is not None:
        return _enclosing.transform
    shared = module.__dict__.get(RECORD, {}).get(_SHARED)
    if shared is not None:
        return shared
    return None if module._pytree__info.trace is trace_state.value else transform_of(current_trace()) or "a transform"


def new_record(kinds: tuple[type, ...], values: dict[str, object], method_outputs: type | None) -> dict[str, object]:
    """The record of a module while its values are captured."""
    return {"kinds": kinds, "values": values, "method_outputs": method_outputs}


def sow(
    self: Module,
    variable_type: type[Variable[Value]] | str,
    name: str,
    value: Value,
    reduce_fn: Callable[[Value, Value], Value] = _append,
    init_fn: Callable[[], Value] = tuple,
    capture_noop: bool | None = None,
) -> bool:
    """Record a value, which ``plait.capture`` returns with the result of the model.

    Outside ``capture`` the value is stored in an attribute of the module, with a warning.

    Args:
        variable_type: the class of the variable that stores it, or a collection name.
        name: the name of the variable.
        value: the value.
        reduce_fn: ``(stored, value) -> stored``; by default, values are collected in a tuple.
        init_fn: returns the initial value.
        capture_noop: whether to store nothing outside ``capture``.

    Returns:
        Whether the value was stored: inside ``capture``, whether exactly this kind is captured.

    Raises:
        ArgumentError: the name belongs to an attribute that is not a variable of this kind.

    Example:
        >>> class Doubling(plait.Module):
        ...     def __call__(self, x):
        ...         self.sow(plait.Intermediate, "input", x)
        ...         return 2 * x
        >>> y, seen = plait.capture(Doubling(), plait.Intermediate)(3.0)
        >>> y, seen["input"].value
        (6.0, (3.0,))
    """
    kind = _class_of(variable_type)
    record = self.__dict__.get(RECORD)
    if _is_noop(capture_noop) if record is None else kind not in record["kinds"]:
        return False
    if record is None and not settings.keep:
        _warn_about_attributes(kind)
    variable = _kept(self, record, kind, name)
    if variable is None:
        _keep(self, record, name, kind(reduce_fn(init_fn(), value)), "sow a value in a")
    else:
        variable.set_value(reduce_fn(variable.get_value(), value))
    return True


def perturb(
    self: Module,
    name: str,
    value: Value,
    variable_type: type[Variable[Value]] | str = Perturbation,
    capture_noop: bool | None = None,
) -> Value:
    """Add a stored value, initially zeros, whose gradient is the gradient with respect to ``value`` here.

    Inside ``plait.capture`` it is stored if its kind is captured or it was passed as ``init``; outside, it is an
    attribute of the module.

    Args:
        name: the name of the stored variable.
        value: an array.
        variable_type: the class of the stored variable, or a collection name.
        capture_noop: whether to return ``value`` unchanged outside ``capture``.

    Raises:
        ArgumentError: the name belongs to an attribute that is not a variable of this kind.

    Example:
        >>> class Doubling(plait.Module):
        ...     def __call__(self, x):
        ...         return 2 * self.perturb("before", x)
        >>> y, probes = plait.capture(Doubling(), plait.Perturbation)(3.0)
        >>> float(y), float(probes["before"].value)
        (6.0, 0.0)
    """
    kind = _class_of(variable_type)
    record = self.__dict__.get(RECORD)
    if _is_noop(capture_noop) if record is None else name not in record["values"] and kind not in record["kinds"]:
        return value
    variable = _kept(self, record, kind, name)
    if variable is None:
        variable = kind(jnp.zeros_like(value))
        _keep(self, record, name, variable, "store a perturbation in a")
    stored = variable.get_value()
    if jnp.shape(stored) != jnp.shape(value):
        raise ShapeError(
            f"the perturbation {name!r} and the value that it is added to have different shapes",
            at=f"{type(self).__name__}.{name}",
            found=f"a perturbation of shape {jnp.shape(stored)} and a value of shape {jnp.shape(value)}",
            expected="the same shape",
            do=f"use a different name for each shape:  self.perturb({name + '_2'!r}, value)",
        )
    return value + stored


def _is_noop(capture_noop: bool | None) -> bool:
    return settings.capture_noop if capture_noop is None else capture_noop


def _warn_about_attributes(kind: type) -> None:
    deprecated(
        "sow outside of plait.capture, which stores values as attributes of the module",
        since="0.1",
        instead=f"plait.capture(model, plait.{kind.__name__})(...)",
        removed_in="2.0",
    )


def _class_of(kind: type[Variable[Value]] | str) -> type[Variable[Value]]:
    return variable_type_from_name(kind, allow_register=True) if isinstance(kind, str) else kind


def _kept(module: Node, record: dict[str, Any] | None, kind: type, name: str) -> Variable[Value] | None:
    """The variable of this name, if there is one."""
    found = (module.__dict__ if record is None else record["values"]).get(name)
    if found is None or isinstance(found, kind):
        return found
    raise ArgumentError(
        f"Expected {name!r} to be of type {kind.__name__!r}: the name is already used for something else",
        at=f"{type(module).__name__}.{name}",
        found=describe_type(found),
        expected=f"{with_article(kind.__name__)}, or no attribute of this name",
        do=f"use a different name: {name + '_values'!r}",
    )


def _keep(module: Node, record: dict[str, Any] | None, name: str, variable: Variable[Value], action: str) -> None:
    if record is None:
        setattr(module, name, variable)
    else:
        check_trace(module._pytree__info.trace, module, action)
        record["values"][name] = variable


Module.sow, Module.perturb = sow, perturb
hooks.around_body["sowing"], hooks.recorded_in = around_body, recorded_in
