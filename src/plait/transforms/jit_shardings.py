"""Shardings of a jitted function: what the caller says about arguments and output, value by value. (rules X2, X10)

Inputs are told to ``jax.jit`` itself. What comes out is laid out inside, since how many values a function writes is
known only to its trace: a variable that came in goes out as it came, a new one as its prefix says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, Sharding

from ..errors import ArgumentError
from .aliasing import Treatment, check_aliasing
from .arguments import argument_name, parameter_names
from .crossing import Entered, Gathered, Left, Result, Structure, call_inside, leave, leave_values_only
from .lanes import value_labels, value_prefixes
from .prefixes import Prefix, is_graph_leaf


class Shardings:
    """What was said for ``in_shardings`` and ``out_shardings`` of one jitted function.

    Args:
        f: the function, for the names of its arguments.
        ins, outs: prefixes whose leaves are shardings, specs, ``None`` (JAX decides), or ``StateSharding``.
    """

    def __init__(self, f: Callable[..., Any], ins: Any, outs: Any, *, updates: bool) -> None:
        self.names = parameter_names(f)
        self.given = tuple(ins) if isinstance(ins, list) else ins
        self.ins = Prefix.of("jit", "in_shardings", self.given, updates=updates)
        self.outs = Prefix.of("jit", "out_shardings", outs, updates=updates)

    def of_call(self, gathered: Gathered, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallShardings:
        """The shardings of one call's arguments.

        Raises:
            ArgumentError: a keyword argument, whose position is not known; or a prefix that does not fit.
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
        spread = self.ins.spread(args)
        pairs, _ = jax.tree_util.tree_flatten_with_path((args, {}), is_leaf=is_graph_leaf)
        roots = [
            (argument_name(path, self.names), leaf, prefix)
            for (path, leaf), prefix in zip(pairs, spread, strict=True)
            if is_graph_leaf(leaf)
        ]
        prefixes = tuple(prefix for _, _, prefix in roots)
        if len(set(prefixes)) > 1:
            check_aliasing("jit", [Treatment(*root) for root in roots], {})
        values = list(value_prefixes(gathered, prefixes))
        plain = [prefix for (_, leaf), prefix in zip(pairs, spread, strict=True) if not is_graph_leaf(leaf)]
        whole = isinstance(self.given, tuple)
        arguments = [self.given[i] if whole else self.given for i in range(len(args))]
        return CallShardings(values, plain, arguments, prefixes, self.outs)

    def explain(self, error: ValueError, gathered: Gathered, args: tuple[Any, ...]) -> None:
        """Name the input that arrives in another sharding than was said, if that is the error.

        Raises:
            ArgumentError: names its path, and both shardings.
        """
        if "does not match the sharding" not in str(error):
            return
        call = self.of_call(gathered, args, {})
        pairs, _ = jax.tree_util.tree_flatten_with_path((args, {}), is_leaf=is_graph_leaf)
        roots = [argument_name(path, self.names) for path, leaf in pairs if is_graph_leaf(leaf)]
        places = value_labels(gathered, roots)
        places += [argument_name(path, self.names) for path, leaf in pairs if not is_graph_leaf(leaf)]
        values = [*gathered.values(), *gathered.plain]
        for place, value, expected in zip(places, values, [*call.values, *call.plain], strict=True):
            found = getattr(value, "sharding", None)
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


class CallShardings:
    """The shardings of the arguments of one call, and of its output.

    Attributes:
        values, plain: of each input value and each plain leaf.
        arguments: of each positional argument, as given.
        prefixes: of each root.
    """

    def __init__(
        self, values: list[Any], plain: list[Any], arguments: list[Any], prefixes: tuple[Any, ...], outs: Prefix
    ) -> None:
        self.values = values
        self.plain = plain
        self.arguments = arguments
        self.prefixes = prefixes
        self.outs = outs

    def run_inside(
        self,
        f: Callable[..., Any],
        structure: Structure,
        values: Sequence[Any],
        plain: Sequence[Any],
        returned: frozenset[int],
        updates: bool,
    ) -> Result:
        """As ``crossing.run_inside``, with every value that comes out laid out as its prefix says."""
        entered = Entered(structure, values, plain)
        out = call_inside(f, entered)
        left = (leave if updates else leave_values_only)(entered, out, "jit", returned)
        leaves, treedef = jax.tree_util.tree_flatten(out, is_leaf=is_graph_leaf)
        spread = self.outs.spread(out)
        kinds = [is_graph_leaf(leaf) for leaf in leaves]
        outs = [prefix for prefix, is_object in zip(spread, kinds, strict=True) if is_object]
        laid = [
            leaf if is_object else constrain(leaf, prefix)
            for leaf, prefix, is_object in zip(leaves, spread, kinds, strict=True)
        ]
        rest: Any = [leaf for leaf, is_object in zip(laid, kinds, strict=True) if not is_object]
        if left.outcome.output is None:
            rest = jax.tree_util.tree_unflatten(treedef, laid)
        shardings = self._of_values(entered, left, outs)
        carried = [constrain(value, sharding) for value, sharding in zip(left.values, shardings, strict=True)]
        return Result(carried, rest, left.outcome)

    def _of_values(self, entered: Entered, left: Left, outs: list[Any]) -> list[Any]:
        """The sharding of each value that comes out."""
        prefixes = [*self.prefixes, *outs]
        positions = left.positions(entered.variables())
        return [
            left.prefix_of(origin, prefixes) if position is None else self.values[position]
            for origin, position in zip(left.origins, positions, strict=True)
        ]


def _check_divides(leaf: Any, sharding: Sharding) -> None:
    """Refuse a sharding that cannot cut an output.

    Raises:
        ArgumentError: names the shape and the sharding.
    """
    try:
        sharding.shard_shape(leaf.shape)
    except (ValueError, IndexError) as error:  # the second: a scalar has no axis to cut
        raise ArgumentError(
            "jit: out_shardings does not fit an output",
            found=f"an array of shape {tuple(leaf.shape)}",
            expected=f"a shape that {sharding} divides",
            do="pad the array, or leave that axis unsharded",
        ) from error


def constrain(value: Any, sharding: Any) -> Any:
    """A traced value laid out in a way; ``None`` leaves it to JAX."""
    if sharding is None:
        return value
    if isinstance(sharding, Sharding):
        for leaf in jax.tree_util.tree_leaves(value):
            _check_divides(leaf, sharding)
    explicit = isinstance(sharding, NamedSharding) and set(sharding.mesh.axis_types) == {AxisType.Explicit}
    lay_out = jax.sharding.reshard if explicit else jax.lax.with_sharding_constraint
    return jax.tree_util.tree_map(lambda leaf: lay_out(leaf, sharding), value)
