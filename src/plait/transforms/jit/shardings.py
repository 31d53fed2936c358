"""Shardings of a jitted function: those of its arguments and output, value by value. (rules X2, X10)

Input shardings are passed to ``jax.jit`` itself. Outputs are constrained inside the function, since only its trace
knows how many values it writes: an input variable keeps its sharding, a new one gets that of its prefix.

Without shardings, XLA is told that a written variable is sharded like its input, whatever that is in a call. So the
values that one call returns are those for which the next one is compiled.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import AxisType, NamedSharding, PartitionSpec, Sharding

from ...core.graph.modes import Crossing
from ...core.nodes.nodes import Static
from ...core.transform import Transformation
from ...errors import ArgumentError, ArgumentTypeError
from ...typing import Tree, Value
from ...util.jax_versions import ArrayImpl, sharding_groups, top_level_trace, trace_state
from ...util.words import describe_type, text_of
from ..call.arguments import Gathered
from ..call.body import Body, Propagation
from ..call.call import Call, prefixes_of
from ..call.outcome import Address, Outcome
from ..call.prefixes import Prefix

JIT = Transformation(
    "jit",
    static="static_argnums={}",
    static_name="static_argnames={!r}",
    mapping="plait.StateSharding({plait.Param: P('data'), ...: P()})",
    keeps_programs=True,
)


class Shardings:
    """The ``in_shardings`` and ``out_shardings`` of one jitted function.

    Args:
        ins, outs: prefixes whose leaves are shardings, specs, ``None`` (JAX decides), or ``StateSharding``.
    """

    def __init__(self, ins: Tree, outs: Tree, crossing: Crossing) -> None:
        self.crossing = crossing
        options = {"in_shardings": ins, "out_shardings": outs}
        prefixes = prefixes_of(JIT, options, crossing)
        check_specs(JIT, prefixes, lambda spec: not isinstance(spec, (int, str)))
        self.outs = prefixes[1]
        self.given = tuple(ins) if isinstance(ins, list) else ins

    def call(
        self, f: Callable[..., Tree], args: tuple[Tree, ...], kwargs: dict[str, Tree], gathered: Gathered | None = None
    ) -> Call:
        """A call with these arguments; its ports are shardings.

        Raises:
            ArgumentError: a keyword argument has no position in the signature, or a prefix or a spec does not match.
            SharingError: a variable has two different shardings.
        """
        if kwargs:
            raise ArgumentError(
                "jit with in_shardings does not accept keyword arguments without a position in the signature",
                at=next(iter(kwargs)),
                found=f"the keyword arguments {sorted(kwargs)}",
                expected="positional arguments",
                do="pass them by position",
            )
        ins = Prefix.of(JIT, "in_shardings", self._aligned(args), updates=self.crossing.updates)
        options: dict[str, Tree] = {
            "crossing": self.crossing,
            "gathered": gathered,
            "propagation": Propagation(returns_inputs=True),
        }
        call = Call(JIT, f, args, ins=ins, outs=self.outs, **options)
        for place, sharding, value in call.labelled():
            check_sharding("in_shardings", place, value, sharding)
        return call

    def of_arguments(self, count: int) -> list[Tree]:
        """The shardings of so many positional arguments, none of which is static, as given."""
        return [*self.given] if isinstance(self.given, tuple) else [self.given] * count

    def _aligned(self, args: tuple[Tree, ...]) -> Tree:
        """The given shardings, with an added entry for static arguments: as in JAX, users pass none for them."""
        statics = sum(type(argument) is Static for argument in args)
        if not statics or not isinstance(self.given, tuple) or len(self.given) != len(args) - statics:
            return self.given
        supply = iter(self.given)
        return tuple(None if type(argument) is Static else next(supply) for argument in args)

    def laid_out(self, body: Body, outputs: Sequence[Sequence[Value]], outcome: Outcome) -> list[list[Value]]:
        """The outputs of a body whose ports are shardings, each constrained to the sharding of its port."""

        def constrained(value: Value, where: Address) -> Value:
            return constrain(
                value, body.ports.kinds[where.port], lambda: outcome.describe(where, body.structure, body.root_labels())
            )

        return [
            [constrained(value, Address(port, place)) for place, value in enumerate(values)]
            for port, values in enumerate(outputs)
        ]

    def explain(self, error: BaseException, f: Callable[..., Tree], args: tuple[Tree, ...]) -> None:
        """If this is the error, raise one that names the input whose sharding is impossible or differs from the given
        one.

        Raises:
            ArgumentError: names its path, and the spec or both shardings.
        """
        if isinstance(error, ArgumentError):
            return
        inputs = self.call(f, args, {}).labelled()
        if "requires a non-empty mesh" in text_of(error):
            given = [("in_shardings", place(), spec) for place, spec, _ in inputs]
            given += [("out_shardings", "the output", spec) for spec in self.outs.leaves]
            for argument, place, spec in given:
                if isinstance(spec, PartitionSpec):
                    raise ArgumentError(
                        f"jit: {argument} has partition specs, but no mesh is set",
                        at=place,
                        found=f"{spec}, and no mesh",
                        expected="a mesh set by jax.set_mesh, or shardings that have a mesh",
                        do="call it under `with jax.set_mesh(mesh): ...`, or pass "
                        f"jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec{tuple(spec)!r})",
                    ) from error
        if "does not match the sharding" not in text_of(error):
            return
        mesh = jax.sharding.get_mesh()
        for place, expected, value in inputs:
            found = getattr(value, "sharding", None) if getattr(value, "committed", True) else None
            if isinstance(expected, PartitionSpec) and not mesh.empty:
                expected = NamedSharding(mesh, expected)
            if isinstance(expected, Sharding) and not (found is None or found.is_equivalent_to(expected, value.ndim)):
                raise ArgumentError(
                    "jit: the sharding of an array differs from in_shardings",
                    at=place(),
                    found=f"{found}",
                    expected=f"{expected}",
                    do="move it first: jax.device_put(value, sharding); or pass None to let JAX decide",
                ) from error


def keeping_shardings(outputs: Sequence[Sequence[Any]], outcome: Outcome, inputs: Sequence[Any]) -> list[list[Any]]:
    """The outputs of a body, with each written array sharded like its input, if both have one shape."""
    numbers, given = itertools.count(), set(map(id, jax.tree.leaves(inputs)))

    def keep(new: Any, old: Any) -> Any:
        aval, before = jax.typeof(new), jax.typeof(old)
        if not isinstance(aval, ShapedArray) or not isinstance(before, ShapedArray) or aval.shape != before.shape:
            return new
        if id(new) in given:  # it has the sharding of another input: what is sharded like this one is a copy
            new = jax.lax.optimization_barrier(new)
        return sharded_like().bind(new, old, group=next(numbers))

    kept = [[*port] for port in outputs]
    for position, (port, place) in outcome.written:
        new, old = kept[port][place], inputs[position]
        if jax.tree.structure(new) == jax.tree.structure(old):
            kept[port][place] = jax.tree.map(keep, new, old)
    return kept


@functools.cache
def sharded_like() -> Any:
    """The operation that returns a value, and tells XLA that it is sharded like another; but not a value to which the
    user's function gave a sharding."""
    from jax.extend.core import Primitive  # see Compiled
    from jax.interpreters import mlir

    def lower(ctx: Any, value: Any, like: Any, *, group: int) -> list[Any]:
        put_in_group = sharding_groups()
        is_constrained = getattr(value.owner, "name", None) == "sdy.sharding_constraint"
        if put_in_group is not None and not is_constrained:
            for each in (value, like):
                put_in_group(each, mlir.i64_attr(group))
        return [value]

    operation = Primitive("sharded_like")
    operation.def_abstract_eval(lambda value, like, *, group: value)
    mlir.register_lowering(operation, lower, cacheable=False)
    return operation


def reshard_read_values(gathered: Gathered, shardings: Sequence[Any], outcome: Outcome) -> None:
    """Reshard values that a call only read to their input sharding, so that the next call need not move them again."""
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
            gathered.replace_value(position, jax.device_put(cell.raw, sharding))


def check_specs(name: Transformation, prefixes: Iterable[Prefix], is_spec: Callable[[object], bool]) -> None:
    """Check what does not depend on the call.

    Raises:
        ArgumentTypeError: a value of a prefix is not a spec; names its place.
    """
    for place, spec in itertools.chain.from_iterable(prefix.values() for prefix in prefixes):
        if not is_spec(spec):
            raise ArgumentTypeError(
                f"{name}: a spec is not a partition spec",
                at=place,
                found=f"{describe_type(spec)}: {spec!r:.60}",
                expected="jax.P, None, or plait.StateSharding({filter: spec}) for a module",
                do="name axes of the mesh, such as jax.P('data'), or pass None for no sharding",
            )


def check_sharding(argument: str, place: Callable[[], str], value: Value, sharding: Any) -> None:
    """``check_spec`` of a spec, or of the spec of a sharding, for the current mesh."""
    if isinstance(sharding, PartitionSpec):
        check_spec(f"jit: {argument}", place, value, sharding, jax.sharding.get_abstract_mesh().shape)
    elif isinstance(sharding, NamedSharding):
        check_spec(f"jit: {argument}", place, value, sharding.spec, sharding.mesh.shape)


def check_spec(who: str, place: Callable[[], str], value: Value, spec: PartitionSpec, sizes: Mapping[str, int]) -> None:
    """Raise if a spec is impossible for arrays of this shape or for this mesh.

    Args:
        who: what has the spec: ``jit: in_shardings``.
        place: returns the name of the value; called only for errors.
        sizes: of the axes of the mesh; empty if it is not known.

    Raises:
        ArgumentError: names the value, the spec, and the shape or mesh.
    """
    mesh = f"the mesh {dict(sizes)}" if sizes else "no mesh"
    names = [axes_of(entry) for entry in spec]
    flat = [name for part in names for name in part]
    # Without sizes, the mesh is that of an old `with mesh:`, or missing; JAX raises the error.
    unknown = [name for name in flat if sizes and name not in sizes]
    if unknown:
        raise ArgumentError(
            f"{who} names an axis that the mesh does not have",
            at=place(),
            found=f"{', '.join(map(repr, unknown))} in {spec}",
            expected=f"axes of {mesh}",
            do="correct the name, or use a mesh that has it: `with jax.set_mesh(mesh): ...`",
        )
    repeated = sorted({name for name in flat if flat.count(name) > 1})
    if repeated:
        raise ArgumentError(
            f"{who} shards two axes of one array over the same mesh axis",
            at=place(),
            found=f"{', '.join(map(repr, repeated))} twice in {spec}, with {mesh}",
            expected="each mesh axis at most once",
            do="use a different mesh axis, or None for an axis that is not sharded",
        )
    for leaf in jax.tree_util.tree_leaves(value):
        shape = np.shape(leaf)
        if len(spec) > len(shape):
            raise ArgumentError(
                f"{who} has a spec with more entries than the array has axes",
                at=place(),
                found=f"{spec} for an array of shape {shape}",
                expected=f"at most {len(shape)} entries",
                do="shorten the spec; for a module, select by filter: plait.StateSharding({filter: spec, ...: None})",
            )
        for axis, (length, part) in enumerate(zip(shape, names, strict=False)):
            parts = math.prod(sizes.get(name, 1) for name in part)
            if length % parts:
                raise ArgumentError(
                    f"{who} does not match: axis {axis} cannot be divided among the devices",
                    at=place(),
                    found=f"an array of shape {shape}, and {spec}, with {mesh}",
                    expected=f"a size of axis {axis} that is a multiple of {parts}",
                    do="pad the array, leave that axis unsharded (None), or use a mesh with a different shape",
                )


def axes_of(entry: str | Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in (entry if isinstance(entry, (tuple, list)) else (entry,)) if isinstance(name, str))


def constrain(value: Value, sharding: Any, place: Callable[[], str]) -> Value:
    """A traced value with a sharding constraint; ``None`` leaves it to JAX.

    Args:
        place: returns the name of the value; called only for errors.
    """
    if sharding is None:
        return value
    check_sharding("out_shardings", place, value, sharding)
    explicit = isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_types) == {AxisType.Explicit}
    lay_out = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    return jax.tree_util.tree_map(lambda leaf: lay_out(leaf, sharding), value)
