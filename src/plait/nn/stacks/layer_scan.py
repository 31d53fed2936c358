"""A scan over stacked layers, recomputed in the backward pass as asked.

The layers are slices of the ports with an axis. With ``every=k`` the scan runs over chunks of ``k`` layers, and a chunk
is what is recomputed, so that only the value between two chunks is kept. (rule ST6)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ...core.nodes.nodes import Static
from ...transforms.call.body import Body, NamedAsUsers, OfBody
from ...transforms.call.call import Call
from ...transforms.call.outcome import Outcome
from ...transforms.call.prefixes import Carry
from ...transforms.loops import check_carry_types, iteration_names, shared_ports


@dataclasses.dataclass(frozen=True)
class Recomputing:
    """What is recomputed in the backward pass.

    Attributes:
        policy: which values are kept nevertheless, as for ``jax.checkpoint``.
        every: how many layers are recomputed together.
    """

    policy: Callable[..., bool] | None = None
    every: int = 1

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, recomputed. Inside a scan JAX has no need to prevent common subexpressions."""
        return jax.checkpoint(function, prevent_cse=False, policy=self.policy)


@dataclasses.dataclass(frozen=True)
class _Layer(OfBody):
    """One layer, or one period of them, as a function of what is carried, shared arrays and slices.

    Attributes:
        treedef, constants: of the ports that all layers share, see ``loops.shared_ports``.
    """

    body: Body
    treedef: Any
    constants: tuple[Static | None, ...]

    def __call__(self, carried: list[Any], arrays: list[Any], slices: dict[int, list[Any]]) -> Any:
        supply = iter(arrays)
        leaves = [next(supply) if constant is None else constant.value for constant in self.constants]
        given = {**jax.tree_util.tree_unflatten(self.treedef, leaves), **slices}
        carry = self.body.ports.kinds.index(Carry)
        given[carry] = carried
        outputs, outcome = self.body([given[port] for port in range(len(self.body.ports.kinds))])
        check_carry_types(self.body, carry, carried, outputs[carry])
        return outputs[carry], {port: outputs[port] for port in slices}, outcome

    def user_function(self) -> Callable[..., Any]:
        """The function that the user gave, or the method of the block."""
        structure = self.body.structure
        *_, f = jax.tree_util.tree_unflatten(structure.treedef, structure.graphdefs)[0]
        return f.value if callable(f.value) else structure.roots[0].type.__call__

    def names(self) -> tuple[Any, ...]:
        return iteration_names(self.body, self.treedef, self.constants)


@dataclasses.dataclass(frozen=True)
class _Step(NamedAsUsers):
    """One iteration of the scan: one layer, or several, as ``layer`` runs them.

    Arrays that come back as they went in are constants of the loop to JAX. They are no constants of the function, or
    JAX would take those of one call for those of the next.
    """

    one: _Layer
    layer: Callable[..., Any]

    def user_function(self) -> Callable[..., Any]:
        return self.one.user_function()

    def names(self) -> tuple[Any, ...]:
        carried, arrays, slices = self.one.names()
        return (carried, arrays), slices

    def __call__(self, handed: tuple[list[Any], list[Any]], slices: dict[int, list[Any]]) -> Any:
        carried, arrays = handed
        after, out, outcome = self.layer(carried, arrays, slices)
        return (after, arrays), (out, outcome)


@dataclasses.dataclass(frozen=True)
class _Scanned:
    """A scan over layers as a function of what is carried, shared arrays and stacked slices."""

    step: _Step
    unroll: int | bool

    def __call__(self, carried: list[Any], arrays: list[Any], stacked: dict[int, list[Any]]) -> Any:
        (last, _), (slices, outcome) = jax.lax.scan(self.step, (carried, arrays), stacked, unroll=self.unroll)
        return last, slices, outcome


def scan_layers(
    call: Call, size: int, *, unroll: int | bool = 1, recomputing: Recomputing | None = None
) -> tuple[list[list[Any]], Outcome]:
    """Run a body for each layer; the ports are ``Carry``, 0 for slices, and others that all layers share.

    Args:
        size: how many layers.

    Returns:
        The ports of what comes out, and what a layer did.
    """
    scanned = [port for port, axis in enumerate(call.ports.kinds) if axis == 0 and isinstance(axis, int)]
    carry = call.ports.kinds.index(Carry)
    shared, arrays, constants = shared_ports(call.inputs, [*scanned, carry])
    key = ("layers", shared, constants, unroll, recomputing)
    make = functools.partial(_runner, treedef=shared, constants=constants, unroll=unroll, recomputing=recomputing)
    stacked = {port: list(call.inputs[port]) for port in scanned}
    run = call.cached(key, make)
    # Step by step nothing is recomputed: JAX traces what is, once for all layers, so that no layer would be named.
    layer = _Layer(call.body, shared, constants)
    steps = _Scanned(_Step(layer, layer), unroll)
    given = list(call.inputs[carry]), arrays, stacked
    last, slices, outcome = call.run(functools.partial(run, size), *given, stepwise=steps)
    found = {**slices, carry: last}
    return [found.get(port, []) for port in range(len(call.ports.kinds))], outcome


def _runner(
    body: Body, treedef: Any, constants: tuple[Any, ...], unroll: int | bool, recomputing: Recomputing | None
) -> Callable[..., Any]:
    layer = _Layer(body, treedef, constants)
    if recomputing is None or recomputing.every == 1:
        scanned = _Scanned(_Step(layer, layer if recomputing is None else recomputing.wrap(layer)), unroll)
        return lambda size, carried, arrays, stacked: scanned(carried, arrays, stacked)
    chunk = recomputing.wrap(_Scanned(_Step(layer, layer), unroll))
    return functools.partial(_in_chunks, chunk, _Scanned(_Step(layer, chunk), 1), recomputing.every)


def _in_chunks(
    chunk: Callable[..., Any], chunks: _Scanned, every: int, size: int, carried: Any, arrays: Any, stacked: Any
) -> Any:
    """Whole chunks by a scan, then the layers that are left as one more chunk."""
    whole, left = divmod(size, every)
    found: list[Mapping[int, Any]] = []
    outcome: Any = None
    if whole:
        split = jax.tree.map(lambda x: x[: whole * every].reshape(whole, every, *x.shape[1:]), stacked)
        carried, slices, outcome = chunks(carried, arrays, split)
        found.append(jax.tree.map(lambda x: x.reshape(whole * every, *x.shape[2:]), slices))
    if left:
        carried, slices, outcome = chunk(carried, arrays, jax.tree.map(lambda x: x[whole * every :], stacked))
        found.append(slices)
    joined = found[0] if len(found) == 1 else jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
    return carried, joined, outcome
