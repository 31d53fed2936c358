"""Differences from Flax that show in the function of a transform, said where its body runs.

A guest only while differences are said. The other places ask ``ground/differences.py`` themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from ..core.objects.lost_writes import PLAIT
from ..core.objects.nodes import Kind
from ..core.objects.visit import Place, visit
from ..ground import differences
from ..ground.paths import describe_path
from ..transforms.call.prefixes import Carry

_LOOPS = ("fori_loop", "while_loop", "scan")


def around_body(body: Any, entered: Any, call: Callable[[], Any]) -> Any:
    """The call of the function of a transform."""
    out = call()
    if body.name == "eval_shape" and getattr(body.f(), "__module__", "").partition(".")[0] != PLAIT:  # the user's own
        for place in _array_attributes(out):
            differences.say("shapes of array attributes", f"the output, {describe_path(place.path)}")
    if body.name in _LOOPS and not body.structural:
        kinds = [body.ports[port] for port in body.value_ports]
        for kind, variable, label in zip(kinds, entered.variables(), body.value_labels(), strict=True):
            if kind is Carry and variable is None:
                differences.say("arrays of carried modules without updates", label)
    return out


def before_zeros(body: Any, cotangents: Any) -> None:
    """The cotangents for a rule, which sees those of the values of variables if it carries structure."""
    found = jax.tree.leaves(cotangents, is_leaf=lambda leaf: isinstance(leaf, SymbolicZero))
    if body.structural and any(isinstance(zero, SymbolicZero) and _is_weak(zero) for zero in found):
        differences.say("weak types of cotangents")


def _is_weak(zero: Any) -> bool:
    return zero.aval.weak_type


def _array_attributes(node: Any) -> Iterator[Place]:
    for place in visit(node):
        owner = place.owner
        while owner is not None and owner.kind is not Kind.GRAPH:
            owner = owner.owner
        if place.kind is Kind.ARRAY and owner is not None:
            yield place
