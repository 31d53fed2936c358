"""Compiled functions: a function of objects, compiled for one structure of its arguments.

A compiled function takes the raw values, each as one argument, then plain arguments, and returns the values that it
wrote. Each trace may write different variables (for example for other shapes), and which ones is known only after the
trace. If the first trace only writes values, it returns one flat list, the written values and then the output, or the
output alone if it wrote nothing. A trace with any other outcome returns ``OutputsWithOutcome``. An output of arrays
is returned as a pytree. An output of new objects, such as gradients, is a list of their values, from which the objects
are built in each call; returned arguments are the caller's own objects.

If each object is a separate argument (a ``Layout``), plain arguments are passed to JAX as pytrees. JAX's cache compares
their structure in C++, and the trace sees it. If a container has objects, all leaves are passed flat, for one structure
of all arguments.

Donation: JAX must know before compilation which buffers are donated. Only written variables can be donated; a variable
    that is only read would be left without a buffer. So a donating function is traced before it is given to JAX, to
    find out what it writes; those values are then always returned, whatever a later trace does. JAX's own first trace
    repeats the operations that were found (``DonationTrace``), so the user's code runs once. Unused arguments are kept,
    because otherwise the runtime could not detect that one of them shares a donated buffer.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from contextvars import ContextVar
from keyword import iskeyword
from typing import Any, NamedTuple, Protocol

import jax
from jax.tree_util import KeyPath

from ...core.graph.graphdef import GraphDef
from ...core.graph.walks import is_graph_leaf
from ...core.settings import all_settings
from ...core.variables.filters import Predicate
from ...core.variables.variables import Variable
from ...errors import ArgumentError
from ...typing import Node, Tree, TreeDef, Value
from ...util.jax_versions import ArrayImpl, KeyArray, enclosing_traces, top_level_trace
from ..call.arguments import Gathered, Structure, gather, named_as_user_s, parameter_names
from ..call.body import Body
from ..call.enter_leave import rebuild
from ..call.errors import explain
from ..call.outcome import INPUT, Address, Outcome, check_traces, write_back
from .shardings import JIT, Shardings, keeping_shardings, reshard_read_values


@dataclasses.dataclass(frozen=True)
class TraceSignature:
    """The signature of a trace: the structure of the arguments, and the shape and dtype of each array in them."""

    structure: Structure
    values: tuple[str, ...]
    plain: tuple[str, ...]
    settings: dict[str, object] = dataclasses.field(default_factory=lambda: all_settings(), compare=False)


class TraceListener(Protocol):
    """What hears of traces."""

    def traced(self, function: Callable[..., Tree], signature: TraceSignature, earlier: list[TraceSignature]) -> None:
        """A function is traced; these are the signatures of its earlier traces."""


trace_listeners: ContextVar[tuple[TraceListener, ...]] = ContextVar("trace_listeners", default=())
process_listeners: list[TraceListener] = []  # the same, for the traces of all threads


def _lies_on_many_devices(value: Value) -> bool:
    is_placed = isinstance(value, (ArrayImpl, KeyArray, jax.ShapeDtypeStruct))
    return is_placed and len(getattr(value.sharding, "device_set", ())) > 1


def _short_aval(value: Value) -> str:
    avals = map(jax.typeof, jax.tree.leaves(value))
    return ", ".join(
        aval.str_short(short_dtypes=False) + " of weak type" * aval.weak_type + _short_mesh(aval) for aval in avals
    )


def _short_mesh(aval: Any) -> str:
    sizes = aval.sharding.mesh.shape
    return f" on the mesh {dict(sizes)}" if sizes else ""


@dataclasses.dataclass(frozen=True)
class Donation:
    """The buffers that a caller donates to a compiled function.

    Attributes:
        numbers, names: donated arguments, by position and by name.
        predicate: selects written variables of all other arguments.
    """

    numbers: frozenset[int]
    names: frozenset[str]
    predicate: Predicate

    def donates_argument(self, path: KeyPath) -> bool:
        """Whether the leaf at this JAX path of ``(args, kwargs)`` belongs to a donated argument."""
        first = path[1]
        return getattr(first, "idx", None) in self.numbers or getattr(first, "key", None) in self.names


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of a call in which each object is a separate argument.

    Attributes:
        count: number of positional arguments.
        names: names of the keyword arguments, sorted.
        objects: which arguments are objects; keyword arguments are numbered after the positional ones.
    """

    count: int
    names: tuple[str, ...]
    objects: tuple[int, ...]

    @classmethod
    def of(cls, args: Sequence[Tree], kwargs: dict[str, Tree], count: int) -> Layout | None:
        """The layout of a call with so many objects, if each is an argument, and generated code can use the names."""
        names = tuple(sorted(kwargs))
        slots = [*args, *(kwargs[name] for name in names)]
        objects = tuple(i for i, value in enumerate(slots) if is_graph_leaf(value))
        if not objects or len(objects) != count or not all(map(_can_be_generated, names)):
            return None
        return cls(len(args), names, objects)

    def split(self, args: Sequence[Tree], kwargs: dict[str, Tree]) -> tuple[list[Tree], dict[str, Tree]]:
        """The arguments that are not objects."""
        return (
            [value for i, value in enumerate(args) if i not in self.objects],
            {name: kwargs[name] for i, name in enumerate(self.names, self.count) if i not in self.objects},
        )

    def join(self, objects: Sequence[Node], plain: Sequence[Tree], named: dict[str, Tree]) -> Tree:
        """The inverse of ``split``: args and kwargs."""
        supply, rest = iter(objects), iter(plain)
        args = tuple(next(supply) if i in self.objects else next(rest) for i in range(self.count))
        kwargs = {
            name: next(supply) if i in self.objects else named[name] for i, name in enumerate(self.names, self.count)
        }
        return args, kwargs


def _can_be_generated(name: str) -> bool:
    return name.isidentifier() and name.isascii() and not iskeyword(name) and not name.startswith("_plait_")


class _Hole:
    """A placeholder for an object."""

    def __init__(self, graphdef: GraphDef) -> None:
        self.graphdef = graphdef


def _traced_structure(
    layout: Layout, graphdefs: Sequence[GraphDef], plain: Sequence[Tree], named: dict[str, Tree]
) -> tuple[Structure, list[Value]]:
    """The structure and leaves of a call whose plain arguments have been flattened only by JAX."""
    tree = layout.join([_Hole(graphdef) for graphdef in graphdefs], plain, named)
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    found = tuple(leaf.graphdef if type(leaf) is _Hole else None for leaf in leaves)
    return Structure(treedef, found), [leaf for leaf in leaves if type(leaf) is not _Hole]


class DonationTrace(NamedTuple):
    """The trace that found what a function writes.

    Attributes:
        key: what another trace must agree in to have the same operations.
        program: the operations, from the ports.
        outcome: what the function did.
        tree: the structure of the ports that it returns.
    """

    key: Hashable
    program: Any
    outcome: Outcome
    tree: TreeDef

    def repeated(self, inputs: Sequence[Sequence[Value]]) -> list[list[Value]]:
        """The outputs for the inputs of another trace."""
        outputs = jax.core.eval_jaxpr(self.program.jaxpr, self.program.consts, *jax.tree_util.tree_leaves(inputs))  # pyright: ignore[reportAttributeAccessIssue]
        return jax.tree_util.tree_unflatten(self.tree, outputs)


class Compiled:
    """A function of objects, for one structure of the objects among its arguments.

    Attributes:
        f: the function of objects.
        jitted: JAX's jitted function of the result of ``arguments``.
        layout: how calls pass their objects; ``None`` if they are inside containers, so that plain leaves are passed
            flat, for one structure of all arguments.
        first_outcome: the outcome of its first trace; ``None`` before that.
        returned: returned arguments: index in the output → number of the object.
        fits_fast_path: whether its first trace only wrote values and returned what ``build_output`` can build.
        body: the body of its calls.
        shardings: the options about shardings, if any are given.
        lies_on_many: whether a value of the first call is on several devices.
        donated: positions of the donated values; ``None`` if nothing is donated.
        donation_trace: the trace that found them, until the first trace of ``jitted``.
    """

    __slots__ = (
        "_first_lock", "body", "donated", "donation", "donation_trace", "f", "first_outcome", "fits_fast_path",
        "history", "jitted", "layout", "lies_on_many", "options", "returned", "shardings",
    )  # fmt: skip

    def __init__(
        self,
        f: Callable[..., Tree],
        body: Body,
        gathered: Gathered,
        options: dict[str, Any],
        history: list[TraceSignature],
        donation: Donation | None,
        layout: Layout | None,
        shardings: Shardings | None,
    ) -> None:
        # JAX 0.12 imports Pallas with it, which adds settings of JAX: what was compiled before would be compiled again.
        # Orbax imports it too, at the first checkpoint.
        import jax.extend

        self.f, self.body = f, body
        self.first_outcome: Outcome | None = None
        self._first_lock = threading.Lock()
        self.fits_fast_path = False
        self.returned: dict[int, int] = {}
        self.layout = layout
        self.shardings = shardings
        self.lies_on_many = any(map(_lies_on_many_devices, jax.tree.leaves(gathered.values())))
        self.donated: list[int] | None = None
        self.donation_trace: DonationTrace | None = None
        self.donation, self.options, self.history = donation, options, history
        if donation is not None:
            self.donated = self.find_donated(gathered)
        self.jitted: Any = self.make_jitted()

    def find_donated(self, gathered: Gathered) -> list[int]:
        """The positions of the written values that calls may donate; none if the function changes structure. This
        traces it."""
        assert self.donation is not None
        body = self.body
        found: list[Outcome] = []
        traces, signature = tuple(enclosing_traces()), []

        def probe(inputs: Sequence[Sequence[Value]]) -> Tree:
            signature.append(list(map(_short_aval, jax.tree.leaves(inputs))))
            outputs, outcome = body(inputs)
            found.append(outcome)
            return outputs

        named_as_user_s(probe, self.f, body.names)
        program, shapes = jax.make_jaxpr(probe, return_shape=True)(
            body.ports.grouped(gathered.values(), gathered.plain)
        )
        (outcome,) = found
        key = body.structure, *signature, all_settings(), traces
        self.donation_trace = DonationTrace(key, program, outcome, jax.tree.structure(shapes))
        if outcome.arguments is not None:
            return []
        written = {position for position, _ in outcome.written}
        written -= {address.place for address in outcome.output_sources if address.port == INPUT}
        structure, predicate = body.structure, self.donation.predicate
        paths = zip(structure.places(), structure.graphdefs, strict=True)
        is_given = [self.donation.donates_argument(path) for path, graphdef in paths if graphdef is not None]
        return [
            position
            for position, number, path, leaf in gathered.leaf_places()
            if position in written and (is_given[number] or (isinstance(leaf, Variable) and predicate(path, leaf)))
        ]

    def make_jitted(self) -> Any:
        """JAX's jitted function of the result of ``arguments``."""
        f, history, shardings, layout, options = self.f, self.history, self.shardings, self.layout, self.options
        propagation = self.body.propagation._replace(donated=frozenset(self.donated or ()))
        body = dataclasses.replace(self.body, propagation=propagation)
        structure, ports, count = body.structure, body.ports, len(body.ports.values)
        if self.donation is not None:
            options = {
                **options,
                "keep_unused": True,
                **_donated_arguments(self.donation, self.donated or (), count, structure, layout),
            }
        if shardings is not None:
            laid = [ports.kinds[port] for port in (*ports.values, *(ports.plain if layout is None else ()))]
            if layout is not None:
                laid += layout.split(shardings.of_arguments(layout.count), {})[0]
            options = {**options, "in_shardings": tuple(laid)}

        def names() -> tuple[Tree, ...]:
            if layout is None:
                return *body.value_labels(), *body.labels()[1]
            own = parameter_names(f)
            return *body.value_labels(), *(own.at(i) for i in range(layout.count) if i not in layout.objects)

        def pure(*_plait_given: Any, **_plait_named: Any) -> Tree:
            values, plain = _plait_given[:count], _plait_given[count:]
            whole, leaves = body, plain
            if layout is not None:
                found, leaves = _traced_structure(layout, structure.roots, plain, _plait_named)
                # The plain arguments may have a different structure than in the first call; JAX shards them.
                plain_ports = dataclasses.replace(ports, plain=(0,) * len(leaves))
                whole = dataclasses.replace(body, structure=found, ports=plain_ports)
            signature = TraceSignature(
                whole.structure, tuple(map(_short_aval, values)), tuple(map(_short_aval, leaves))
            )
            for listener in (*process_listeners, *trace_listeners.get()):
                listener.traced(f, signature, history)
            outputs, outcome = self.traced(whole, whole.ports.grouped(values, leaves))
            if shardings is not None:
                outputs = shardings.laid_out(whole, outputs, outcome)
            elif self.lies_on_many and tuple(enclosing_traces())[1:] == (top_level_trace,):
                outputs = keeping_shardings(outputs, outcome, values)
            history.append(signature)
            return self._returned(outputs, outcome, values, outcome.returned_arguments(structure))

        pure.__name__ = pure.__qualname__ = getattr(f, "__name__", type(f).__name__)
        return jax.jit(named_as_user_s(pure, f, names), **options)

    def traced(self, body: Body, inputs: Sequence[Sequence[Value]]) -> tuple[Sequence[list[Value]], Outcome]:
        """The outputs and the outcome of a trace. The first one repeats what was traced to find what is donated."""
        first, self.donation_trace = self.donation_trace, None
        if first is not None:
            avals = list(map(_short_aval, jax.tree.leaves(inputs)))
            if (body.structure, avals, all_settings(), tuple(enclosing_traces())[1:]) == first.key:
                return first.repeated(inputs), first.outcome
        return body(inputs)

    def clear(self) -> None:
        """Drop all compiled programs."""
        self.jitted.clear_cache()

    def arguments(
        self, gathered: Gathered, args: Sequence[Tree], kwargs: dict[str, Tree]
    ) -> tuple[list[Tree], dict[str, Tree]]:
        """The arguments of ``jitted`` for a call: by position, and by name.

        Raises:
            ArgumentError: two variables share a buffer that would be donated; nothing is lost.
            TraceContextError: a variable whose buffer would be donated belongs to a different trace; nothing is lost.
        """
        values = gathered.values()
        if self.donated:
            check_traces(self.donated, gathered)
            check_separate_buffers(self.f, self.donated, gathered)
        plain, named = (gathered.plain, {}) if self.layout is None else self.layout.split(args, kwargs)
        return [*values, *plain], named

    def _returned(
        self,
        outputs: Sequence[list[Value]],
        outcome: Outcome,
        inputs: Sequence[Value],
        arguments: dict[int, int] | None,
    ) -> Tree:
        """The result for JAX: a flat list, if the first trace only wrote values, and this trace did the same."""
        if arguments is None:
            self.is_first(outcome, None)
            return OutputsWithOutcome(outcome, outputs)
        assert outcome.output is not None
        plain = [where.of(outputs) for where in outcome.plain]
        values = [where.of(outputs) for _, where in outcome.written]
        flat = Outcome(tuple((position, Address(0, i)) for i, (position, _) in enumerate(outcome.written)))
        if not outcome.returns_objects:
            output: Tree = jax.tree_util.tree_unflatten(outcome.output.treedef, plain)
        else:
            output = [
                inputs[place] if port == INPUT else outputs[port][place] for port, place in outcome.output_sources
            ]
            flat = dataclasses.replace(
                flat,
                output=outcome.output,
                output_sources=tuple(Address(1, i) for i in range(len(output))),
                plain=tuple(Address(1, len(output) + i) for i in range(len(plain))),
                moved=outcome.moved,
            )
            output += plain
        if self.is_first(flat, arguments):
            return [*values, output] if values else output
        return OutputsWithOutcome(flat, (values, output))

    def is_first(self, outcome: Outcome, returned: dict[int, int] | None) -> bool:
        """Whether the result of a trace is read by the first outcome, which this one is if there is none.

        Args:
            returned: the returned arguments; ``None`` if it does more than the fast path can do.
        """
        with self._first_lock:  # other threads may trace, too
            if self.first_outcome is None:
                self.returned, self.fits_fast_path = returned or {}, returned is not None
                self.first_outcome = outcome
        return returned is not None and self.first_outcome == outcome

    def outcome_of(self, returned: Tree) -> tuple[Outcome, Sequence[Sequence[Value]], Tree]:
        """The parts of the result of a call: its outcome, the ports, and a plain output."""
        if type(returned) is OutputsWithOutcome:
            outcome, outputs = returned.outcome, returned.outputs
            return outcome, outputs, outputs[1] if outcome.output is None else None
        assert self.first_outcome is not None
        values, output = (returned[:-1], returned[-1]) if self.first_outcome.written else ((), returned)
        return self.first_outcome, (values, output), output

    def finish(self, gathered: Gathered, returned: Tree) -> Tree:
        """Write back the result of a call. Returns the output of the function."""
        outcome, outputs, plain = self.outcome_of(returned)
        result = write_back(outcome, gathered, outputs, plain)
        if self.shardings is not None:
            reshard_read_values(gathered, [*map(self.body.ports.of, range(len(self.body.ports.values)))], outcome)
        return result

    def explain(self, args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> None:
        """Raise an error with paths if two variables share a buffer that would be donated, or if the error being
        handled is about a buffer that was donated to an earlier call, or about a sharding."""
        gathered, error = gather((args, kwargs), self.f), sys.exc_info()[1]
        if isinstance(error, Exception):
            explain(JIT, self.f, gathered, error)
        self.arguments(gathered, args, kwargs)
        if error is not None and self.shardings is not None:
            self.shardings.explain(error, self.f, args)

    def build_output(self, output: Sequence[Value], objects: Sequence[Node]) -> Tree:
        """The output of a quick call that returns objects; ``objects`` are those of the arguments."""
        assert self.first_outcome is not None
        assert self.first_outcome.output is not None
        count = len(self.first_outcome.output_sources)
        known = {index: objects[number] for index, number in self.returned.items()} if self.returned else None
        return rebuild(self.first_outcome.output, output[:count], output[count:], known)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OutputsWithOutcome:
    """The result of a compiled function for an outcome that differs from the first, or is not plain."""

    outcome: Outcome = dataclasses.field(metadata={"static": True})
    outputs: Sequence[Sequence[Value]]


def check_separate_buffers(f: Callable[..., Tree], donated: Sequence[int], gathered: Gathered) -> None:
    """Raise if a buffer that would be donated is shared with another variable or argument.

    Raises:
        ArgumentError: names both paths.
    """
    values = gathered.values()
    held = [
        (position, leaf)
        for position, value in enumerate([*values, *gathered.plain])
        for leaf in ([value] if isinstance(value, jax.Array) else jax.tree.leaves(value))
    ]
    if len({id(leaf) for _, leaf in held}) == len(held):
        return
    first: dict[int, int] = {}
    given = {id(leaf) for i, leaf in held if i in donated and isinstance(leaf, jax.Array)}
    for position, leaf in held:
        if id(leaf) in given and id(leaf) in first:
            roots, plain = gathered.structure.labels(f)
            labels = [*gathered.structure.value_labels(roots), *plain]
            raise ArgumentError(
                f"{'two variables' if position < len(values) else 'a variable and an argument'} share one buffer, "
                "which cannot be donated",
                at=f"{labels[first[id(leaf)]]} and {labels[position]}",
                found="the same array in both",
                expected="a separate buffer for each donated variable",
                do="copy one of them first: variable.value = jnp.copy(variable.value), or model = plait.clone(model, "
                "arrays=True) for the whole model",
            )
        first[id(leaf)] = position


def _donated_arguments(
    donation: Donation, donated: Sequence[int], count: int, structure: Structure, layout: Layout | None
) -> dict[str, Any]:
    """The donation options of ``jax.jit``: values by their positions, followed by plain arguments."""
    names: list[str] = []
    if layout is None:
        paths = zip(structure.places(), structure.graphdefs, strict=True)
        flags = [donation.donates_argument(path) for path, graphdef in paths if graphdef is None]
    else:
        flags = [i in donation.numbers for i in range(layout.count) if i not in layout.objects]
        slots = enumerate(layout.names, layout.count)
        names = [name for i, name in slots if name in donation.names and i not in layout.objects]
    plain = (i for i, flag in enumerate(flags, count) if flag)
    return {"donate_argnums": (*donated, *plain), "donate_argnames": names or None}
