"""Shardings of a jitted function: what the caller says about arguments and output, value by value. (rules X2, X10)

Inputs are told to ``jax.jit`` itself. What comes out is laid out inside, since how many values a function writes is
known only to its trace: a variable that came in goes out as it came, a new one as its prefix says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from ..._compat import ArrayImpl, top_level_trace, trace_state
from ...core.objects.nodes import Static
from ...errors import ArgumentError
from ..call.aliasing import Treatment, check_aliasing
from ..call.body import Body, describe_address
from ..call.call import Strong, value_prefixes
from ..call.gather import Gathered, Structure
from ..call.names import argument_name, parameter_names
from ..call.outcome import Address, Outcome
from ..call.prefixes import Prefix, is_graph_leaf, values_in


class Shardings:
    """What was said for ``in_shardings`` and ``out_shardings`` of one jitted function.

    Args:
        f: the function, for the names of its arguments.
        ins, outs: prefixes whose leaves are shardings, specs, ``None`` (JAX decides), or ``StateSharding``.
    """

    def __init__(self, f: Callable[..., Any], ins: Any, outs: Any, *, updates: bool) -> None:
        self.names = parameter_names(f)
        self.given = tuple(ins) if isinstance(ins, list) else ins
        self.updates = updates
        Prefix.of("jit", "in_shardings", self.given, updates=updates)  # what is wrong with it is said at once
        self.outs = Prefix.of("jit", "out_shardings", outs, updates=updates)

    def of_call(self, gathered: Gathered, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallShardings:
        """The shardings of one call's arguments.

        Raises:
            ArgumentError: a keyword argument, whose position is not known; or a prefix or a spec that does not fit.
            SharingError: a variable is reached under two shardings.
        """
        if kwargs:
            raise ArgumentError(
                "jit with in_shardings takes no keyword arguments that the signature does not place",
                at=next(iter(kwargs)),
                found=f"the keyword arguments {sorted(kwargs)}",
                expected="positional arguments",
                do="pass them by position",
            )
        given = self._aligned(args)
        spread = Prefix.of("jit", "in_shardings", given, updates=self.updates).spread(args)
        pairs, _ = jax.tree_util.tree_flatten_with_path((args, {}), is_leaf=is_graph_leaf)
        roots = [
            (argument_name(path, self.names), leaf, prefix)
            for (path, leaf), prefix in zip(pairs, spread, strict=True)
            if is_graph_leaf(leaf)
        ]
        prefixes = tuple(prefix for _, _, prefix in roots)
        if len(set(prefixes)) > 1:
            check_aliasing("jit", [Treatment(*root) for root in roots], {})
        values = list(value_prefixes(gathered, prefixes, lambda: [label for label, _, _ in roots]))
        plain = [prefix for (_, leaf), prefix in zip(pairs, spread, strict=True) if not is_graph_leaf(leaf)]
        arguments = [given[i] if isinstance(given, tuple) else given for i in range(len(args))]
        labels = gathered.structure.value_labels([label for label, _, _ in roots])
        call = CallShardings(values, plain, arguments, prefixes, self.outs, labels)
        for place, value, sharding in self._inputs(call, gathered, args):
            check_layout("in_shardings", lambda place=place: place, value, sharding)
        return call

    def _aligned(self, args: tuple[Any, ...]) -> Any:
        """What was given, with an entry for static arguments, too: as in JAX, they have none of their own."""
        statics = sum(type(argument) is Static for argument in args)
        if not statics or not isinstance(self.given, tuple) or len(self.given) != len(args) - statics:
            return self.given
        supply = iter(self.given)
        return tuple(None if type(argument) is Static else next(supply) for argument in args)

    def _inputs(self, call: CallShardings, gathered: Gathered, args: tuple[Any, ...]) -> Iterator[tuple[str, Any, Any]]:
        """Every input: where it stands, its value, and the sharding that was said for it."""
        pairs, _ = jax.tree_util.tree_flatten_with_path((args, {}), is_leaf=is_graph_leaf)
        places = [*call.labels, *(argument_name(path, self.names) for path, leaf in pairs if not is_graph_leaf(leaf))]
        values = [*gathered.values(), *gathered.plain]
        return zip(places, values, [*call.values, *call.plain], strict=True)

    def explain(self, error: BaseException, gathered: Gathered, args: tuple[Any, ...]) -> None:
        """Name the input that does not fit what was said for it, or arrives in another sharding, if that is the error.

        Raises:
            ArgumentError: names its path, and the spec or both shardings.
        """
        if isinstance(error, ArgumentError):
            return
        call = self.of_call(gathered, args, {})
        inputs = list(self._inputs(call, gathered, args))
        if "requires a non-empty mesh" in str(error):
            given = [("in_shardings", place, spec) for place, _, spec in inputs]
            given += [("out_shardings", "the output", spec) for spec in self.outs.leaves]
            for argument, place, spec in given:
                if isinstance(spec, PartitionSpec):
                    raise ArgumentError(
                        f"jit: {argument} has partition specs, and no mesh is in force",
                        at=place,
                        found=f"{spec}, and no mesh in force",
                        expected="a mesh that jax.set_mesh put in force, or shardings with a mesh of their own",
                        do="call it under `with jax.set_mesh(mesh): ...`, or pass "
                        f"jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec{tuple(spec)!r})",
                    ) from error
        if "does not match the sharding" not in str(error):
            return
        mesh = jax.sharding.get_mesh()
        for place, value, expected in inputs:
            found = getattr(value, "sharding", None)
            if isinstance(expected, PartitionSpec) and not mesh.empty:
                expected = NamedSharding(mesh, expected)
            if isinstance(expected, Sharding) and found is not None and not _agree(found, expected, value):
                raise ArgumentError(
                    "jit: an array arrives in another sharding than in_shardings says",
                    at=place,
                    found=f"{found}",
                    expected=f"{expected}",
                    do="move it first: jax.device_put(value, sharding), or say None and let JAX decide",
                ) from error


def _agree(found: Sharding, expected: Sharding, value: Any) -> bool:
    return not getattr(value, "committed", True) or found.is_equivalent_to(expected, value.ndim)


def leave_in_layout(gathered: Gathered, shardings: Sequence[Any], outcome: Outcome) -> None:
    """Lay out what a call only read as it was told to take it, so that the next call need not move it again."""
    walk, written = gathered.walk, {position for position, _ in outcome.written}
    if walk is None or trace_state.value is not top_level_trace:
        return
    mesh = jax.sharding.get_mesh()
    for position, sharding in enumerate(shardings):
        if isinstance(sharding, PartitionSpec) and not mesh.empty:
            sharding = NamedSharding(mesh, sharding)
        if position in written or not isinstance(sharding, Sharding) or walk.types[position] is None:
            continue
        cell = walk.cells[position]
        leaves = jax.tree_util.tree_leaves(cell.raw)
        if all(type(leaf) is ArrayImpl and leaf.sharding != sharding for leaf in leaves):
            cell.raw = jax.device_put(cell.raw, sharding)


class CallShardings:
    """The shardings of the arguments of one call, and of its output.

    Attributes:
        values, plain: of each input value and each plain leaf.
        arguments: of each positional argument, as given.
        prefixes: of each root.
        labels: where each input value stands.
    """

    def __init__(
        self,
        values: list[Any],
        plain: list[Any],
        arguments: list[Any],
        prefixes: tuple[Any, ...],
        outs: Prefix,
        labels: list[str],
    ) -> None:
        self.values = values
        self.plain = plain
        self.arguments = arguments
        self.prefixes = prefixes
        self.outs = outs
        self.labels = labels

    def run_inside(
        self, f: Callable[..., Any], structure: Structure, values: Sequence[Any], plain: Sequence[Any], options: Any
    ) -> tuple[Sequence[list[Any]], Outcome]:
        """Run the function with a port for each sharding, and lay out every value that comes out as its port says."""
        ports = tuple(values_in([*self.values, *self.plain, *self.outs.leaves, *self.prefixes]))
        value_ports = tuple(map(ports.index, self.values))
        # Plain arguments may have another structure than those of the call that was looked at; JAX lays them out.
        plain_ports = (ports.index(self.values[0]) if self.values else 0,) * len(plain)
        body = Body("jit", Strong(f), structure, ports, value_ports, plain_ports, self.prefixes, self.outs, **options)
        inputs: tuple[list[Any], ...] = tuple([] for _ in ports)
        for port, value in zip((*value_ports, *plain_ports), (*values, *plain), strict=True):
            inputs[port].append(value)
        outputs, outcome = body(inputs)

        def laid_out(port: int, place: int) -> Any:
            where = Address(port, place)
            return constrain(outputs[port][place], ports[port], lambda: describe_address(body, outcome, where))

        laid = [[laid_out(port, place) for place in range(len(values))] for port, values in enumerate(outputs)]
        return laid, outcome


def check_layout(argument: str, place: Callable[[], str], value: Any, sharding: Any) -> None:
    """Refuse a spec, or a sharding with a spec, that arrays of this shape or the mesh in force cannot follow.

    Args:
        argument: where it was said: ``in_shardings`` or ``out_shardings``.
        place: which value it was said for, in words; asked for errors only.

    Raises:
        ArgumentError: names the place, the spec, and what there is.
    """
    if not isinstance(sharding, (PartitionSpec, NamedSharding)):
        return
    bare = isinstance(sharding, PartitionSpec)
    spec: Any = sharding if bare else sharding.spec
    sizes = dict((jax.sharding.get_abstract_mesh() if bare else sharding.mesh).shape)
    mesh = f"the mesh {sizes}" if sizes else "no mesh in force"
    names = [_axes_of(entry) for entry in spec]
    flat = [name for part in names for name in part]
    # Without sizes the mesh is that of an old `with mesh:`, or none; JAX says so.
    unknown = [name for name in flat if sizes and name not in sizes]
    if unknown:
        raise ArgumentError(
            f"jit: {argument} names an axis that the mesh does not have",
            at=place(),
            found=f"{', '.join(map(repr, unknown))} in {spec}",
            expected=f"axes of {mesh}",
            do="correct the name, or call it under a mesh that has it: `with jax.set_mesh(mesh): ...`",
        )
    repeated = sorted({name for name in flat if flat.count(name) > 1})
    if repeated:
        raise ArgumentError(
            f"jit: {argument} shards two axes of one array over the same mesh axis",
            at=place(),
            found=f"{', '.join(map(repr, repeated))} twice in {spec}, with {mesh}",
            expected="each axis of the mesh at most once",
            do="name another axis of the mesh, or None for an axis that is not sharded",
        )
    for leaf in jax.tree_util.tree_leaves(value):
        shape = np.shape(leaf)
        if len(spec) > len(shape):
            raise ArgumentError(
                f"jit: a spec in {argument} has more entries than the array has axes",
                at=place(),
                found=f"{spec} for an array of shape {shape}, with {mesh}",
                expected=f"at most {len(shape)} entries",
                do="shorten the spec; for a module, plait.StateSharding({filter: spec, ...: None}) tells its variables "
                "apart",
            )
        for axis, (length, part) in enumerate(zip(shape, names, strict=False)):
            parts = math.prod(sizes.get(name, 1) for name in part)
            if length % parts:
                raise ArgumentError(
                    f"jit: {argument} does not fit: axis {axis} cannot be divided among the devices",
                    at=place(),
                    found=f"an array of shape {shape}, and {spec}, with {mesh}",
                    expected=f"axis {axis} of a multiple of {parts}",
                    do="pad the array, leave that axis unsharded (None), or use a mesh of another shape",
                )


def _axes_of(entry: Any) -> tuple[str, ...]:
    return tuple(name for name in (entry if isinstance(entry, (tuple, list)) else (entry,)) if isinstance(name, str))


def constrain(value: Any, sharding: Any, place: Callable[[], str]) -> Any:
    """A traced value laid out in a way; ``None`` leaves it to JAX.

    Args:
        place: what the value is, in words; asked for errors only.
    """
    if sharding is None:
        return value
    check_layout("out_shardings", place, value, sharding)
    explicit = isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_types) == {AxisType.Explicit}
    lay_out = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    return jax.tree_util.tree_map(lambda leaf: lay_out(leaf, sharding), value)
