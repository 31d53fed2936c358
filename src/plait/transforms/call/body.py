"""The body of a call: a function of objects as a pure function of ports. It enters, calls and leaves, once each.

A port is a list of values that the JAX transform in the middle treats alike: they have the same axis, spec or sharding,
or are all carried, differentiated or donated. A port is identified by a hashable value, its kind. Since the ports
follow from the transform's own arguments, they are known before the function is traced, regardless of what it writes or
creates. Outputs are sorted into the same ports:

* an input variable leaves by its input port, if it was written;
* a new variable leaves by the prefix of the argument or output that it belongs to;
* a plain output leaf leaves by the output prefix.

An ``Outcome`` records where each value is. What loops and mapped axes do beside that, their own files pass in, as
``Rules``. (rules X2, X3, U24 to U28)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import FunctionType, TracebackType
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax

from ...core import hooks
from ...core.graph.walks import is_graph_leaf
from ...core.traces.captured import refusing_container_changes, warn_about_captures
from ...core.transform import Transformation
from ...core.variables.cells import recording_foreign_reads
from ...errors import StaticValueError
from ...typing import Node, Tree, Value
from ...util.jax_versions import trace_settings
from ...util.sentinels import Sentinel
from ...util.static_values import HashableMapping
from .arguments import ArgumentNames, Gathered, Structure, gather
from .enter_leave import TracedArguments, TracedResult
from .outcome import INPUT, Address, Outcome
from .prefixes import Prefix, check_aliasing, prefixes_of_values, values_in

T = TypeVar("T")

# The only port of a transform that treats all values alike.
ONE_PORT: Sentinel = Sentinel(__name__, "ONE_PORT", "all")
# Written values leave by their input port.
OWN_PORT: Sentinel = Sentinel(__name__, "OWN_PORT", "its own port")

# User's function → key → (body, what was made for it), the latest used last, while the function lives. An entry keeps
# alive only structures, which reference no object, and functions of arrays that reference the function weakly.
_kept: weakref.WeakKeyDictionary[Any, dict[Hashable, tuple[Body, Any]]] = weakref.WeakKeyDictionary()
MOST = 64


class AnnotateErrors:
    """A context manager that attaches weak references to the call's objects to an exception that leaves the block.

    Args:
        roots: the objects among the arguments.
        inside: whether these are the private ones, around traced values.
    """

    __slots__ = ("inside", "roots")

    def __init__(self, roots: Sequence[Node], *, inside: bool) -> None:
        self.roots, self.inside = roots, inside

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Hashable, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or traceback is None:
            return
        refs: list[weakref.ref[Node]] = []
        with contextlib.suppress(TypeError):  # an object of a registered class without weak references
            refs = [weakref.ref(root) for root in self.roots]
        # A frame lives as long as the traceback, and the private objects as long as the frame.
        vars(error).setdefault("_plait_calls", {})[id(traceback.tb_frame)] = self.inside, refs


def is_from_inside(error: BaseException) -> bool:
    """Whether the error comes from the user's function, or from what it called."""
    return any(inside for inside, _ in getattr(error, "_plait_calls", {}).values())


class RuledFunction:
    """A function that comes with others, such as the rule for its derivative.

    Attributes:
        functions: the others.
        rule_number: how often they were set.
    """

    functions: tuple[Callable[..., Tree], ...] = ()
    rule_number = 0
    __call__: Callable[..., Any]


# Functions that can be looked into, and that live as long as the user's program refers to them.
CACHEABLE_FUNCTIONS = FunctionType, functools.partial, RuledFunction


@dataclasses.dataclass(frozen=True)
class Ports:
    """The ports of a call.

    Attributes:
        kinds: the kind of each.
        values, plain: the port of each input value and each plain input leaf, by number.
    """

    kinds: tuple[Hashable, ...]
    values: tuple[int, ...]
    plain: tuple[int, ...]

    def of(self, position: int) -> Hashable:
        """The kind of the port of an input value."""
        return self.kinds[self.values[position]]

    def grouped(self, values: Iterable[Value], plain: Iterable[Value]) -> tuple[list[Value], ...]:
        """One item per input value and plain leaf, sorted into ports."""
        groups: tuple[list[Value], ...] = tuple([] for _ in self.kinds)
        for port, value in zip((*self.values, *self.plain), (*values, *plain), strict=True):
            groups[port].append(value)
        return groups

    def in_order(self, groups: Iterable[Iterable[Value]]) -> tuple[list[Value], list[Value]]:
        """The inverse of ``grouped``: the items of the values, and those of the plain leaves."""
        supplies = [iter(group) for group in groups]
        return [next(supplies[port]) for port in self.values], [next(supplies[port]) for port in self.plain]


class Propagation(NamedTuple):
    """What comes out of a call, beside the output of its function.

    Attributes:
        structural: whether structural changes are carried out, or only values; or the name of an attribute, if only
            its changes are.
        writes: the port by which written values leave; ``OWN_PORT`` means their input port.
        all_values: whether all values of variables are returned, written or not.
        donated: positions of values that are always returned and written back, whether the function writes them or not.
        returns_inputs: whether an input variable may be returned with a different prefix; it then leaves by its input
            port.
    """

    structural: bool | str | None = True
    writes: Hashable = OWN_PORT
    all_values: bool = False
    donated: frozenset[int] = frozenset()
    returns_inputs: bool = False


ALL_CHANGES = Propagation()


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a transform does around the function, inside; this is nothing.

    Attributes:
        loops: whether the function is the body of a loop.
        axis: the metadata of the axis that the transform removes inside; ``None`` if ranks do not change.
    """

    loops: ClassVar[bool] = False
    axis: HashableMapping[str, object] | None = dataclasses.field(default=None, kw_only=True)

    def kinds(self, prefixes: list[Hashable], *, structural: bool) -> list[Hashable]:
        """The kind of the port of each input value, given its prefix."""
        return prefixes

    def run(self, body: Body, entered: TracedArguments, call: Callable[[], Tree]) -> Tree:
        """``call`` the user's function. Returns its output."""
        return call()

    def finish_new(self, body: Body, left: TracedResult, out: Tree) -> bool:
        """Change what the function made; whether anything was changed, so that it must be walked again."""
        return False

    def names(self, labels: Sequence[str]) -> list[str]:
        """What objects of these labels are called in programs."""
        return list(labels)

    def check_sent(self, body: Body, kind: Hashable, value: Value) -> None:
        """Raise if a value cannot leave by a port of this kind."""

    def sorted(self, body: Body, left: TracedResult, out: Tree, inputs: Sequence[Sequence[Value]]) -> OutputPorts:
        """What sorts the results into ports."""
        return OutputPorts(body, left, out)


NO_RULES = Rules()


@dataclasses.dataclass(frozen=True)
class CheckedOutput(Rules):
    """The output is checked before all else."""

    check: Callable[[Tree], object]

    def run(self, body: Body, entered: TracedArguments, call: Callable[[], Tree]) -> Tree:
        out = call()
        self.check(out)
        return out


class NamedAsUsers:
    """A function of arrays that JAX calls as the user's function, and its arguments as the user does."""

    def user_function(self) -> Callable[..., Tree]:
        """The function that it calls."""
        raise NotImplementedError

    def names(self) -> tuple[Tree, ...]:
        """The arguments, with a name in place of each value."""
        raise NotImplementedError

    @property
    def __wrapped__(self) -> Callable[..., Tree]:
        return self.user_function()

    @functools.cached_property
    def __signature__(self) -> ArgumentNames:
        return ArgumentNames(functools.cache(self.names))


class OfBody(NamedAsUsers):
    """A function of arrays around a body."""

    body: Body

    def user_function(self) -> Callable[..., Tree]:
        return self.body.f()


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Body(NamedAsUsers):
    """One function, for arguments of one structure. It is compared by identity: JAX caches traces by function, so the
    trace of a dropped body dies with it. ``key`` compares two of them.

    Attributes:
        name: the transform, for errors.
        f: returns the function; the reference may be weak.
        structure: the structure of ``(args, kwargs)``.
        ports: of its inputs and outputs.
        prefixes: the prefix of each object of the arguments.
        outs: the prefix of the output.
        propagation: what comes out beside the output.
        rules: what the transform does around the function.
    """

    name: Transformation
    f: Callable[[], Callable[..., Tree]]
    structure: Structure
    ports: Ports
    prefixes: tuple[Hashable, ...]
    outs: Prefix
    propagation: Propagation
    rules: Rules

    @classmethod
    def of(
        cls,
        name: Transformation,
        f: Callable[..., Tree],
        gathered: Gathered,
        spread: Sequence[Hashable] | None = None,
        outs: Hashable = ONE_PORT,
        kinds: Sequence[Hashable] = (),
        propagation: Propagation = ALL_CHANGES,
        rules: Rules = NO_RULES,
    ) -> Body:
        """The body for these arguments.

        Args:
            spread: the prefix of each leaf of the arguments; a single port without it.
            kinds: ports that exist even if no value belongs to them.

        Raises:
            SharingError: a variable has two different prefixes.
        """
        structure = gathered.structure

        def labels() -> Sequence[str]:
            return structure.labels(f)[0]

        if not isinstance(outs, Prefix):
            outs = Prefix(name, "the output", jax.tree_util.tree_structure(0), (outs,))
        spread = (ONE_PORT,) * len(structure.graphdefs) if spread is None else spread
        prefixes = tuple(p for p, g in zip(spread, structure.graphdefs, strict=True) if g is not None)
        plain = [p for p, g in zip(spread, structure.graphdefs, strict=True) if g is None]
        if len(set(prefixes)) > 1:
            check_aliasing(name, [*zip(labels(), gathered.roots, prefixes, strict=True)], {})
        chosen = prefixes_of_values(gathered, prefixes, labels)
        chosen = rules.kinds(chosen, structural=bool(propagation.structural))
        written = [] if propagation.writes is OWN_PORT else [propagation.writes]
        all_kinds = tuple(values_in([*kinds, *spread, *chosen, *outs.leaves, *written]))
        ports = Ports(all_kinds, tuple(map(all_kinds.index, chosen)), tuple(map(all_kinds.index, plain)))
        reference: Any = weakref.ref(f) if isinstance(f, CACHEABLE_FUNCTIONS) else lambda: f
        return cls(name, reference, structure, ports, prefixes, outs, propagation, rules)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """All of it but the function: what two bodies of one function are compared by."""
        return self.name, self.structure, self.ports, self.prefixes, self.outs, self.propagation, self.rules

    def cached(self, key: Hashable, make: Callable[[Body], T]) -> T:
        """What was made for an equal body of the same function, or what ``make`` makes of this one now.

        JAX keeps the trace of a function by its identity. So an eager loop, a branch or ``remat`` gets the same
        function for the same user's function, structure, options and settings. As in JAX, a plain value that it reads
        from outside is that of the first trace. A function whose trace read a variable from outside is forgotten at
        once, and traced again by the next call. (rule U27)

        Args:
            key: what it depends on, beside the body.
        """
        try:
            entries, key = _kept.setdefault(self.f(), {}), (self.key, key, trace_settings())
            entry = entries.pop(key, None) or (self, make(self))
            entries[key] = entry
        except (StaticValueError, TypeError):  # a part of the key cannot be hashed
            return make(self)
        while len(entries) > MOST:
            entries.pop(next(iter(entries)), None)
        return entry[1]

    def forget(self) -> None:
        """Drop what was made for this body."""
        entries = _kept.get(self.f(), {})
        for key in [key for key, (known, _) in [*entries.items()] if known is self]:
            entries.pop(key, None)

    def __call__(
        self, inputs: Sequence[Sequence[Value]], run: Callable[[TracedArguments], Tree] | None = None
    ) -> tuple[tuple[list[Value], ...], Outcome]:
        """Map input ports to output ports, and return what the function did.

        Args:
            run: called with the private objects instead of the function.
        """
        entered = self.enter(inputs)
        out = self.rules.run(self, entered, functools.partial(self.call, entered, run))
        left = self.leave(entered, out)
        if self.rules.finish_new(self, left, out):
            left = self.leave(entered, out)
        if left.copies_captured:
            self.forget()
        return self.rules.sorted(self, left, out, inputs).done()

    def __repr__(self) -> str:
        """Short: JAX takes it for the name of the function, at each trace."""
        f = self.f()
        return f"{self.name} of {getattr(f, '__qualname__', type(f).__name__)}"

    def enter(self, inputs: Sequence[Sequence[Value]]) -> TracedArguments:
        """Create private objects for the input values."""
        return TracedArguments(self.structure, *self.ports.in_order(inputs), with_contents=self._is_structural)

    def call(self, entered: TracedArguments, run: Callable[[TracedArguments], Tree] | None = None) -> Tree:
        """Call the user's function, or ``run``, with the private objects."""
        call = functools.partial(self._run if run is None else run, entered)
        for around in hooks.around_body.values():
            call = functools.partial(around, self, entered, call)
        with AnnotateErrors(entered.roots, inside=True):
            return call()

    def _run(self, entered: TracedArguments) -> Tree:
        f, (args, kwargs) = self.f(), entered.arguments()
        record = recording_foreign_reads(self.forget)
        with record as found, refusing_container_changes(f):
            out = f(*args, **kwargs)
            if found and self.name.keeps_programs:
                warn_about_captures(f, self.name, found)
        return out

    def leave(self, entered: TracedArguments, out: Tree) -> TracedResult:
        """Walk the arguments and the output again."""
        return TracedResult(self.name, entered, out, self._is_structural, self.root_labels)

    @property
    def _is_structural(self) -> bool:
        """Whether the structure of the arguments matters afterwards; a returned carry consists of them."""
        return bool(self.propagation.structural) or self.rules.loops

    def output_of(self, inputs: Sequence[Sequence[Value]]) -> tuple[Structure, Sequence[Value], Sequence[Value]]:
        """The flattened output of the function; its changes to the arguments are ignored."""
        entered = self.enter(inputs)
        out = self.call(entered)
        left = self.leave(entered, out)  # raises for captives
        if entered.roots:  # the output may refer to them
            return gather(out).parts()
        return left.output, left.raws, [leaf for leaf in left.leaves if not is_graph_leaf(leaf)]

    # Names, made when an error or a program needs them ----------------------------------------------------------------

    def labels(self) -> tuple[list[str], list[str]]:
        """The user's names of the objects and plain leaves of the arguments."""
        return self.structure.labels(self.f())

    def root_labels(self) -> list[str]:
        """The user's names of the objects of the arguments."""
        return self.labels()[0]

    def root_names(self) -> list[str]:
        """What the objects of the arguments are called in programs."""
        return self.rules.names(self.root_labels())

    def value_labels(self) -> list[str]:
        """The path of each input value: ``model.layers.kernel``."""
        return self.structure.value_labels(self.root_labels())

    def labels_by_port(self) -> tuple[list[str], ...]:
        """The path of each input of each port."""
        roots, plain = self.labels()
        return self.ports.grouped(self.structure.value_labels(roots), plain)

    def user_function(self) -> Callable[..., Tree]:
        return self.f()

    def names(self) -> tuple[Tree, ...]:
        """The name of each input, by ports."""
        return (self.labels_by_port(),)


class OutputPorts:
    """The results of a function, sorted into ports."""

    def __init__(self, body: Body, left: TracedResult, out: Tree) -> None:
        self.body, self.left = body, left
        self.values = left.entered.values
        self.outputs: tuple[list[Value], ...] = tuple([] for _ in body.ports.kinds)
        self.spread = body.outs.broadcast(out)
        self.prefixes = (*body.prefixes, *itertools.compress(self.spread, map(is_graph_leaf, left.leaves)))
        if left.output.roots and not body.propagation.returns_inputs:
            self._check_output_aliasing(out)

    def done(self) -> tuple[tuple[list[Value], ...], Outcome]:
        """The ports, and what the function did."""
        left, propagation = self.left, self.body.propagation
        written, unwritten = self._values_of_inputs() if left.arguments is None else ([], [])
        only_values = not propagation.structural and not self.body.rules.loops  # a returned argument is a copy
        fixed = propagation.donated
        if propagation.all_values or only_values:
            fixed = frozenset(range(len(self.values)))
        self.inputs = {id(value): i for i, value in enumerate(self.values) if i not in fixed}
        sources: list[Address] = []
        if left.arguments is not None:
            sources = [self._source(number) for number in range(left.argument_count)]
        returned = [self._source(number) for number in range(left.argument_count, len(left.walk.leaves))]
        pairs = zip(left.leaves, self.spread, strict=True)
        plain = [self.plain(leaf, prefix) for leaf, prefix in pairs if not is_graph_leaf(leaf)]
        needs_mapping = left.arguments is not None or (bool(left.output.roots) and not only_values)
        outcome = Outcome(
            tuple(written),
            tuple(unwritten),
            left.arguments,
            tuple(sources),
            left.output,
            tuple(returned),
            tuple(plain),
            left.moved() if needs_mapping else None,
            frozenset(position for position, variable in enumerate(left.variables) if variable is None),
        )
        return self.outputs, outcome

    def _values_of_inputs(self) -> tuple[list[Value], list[Value]]:
        """(position, address) of the written values, and of the others if all values are returned."""
        (structural, _, all_values, donated, _), written, unwritten = self.body.propagation, [], []
        for position, (raw, before) in enumerate(zip(self.left.after, self.values, strict=True)):
            if raw is not before or position in donated:
                if not self.is_dropped(position):
                    written.append((position, self.send_back(position, raw)))
            elif all_values and (structural or self.left.variables[position] is not None):
                unwritten.append((position, self.send_back(position, raw)))
        return written, unwritten

    def _source(self, leaf: int) -> Address:
        """The address of the value of a leaf of the walk: its unchanged input, or an output."""
        raw, left, ports = self.left.raws[leaf], self.left, self.body.ports
        kept, position = self.inputs.get(id(raw)), self.position(leaf)
        prefix = left.prefix(leaf, self.prefixes) if position is None else ports.of(position)
        if kept is not None and (kept == position or self.is_itself_outside(kept, prefix)):
            return Address(INPUT, kept)
        if position is not None:
            return Address(INPUT, position) if self.is_dropped(position) else self.send_back(position, raw)
        return self.new(leaf, prefix, raw)

    # What a loop does otherwise ---------------------------------------------------------------------------------------

    def position(self, leaf: int) -> int | None:
        """The position of a leaf of the walk among the input values; ``None`` for a new one."""
        return self.left.position(leaf)

    def is_itself_outside(self, position: int, prefix: Hashable) -> bool:
        """Whether an input value that is returned elsewhere with this prefix is, outside, the caller's own value."""
        return self.body.ports.of(position) == prefix

    def is_dropped(self, position: int) -> bool:
        """Whether a new value of an input is lost."""
        return False

    def send_back(self, position: int, value: Value) -> Address:
        """Send the value that an input variable has now."""
        writes, ports = self.body.propagation.writes, self.body.ports
        return self.send(ports.values[position] if writes is OWN_PORT else ports.kinds.index(writes), value)

    def new(self, leaf: int, prefix: Hashable, value: Value) -> Address:
        """Send the value of a new variable, or array attribute, which is a leaf of the walk."""
        writes = self.body.propagation.writes
        is_argument = leaf < self.left.argument_count and writes is not OWN_PORT
        return self.send(self.body.ports.kinds.index(writes if is_argument else prefix), value)

    def plain(self, leaf: Value, prefix: Hashable) -> Address:
        """Send a plain leaf of the output."""
        return self.send(self.body.ports.kinds.index(prefix), leaf)

    def send(self, port: int, value: Value) -> Address:
        """Put a value into a port."""
        self.body.rules.check_sent(self.body, self.body.ports.kinds[port], value)
        self.outputs[port].append(value)
        return Address(port, len(self.outputs[port]) - 1)

    def _check_output_aliasing(self, out: Tree) -> None:
        """An input variable must not be returned with a different prefix. (rule X3)"""
        pairs, _ = jax.tree_util.tree_flatten_with_path(out, is_leaf=is_graph_leaf)
        treatments = [
            (f"output{jax.tree_util.keystr(path)}", leaf, prefix)
            for (path, leaf), prefix in zip(pairs, self.spread, strict=True)
            if is_graph_leaf(leaf)
        ]
        known = {
            id(variable): (self.body.ports.of(i), "the arguments")
            for i, variable in enumerate(self.left.variables)
            if variable is not None
        }
        check_aliasing(self.body.name, treatments, known)


def guarded(f: Callable[..., Tree], *args: Any, **kwargs: Any) -> Tree:
    """Call a function of the user's that comes with another, such as a rule."""
    with AnnotateErrors((), inside=True), refusing_container_changes(f):
        return f(*args, **kwargs)
