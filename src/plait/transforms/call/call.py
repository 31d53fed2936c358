"""The call: the mechanism by which all transforms pass objects through a pure function and back.

1. **gather** (outside): the arguments are flattened as a pytree down to modules and variables; those are walked with
    one index, so that sharing across arguments is detected. The raw values and the plain leaves are grouped into ports,
    according to the transform.
2. **enter** (inside): private copies of the objects are created with the traced values.
3. **leave** (inside): after the function ran, arguments and output are walked again. The changes are described by a
    static ``Outcome``; the values that the function wrote, and only those, are returned in ports.
4. **write back** (outside): the outcome is applied to the caller's own objects.

Nothing outside changes before step 4, so a function that raises changes nothing. The outcome is static, because later
calls of a compiled function run only steps 1 and 4. A transform's own file defines the ports and the JAX transform in
the middle:

    call = Call(REMAT, f, args, kwargs, crossing=crossing)
    return call.finish(*call.run(call.cached("remat", jax.checkpoint), call.inputs))

Before it stand the functions that transforms accept, transforms as decorators, and the ``Crossing``: the two modes that
each transform takes, which say in each call whether structure is carried out, or only values.

(rules U8 to U23, U27)
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any, TypeVar

import jax

from ...core import hooks
from ...core.graph.locate import describe_place
from ...core.graph.modes import STRUCTURE, Crossing
from ...core.graph.walks import is_graph_leaf
from ...core.transform import Transformation
from ...errors import ArgumentError, ArgumentTypeError
from ...typing import Tree, Value
from ...util.words import describe_type
from .arguments import Gathered, gather, joined, positional
from .body import (
    ALL_CHANGES,
    CACHEABLE_FUNCTIONS,
    NO_RULES,
    ONE_PORT,
    AnnotateErrors,
    Body,
    Propagation,
    RuledFunction,
    Rules,
)
from .errors import explain
from .outcome import Outcome, check_traces, write_back
from .prefixes import Prefix

F = TypeVar("F", bound=Callable[..., Any])


def curried(transform: F) -> F:
    """A transform that is also a decorator: ``transform(f, **options)``, ``@transform``, ``@transform(**options)``."""

    name = next(iter(inspect.signature(transform).parameters))

    @functools.wraps(transform)
    def wrapper(*args: Any, **options: Any) -> Any:
        f, *rest = args or (options.pop(name, None),)
        return functools.partial(wrapper, **options) if f is None else transform(f, *rest, **options)

    return wrapper  # type: ignore[return-value]


def check_function(f: object, name: Transformation) -> None:
    """Raise if a transform cannot lift this function.

    Raises:
        ArgumentTypeError: ``f`` is not callable.
        ArgumentError: ``f`` is a bound method of a module, whose module would be a hidden constant.
    """
    if not callable(f):
        raise ArgumentTypeError(
            f"{name} takes a function",
            found=describe_type(f),
            expected="a callable",
            do=f"pass the function itself, without calling it: {name.code('f', 'x')}",
        )
    if isinstance(f, MethodType) and is_graph_leaf(f.__self__):
        cls, method = type(f.__self__).__name__, f.__name__
        raise ArgumentError(
            f"{name} does not support bound methods, but got a bound method of a module",
            at=describe_place(f.__self__),
            found=f"the method {method!r} bound to a {cls}",
            expected="a function that takes the module as an argument",
            do=name.for_method(cls, method),
        )


def carries_structure(crossing: Crossing, gathered: Gathered, f: Callable[..., Tree]) -> bool | str | None:
    """Whether a call of ``f`` with these arguments carries out structural changes, as ``Propagation`` has it.

    Raises:
        GraphError: some objects are not accepted.
    """
    crossing.check(gathered.roots, lambda path: joined(gathered.structure.labels(f)[0][int(path[0])], path[1:]))
    return crossing.updates or (hooks.recorded_in and hooks.recorded_in(gathered.roots))


T = TypeVar("T")


class Call:
    """One call of a transformed function, outside.

    Args:
        name: the transform, for errors.
        f: the function.
        args, kwargs: the arguments, with static ones wrapped in ``Static``.
        ins: the prefix of the arguments, or of each of their leaves; a single port without it.
        outs: the prefix of the output.
        crossing: whether structural changes are carried out.
        gathered: the flattened arguments, if the transform has them.
        kinds: ports that exist even if no value belongs to them.
        propagation, rules: fields of ``Body``.

    Attributes:
        body: the static half, a pure function of ports.
        ports: those of the body.
        inputs: the input ports.
        gathered: the flattened arguments.
    """

    def __init__(
        self,
        name: Transformation,
        f: Callable[..., Tree],
        args: tuple[Tree, ...],
        kwargs: Mapping[str, Tree] | None = None,
        *,
        ins: Prefix | Sequence[Hashable] | None = None,
        outs: Hashable = ONE_PORT,
        crossing: Crossing = STRUCTURE,
        gathered: Gathered | None = None,
        kinds: Sequence[Hashable] = (),
        propagation: Propagation = ALL_CHANGES,
        rules: Rules = NO_RULES,
    ) -> None:
        self.name, self.f = name, f
        self.gathered = gathered = gather((args, dict(kwargs or {})), f) if gathered is None else gathered
        propagation = propagation._replace(structural=carries_structure(crossing, gathered, f))
        spread = ins.broadcast(args) if isinstance(ins, Prefix) else ins
        self.body = Body.of(name, f, gathered, spread, outs, kinds, propagation, rules)
        self.ports = self.body.ports
        self.inputs = self.ports.grouped(gathered.values(), gathered.plain)

    def port(self, kind: Hashable, groups: Sequence[list[T]]) -> list[T]:
        """The group of the port of this kind; empty if there is no such port."""
        return groups[self.ports.kinds.index(kind)] if kind in self.ports.kinds else []

    def labelled(self) -> list[tuple[Callable[[], str], Any, Value]]:
        """Every input as (what returns its path, kind of its port, value)."""
        labels = functools.cache(lambda: [label for labels in self.body.labels_by_port() for label in labels])
        found = [(kind, value) for kind, values in zip(self.ports.kinds, self.inputs, strict=True) for value in values]
        return [(lambda n=n: labels()[n], kind, value) for n, (kind, value) in enumerate(found)]

    def cached(self, key: Hashable, make: Callable[[Body], T]) -> T:
        """The function that a transform creates for the body, kept for equal bodies, so that JAX traces and compiles
        once; not while outputs are captured."""
        if not isinstance(self.f, CACHEABLE_FUNCTIONS) or hooks.observers:
            return make(self.body)
        rule = self.f.rule_number if isinstance(self.f, RuledFunction) else 0
        return self.body.cached((key, rule), make)

    def run(
        self,
        function: Callable[..., Tree],
        *inputs: Value,
        stepwise: Callable[..., Tree] | None = None,
        others: Sequence[Call] = (),
    ) -> Tree:
        """Call JAX's transform of the body.

        Under ``debug_nans``, JAX reports only that a loop or branch returned a NaN. It is then run again, step by step,
        and stops at the operation and in the layer that produced the NaN.

        Args:
            stepwise: run instead of ``function`` under ``jax.disable_jit``, if that alone does not run it step by step.
            others: the calls of other functions that it traces with the same arguments.
        """
        stepwise = stepwise or function
        with self.in_scope(others), AnnotateErrors(self.gathered.roots, inside=False):
            if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
                return stepwise(*inputs)
            try:
                return function(*inputs)
            except FloatingPointError:
                try:
                    with jax.disable_jit():
                        stepwise(*inputs)
                except FloatingPointError as error:
                    # It locates code that JAX has traced, and a surrounding jitted function drops it.
                    error.comes_from = error.__cause__ or error.__context__  # type: ignore[attr-defined]
                    raise
                raise

    @contextlib.contextmanager
    def in_scope(self, others: Sequence[Call] = ()) -> Iterator[None]:
        """Inside the block JAX's transform runs, within what surrounds calls.

        Raises:
            ArgumentError, ArgumentTypeError: JAX refused a value that is not an array.
            DonatedArrayError: the buffer of a variable was donated to an earlier call.
            TraceContextError: a value belongs to a trace that has ended.
        """
        try:
            with self.gathered.scope([call.body.root_names for call in (self, *others)]):
                yield
        except (TypeError, ValueError, RuntimeError) as error:
            explain(self.name, self.f, self.gathered, error)
            raise

    def donating(self, donated: frozenset[int]) -> tuple[Body, list[Value], list[Value]]:
        """The body that donates the arrays and variables of the arguments at ``donated``, the input ports with only
        what is donated, and those with the rest; each has ``None`` in place of what is in the other.

        JAX donates whole arguments, so the two are separate. A variable whose buffer is donated is always returned,
        written or not; otherwise it would be left without a buffer. Array attributes are not donated, nor is a buffer
        that two inputs share, since it can be donated only once.

        Raises:
            TraceContextError: a variable whose buffer would be donated belongs to a different trace; nothing is lost.
        """
        gathered, values = self.gathered, self.gathered.values()
        holders = collections.Counter(map(id, [*values, *gathered.plain]))
        types = () if gathered.walk is None else gathered.walk.types
        arguments = [each for number, each in enumerate(gathered.structure.arguments()) if number in donated]
        candidates = [i for each in arguments for i in each.values if types[i] is not None]
        positions = frozenset(i for i in candidates if holders[id(values[i])] == 1)
        plain = {i for each in arguments for i in each.plain if holders[id(gathered.plain[i])] == 1}
        check_traces(sorted(positions), gathered)
        flags = self.ports.grouped(
            [i in positions for i in range(len(values))], [i in plain for i in range(len(gathered.plain))]
        )
        ports = [list(zip(*port, strict=True)) for port in zip(self.inputs, flags, strict=True)]
        given = [[x if is_given else None for x, is_given in port] for port in ports]
        kept = [[None if is_given else x for x, is_given in port] for port in ports]
        donating = self.body.propagation._replace(donated=positions)
        return dataclasses.replace(self.body, propagation=donating), given, kept

    def finish(self, outputs: Sequence[Sequence[Value]], outcome: Outcome) -> Tree:
        """Write back the output ports. Returns the output."""
        return write_back(outcome, self.gathered, outputs)


def prefixes_of(name: Transformation, options: Mapping[str, Tree], crossing: Crossing) -> tuple[Prefix, Prefix]:
    """The prefixes of the arguments (as a tuple; a list is treated as one) and of the output, by the names of the
    options."""
    (first, ins), (second, outs) = options.items()
    ins = tuple(ins) if isinstance(ins, list) else ins
    updates = crossing.updates
    return Prefix.of(name, first, ins, updates=updates), Prefix.of(name, second, outs, updates=updates)


def prefixed_call(
    name: Transformation,
    f: Callable[..., Tree],
    args: tuple[Tree, ...],
    kwargs: dict[str, Tree],
    prefixes: Mapping[str, Tree],
    crossing: Crossing,
    **options: Any,
) -> Call:
    """The call of a function with one prefix for its arguments and one for its output.

    Raises:
        ArgumentTypeError: a keyword argument has no position.
    """
    args, kwargs = positional(f, args, kwargs)
    if kwargs:
        raise ArgumentTypeError(
            f"{name} cannot match a keyword argument to a prefix",
            at=next(iter(kwargs)),
            found="a keyword argument that has no position in the signature",
            expected="positional arguments",
            do="pass it by position",
        )
    ins, outs = prefixes_of(name, prefixes, crossing)
    return Call(name, f, args, ins=ins, outs=outs, crossing=crossing, **options)
