"""One call of a function with a custom derivative rule, as a function of arrays.

JAX calls either the function or its rule, at any time; both must return the same tree. So both return the final value
of every input variable, written or not, the values of new objects, and the plain leaves of the output. Which of these
values were written is recorded in Python when one of the two runs during the call; only those are written to the
caller's objects. (rules U19, U31, X16)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ..core.objects.named import Sentinel
from ..core.objects.nodes import Static
from ..errors import ArgumentError, ArgumentTypeError
from .call.body import reveal
from .call.call import Call
from .call.enter import Entered
from .call.gather import Structure
from .call.names import argument_name, parameter_names
from .call.outcome import Address, Outcome
from .call.policy import Crossing
from .call.prefixes import is_graph_leaf
from .selections import DIFFERENTIATED, LEFT_ALONE, DiffState, as_prefix, check_distinct
from .tangent_trees import shapes_of

# The port of all outputs.
OUT = Sentinel(__name__, "OUT", "the output")


class RuleCall:
    """The arguments of one call, and its outcome.

    JAX keeps the rule, and with it this object, as long as it keeps a program that calls the function. So after the
    call it references no array and no object.

    Attributes:
        inputs: the values of the objects, and the plain leaves, by the user's names.
        body: the function of ports.
        structure: the structure of the arguments.
        shapes: the shapes of the values of their objects.
        labels, plain_labels: the user's name of each input.
        free, plain_free: which of the inputs are differentiable.
        fixed: the positions in ``nondiff_argnums`` that are integers.
        outcome: the outcome of the function or of its rule, whichever finished first.
    """

    def __init__(
        self,
        name: str,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        nondiff_argnums: Sequence[int | DiffState],
        crossing: Crossing,
    ) -> None:
        self.name, self.fun = name, fun  # the body references it weakly
        args = _resolve_arguments(name, fun, args, kwargs)
        count = len(args)
        check_distinct(name, "nondiff_argnums", nondiff_argnums, count)
        self.fixed = {number % count for number in nondiff_argnums if not isinstance(number, DiffState)}
        filters: dict[int, Any] = {
            each.argnum % count: each.filter for each in nondiff_argnums if isinstance(each, DiffState)
        }
        args = tuple(Static(a) if i in self.fixed and not _has_arrays(a) else a for i, a in enumerate(args))
        if crossing.updates:
            _check_no_fixed_objects(name, fun, args, self.fixed)
        ins = [
            LEFT_ALONE if number in self.fixed else as_prefix(leaf, filters.get(number, ...))
            for number, argument in enumerate(args)
            for leaf in jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
        ]
        rules = {"writes": OUT, "all_values": True, "returns_inputs": True}
        self._call: Call | None = (call := Call(name, fun, args, ins=ins, outs=OUT, crossing=crossing, **rules))
        self.body, self.structure = call.body, call.gathered.structure
        roots, self.plain_labels = call.body.labels()
        self.labels = self.structure.value_labels(roots)
        self.free = [self.body.ports[port] is DIFFERENTIATED for port in self.body.value_ports]
        self.plain_free = [self.body.ports[port] is DIFFERENTIATED for port in self.body.plain_ports]
        self.outcome: Outcome | None = None
        values = call.gathered.values()
        self.shapes = shapes_of(values)
        self.inputs: Any = self.labelled(values, call.gathered.plain)

    def argument_structures(self) -> list[Structure]:
        """The structure of each argument."""
        return self.structure.children()[0].children()

    def labelled(self, values: Sequence[Any], plain: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """One item per input, by label, so that JAX's errors contain the label."""
        return dict(zip(self.labels, values, strict=True)), dict(zip(self.plain_labels, plain, strict=True))

    def in_order(self, values: dict[str, Any], plain: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        """The inverse of ``labelled``."""
        return [values[label] for label in self.labels], [plain[label] for label in self.plain_labels]

    def is_fixed(self, label: str) -> bool:
        """Whether a value belongs to an argument whose number is in ``nondiff_argnums``."""
        return not self.body.structural and not self.free[self.labels.index(label)]

    def enter(self, values: dict[str, Any], plain: dict[str, Any]) -> Entered:
        """Create private objects with values of the inputs."""
        return Entered(self.structure, *self.in_order(values, plain))

    def run(
        self, values: dict[str, Any], plain: dict[str, Any], run: Callable[[Entered], Any] | None = None
    ) -> tuple[list[Any], Outcome]:
        """The function, or its rule, as a function of the inputs: returns all output values, and the outcome.

        Raises:
            ArgumentError: the function and its rule produce different structures.
        """
        outputs, outcome = self.body(self.body.grouped(*self.in_order(values, plain)), run)
        if self.outcome is None:
            self.outcome = outcome
        elif self.outcome.like() != outcome.like():
            raise ArgumentError(
                f"{self.name}: the function and its rule produce different structures",
                found="different types, attributes or references in the arguments or the output",
                expected="the same structure from both; only values may differ",
                do="call the function itself in the rule, and return what it returns",
            )
        return outputs[self.body.ports.index(OUT)], outcome

    def arguments(self, entered: Entered) -> list[Any]:
        """The arguments for the function."""
        return [reveal(argument) for argument in entered.tree[0]]

    def parted(self, arguments: Sequence[Any]) -> tuple[list[Any], tuple[Any, ...]]:
        """The arguments without derivative, and the others."""
        return (
            [argument for i, argument in enumerate(arguments) if i in self.fixed],
            tuple(argument for i, argument in enumerate(arguments) if i not in self.fixed),
        )

    def check_unmoved(self, moves: Callable[[Any], bool], values: dict[str, Any], plain: dict[str, Any]) -> None:
        """Raise if a derivative is requested with respect to a value that the rule excludes.

        Raises:
            ArgumentError: names the leaf.
        """
        for free, labels, given in ((self.free, self.labels, values), (self.plain_free, self.plain_labels, plain)):
            for is_free, label in zip(free, labels, strict=True):
                if not is_free and any(map(moves, jax.tree_util.tree_leaves(given[label]))):
                    raise ArgumentError(
                        f"{self.name}: a derivative was requested with respect to a value that the rule excludes",
                        at=label,
                        found="a request for its derivative",
                        expected="no derivative: nondiff_argnums excludes it",
                        do="exclude it from grad too, or pass jax.lax.stop_gradient(value)",
                    )

    def apply(self, rule: Callable[..., Any]) -> Any:
        """Call JAX's function with the rule, and write back the written values. Returns the output."""
        call, inputs, self._call, self.inputs = self._call, self.inputs, None, None
        assert call is not None
        values = call.run(rule, *inputs)
        assert self.outcome is not None
        return call.finish([values if kind is OUT else [] for kind in self.body.ports], self.outcome)


def follow(addresses: Sequence[Address], values: Sequence[Any]) -> list[Any]:
    """The values at some addresses of the outputs."""
    return [values[address.place] for address in addresses]


def _has_arrays(argument: Any) -> bool:
    leaves = jax.tree_util.tree_leaves(argument, is_leaf=is_graph_leaf)
    return any(is_graph_leaf(leaf) or isinstance(leaf, jax.Array) for leaf in leaves)


def _resolve_arguments(
    name: str, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """All arguments by position, including defaults, as passed to the rule. (rule X1)"""
    try:
        signature = inspect.signature(fun)
    except (TypeError, ValueError):
        bound_args, bound_kwargs = args, kwargs
    else:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound_args, bound_kwargs = bound.args, bound.kwargs
    if bound_kwargs:
        raise ArgumentTypeError(
            f"{name} does not accept keyword-only arguments",
            found=f"the arguments {sorted(bound_kwargs)}",
            expected="arguments with a position that the rule can refer to",
            do="make them positional in the signature of the function",
        )
    return bound_args


def _check_no_fixed_objects(name: str, fun: Callable[..., Any], args: tuple[Any, ...], fixed: set[int]) -> None:
    names = parameter_names(fun)
    for number in sorted(fixed):
        for path, leaf in jax.tree_util.tree_flatten_with_path(args[number], is_leaf=is_graph_leaf)[0]:
            if is_graph_leaf(leaf):
                raise ArgumentTypeError(
                    f"{name} does not accept an integer in nondiff_argnums for an argument with modules or variables",
                    at=argument_name((jax.tree_util.SequenceKey(0), jax.tree_util.SequenceKey(number), *path), names),
                    found=f"nondiff_argnums has {number}, and the argument a {type(leaf).__name__}",
                    expected="a DiffState that selects its differentiable part",
                    do=f"write plait.DiffState({number}, False) to exclude all of it, or use graph_updates=False",
                )
