"""The body of a call: a function of objects as a pure function of ports. It enters, calls and leaves, once each.

A port is a list of values that the JAX transform in the middle treats alike: they have the same axis, spec or sharding,
or are all carried, differentiated or donated. A port is identified by a hashable value, its kind. Since the ports
follow from the transform's own arguments, they are known before the function is traced, regardless of what it writes or
creates. Outputs are sorted into the same ports:

* an input variable leaves by its input port, if it was written;
* a new variable leaves by the prefix of the argument or output that it belongs to;
* a plain output leaf leaves by the output prefix.

An ``Outcome`` records where each value is. (rules X2, X3, U24 to U28)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import jax
import numpy as np

from ...core import hooks
from ...core.graph.axes import drop_axis, has_axis_metadata, put_axis
from ...core.graph.walks import is_graph_leaf, path_of
from ...core.traces.captured import refusing_container_changes, warn_about_captures
from ...core.transform import Transformation
from ...core.variables.cells import recording_foreign_reads
from ...core.variables.variables import Variable
from ...errors import ArgumentError, AxisNameMismatchError, StaticValueError
from ...util.jax_versions import trace_settings
from ...util.sentinels import Sentinel
from ..loop_rules import LoopRules
from .arguments import ArgumentNames, Structure, gather, joined
from .enter_leave import TracedArguments, TracedResult
from .outcome import INPUT, Address, Outcome
from .prefixes import Carry, Prefix, check_aliasing

T = TypeVar("T")

# Written values leave by their input port.
OWN_PORT: Any = Sentinel(__name__, "OWN_PORT", "its own port")

# User's function → key → (body, what was made for it), the latest used last, while the function lives. An entry keeps
# alive only structures, which reference no object, and functions of arrays that reference the function weakly.
_kept: weakref.WeakKeyDictionary[Any, dict[Any, tuple[Any, Any]]] = weakref.WeakKeyDictionary()
MOST = 64


class AttachedToErrors:
    """A block in which a transform calls JAX or the user's function; an error that leaves it says with which objects.

    Args:
        roots: the objects among the arguments.
        inside: whether these are the private ones, around traced values.
    """

    __slots__ = ("inside", "roots")

    def __init__(self, roots: Sequence[Any], *, inside: bool) -> None:
        self.roots, self.inside = roots, inside

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or traceback is None:
            return
        refs: list[Any] = []
        with contextlib.suppress(TypeError):  # an object of a registered class without weak references
            refs = [weakref.ref(root) for root in self.roots]
        # A frame lives as long as the traceback, and the private objects as long as the frame.
        vars(error).setdefault("_plait_calls", {})[id(traceback.tb_frame)] = self.inside, refs


def is_from_inside(error: BaseException) -> bool:
    """Whether the error comes from the user's function, or from what it called."""
    return any(inside for inside, _ in getattr(error, "_plait_calls", {}).values())


class NamedAsUsers:
    """A function of arrays that JAX calls as the user's function, and its arguments as the user does."""

    def user_function(self) -> Callable[..., Any]:
        """The function that it calls."""
        raise NotImplementedError

    def names(self) -> tuple[Any, ...]:
        """The arguments, with a name in place of each value."""
        raise NotImplementedError

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.user_function()

    @functools.cached_property
    def __signature__(self) -> ArgumentNames:
        return ArgumentNames(functools.cache(self.names))


class OfBody(NamedAsUsers):
    """A function of arrays around a body."""

    body: Body

    def user_function(self) -> Callable[..., Any]:
        return self.body.f()


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Body(NamedAsUsers):
    """One function, for arguments of one structure. It equals itself alone, so that JAX, which keeps traces by the
    function, keeps none that plait has forgotten; ``key`` compares two of them.

    Attributes:
        name: the transform, for errors.
        f: returns the function; the reference may be weak.
        structure: the structure of ``(args, kwargs)``.
        ports: the kind of each port.
        value_ports, plain_ports: the port of each input value and each plain input leaf, by number.
        prefixes: the prefix of each object of the arguments.
        outs: the prefix of the output.
        structural: whether structural changes are carried out, or only values; or the name of an attribute, if only
            its changes are.
        writes: the port by which written values leave; ``OWN_PORT`` means their input port.
        loop: the rules of the loop, if the function is the body of one.
        axis_metadata: names of the axis that the transform removes inside; ``None`` if ranks do not change.
        donated: positions of values that are always returned and written back, whether the function writes them or not.
        all_values: whether all values of variables are returned, written or not.
        returns_inputs: whether an input variable may be returned with a different prefix; it then leaves by its input
            port.
        check_output: a check of the function's output that runs first.
    """

    name: Transformation
    f: Callable[[], Callable[..., Any]]
    structure: Structure
    ports: tuple[Any, ...]
    value_ports: tuple[int, ...]
    plain_ports: tuple[int, ...]
    prefixes: tuple[Any, ...]
    outs: Prefix
    structural: bool | str | None = True
    writes: Any = OWN_PORT
    loop: LoopRules | None = None
    axis_metadata: Any = None
    donated: frozenset[int] = frozenset()
    all_values: bool = False
    returns_inputs: bool = False
    check_output: Callable[[Any], Any] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """All of it but the function: what two bodies of one function are compared by."""
        return tuple([getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "f"])

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
        self, inputs: Sequence[Sequence[Any]], run: Callable[[TracedArguments], Any] | None = None
    ) -> tuple[tuple[list[Any], ...], Outcome]:
        """Map input ports to output ports, and return what the function did.

        Args:
            run: called with the private objects instead of the function.
        """
        entered = self.enter(inputs)
        dropped = self._drop_axes(entered)
        out = self.call(entered, run)
        if self.loop is not None:
            self.loop.keep_variables(entered, out, self.prefixes)
        if self.check_output is not None:
            self.check_output(out)
        left = self._leave(entered, out, dropped)
        if left.copies_captured:
            self.forget()
        if self.loop is not None:
            self.loop.check(left, self.prefixes, self.labels, bool(self.structural))
        return _OutputPorts(self, left, out, inputs).done()

    def __repr__(self) -> str:
        """Short: JAX takes it for the name of the function, at each trace."""
        f = self.f()
        return f"{self.name} of {getattr(f, '__qualname__', type(f).__name__)}"

    def enter(self, inputs: Sequence[Sequence[Any]]) -> TracedArguments:
        """Create private objects for the input values."""
        supplies = [iter(port) for port in inputs]
        values = [next(supplies[port]) for port in self.value_ports]
        plain = [next(supplies[port]) for port in self.plain_ports]
        return TracedArguments(self.structure, values, plain)

    def grouped(self, values: Sequence[Any], plain: Sequence[Any]) -> tuple[list[Any], ...]:
        """One item per input value and plain leaf, sorted into ports."""
        groups: tuple[list[Any], ...] = tuple([] for _ in self.ports)
        for port, value in zip((*self.value_ports, *self.plain_ports), (*values, *plain), strict=True):
            groups[port].append(value)
        return groups

    def call(self, entered: TracedArguments, run: Callable[[TracedArguments], Any] | None = None) -> Any:
        """Call the user's function, or ``run``, with the private objects."""
        call = functools.partial(self._run if run is None else run, entered)
        for around in hooks.around_body.values():
            call = functools.partial(around, self, entered, call)
        with AttachedToErrors(entered.roots, inside=True):
            return call()

    def _run(self, entered: TracedArguments) -> Any:
        f, (args, kwargs) = self.f(), entered.arguments()
        record = recording_foreign_reads(self.forget)
        with record as found, refusing_container_changes(f):
            out = f(*args, **kwargs)
            if found and self.name.keeps_programs:
                warn_about_captures(f, self.name, found)
        return out

    def output_of(self, inputs: Sequence[Sequence[Any]]) -> tuple[Structure, Sequence[Any], Sequence[Any]]:
        """The flattened output of the function; its changes to the arguments are ignored."""
        entered = self.enter(inputs)
        out = self.call(entered)
        left = TracedResult(self.name, entered, out, bool(self.structural), self.root_labels)  # raises for captives
        if entered.roots:  # the output may refer to them
            return gather(out).parts()
        return left.output, left.raws, [leaf for leaf in left.leaves if not is_graph_leaf(leaf)]

    def warn_of_dropped(self, left: TracedResult, positions: Sequence[int]) -> None:
        """Warn of writes to values that all iterations share."""
        assert self.loop is not None
        self.loop.warn_of_dropped(self.value_labels(), [left.variables[position] for position in positions], positions)

    def drops(self, port: Any) -> bool:
        """Whether writes to values of a port are lost: all iterations of a loop share them."""
        return self.loop is not None and port is None

    def labels(self) -> tuple[list[str], list[str]]:
        """The user's names of the objects and plain leaves of the arguments."""
        return self.structure.labels(self.f())

    def root_labels(self) -> list[str]:
        """The user's names of the objects of the arguments."""
        return self.labels()[0]

    def user_function(self) -> Callable[..., Any]:
        return self.f()

    def names(self) -> tuple[Any, ...]:
        """The name of each input, by ports."""
        return (self.labels_by_port(),)

    def root_names(self) -> list[str]:
        """What the objects of the arguments are called in programs."""
        labels = self.root_labels()
        return labels if self.loop is None else self.loop.names(labels)

    def value_labels(self) -> list[str]:
        """The path of each input value: ``model.layers.kernel``."""
        return self.structure.value_labels(self.root_labels())

    def labels_by_port(self) -> tuple[list[str], ...]:
        """The path of each input of each port."""
        roots, plain = self.labels()
        return self.grouped(self.structure.value_labels(roots), plain)

    # Axis names -------------------------------------------------------------------------------------------------------

    def describe(self, outcome: Outcome, address: Address) -> str:
        """The name of the value at an address: ``model.layers[0].mean`` or ``the output[1]['loss']``."""
        for position, where in (*outcome.written, *outcome.unwritten):
            if where == address:
                return self.value_labels()[position]
        if address in outcome.argument_sources:
            assert outcome.arguments is not None
            root, path = Structure(None, outcome.arguments).leaf_paths()[outcome.argument_sources.index(address)]
            return joined(self.labels()[0][root], path)
        assert outcome.output is not None
        pairs = list(zip(outcome.output.places(), outcome.output.graphdefs, strict=True))
        objects = [f"the output{jax.tree_util.keystr(path)}" for path, graphdef in pairs if graphdef is not None]
        plain = [f"the output{jax.tree_util.keystr(path)}" for path, graphdef in pairs if graphdef is None]
        if address in outcome.plain:
            return plain[outcome.plain.index(address)]
        root, path = outcome.output.leaf_paths()[outcome.output_sources.index(address)]
        return joined(objects[root], path)

    def _leave(self, entered: TracedArguments, out: Any, dropped: Mapping[int, Any]) -> TracedResult:
        structural = bool(self.structural) or self.loop is not None  # the returned carry consists of the input objects
        if self.axis_metadata is None:
            return TracedResult(self.name, entered, out, structural, self.root_labels)
        variables = entered.variables()
        for position, names in dropped.items():
            self._put_axis(variables[position], self.ports[self.value_ports[position]], names)
        left = TracedResult(self.name, entered, out, structural, self.root_labels)
        new = [
            (number, leaf)
            for number, leaf in enumerate(left.walk.leaves)
            if isinstance(leaf, Variable)
            and left.position(number) is None
            and has_axis_metadata(leaf, self.axis_metadata)
        ]
        if not new:
            return left
        prefixes = (*self.prefixes, *itertools.compress(self.outs.broadcast(out), map(is_graph_leaf, left.leaves)))
        axes = [(leaf, left.prefix(number, prefixes)) for number, leaf in new]
        for leaf, axis in axes:
            if isinstance(axis, int):
                self._put_axis(leaf, axis, None)
        return TracedResult(self.name, entered, out, structural, self.root_labels)

    def _drop_axes(self, entered: TracedArguments) -> dict[int, Any]:
        """Remove the axis that does not exist inside from the names of each variable; position → what was removed."""
        if self.axis_metadata is None:
            return {}
        dropped = {}
        for position, variable in enumerate(entered.variables()):
            axis = self.ports[self.value_ports[position]]
            if variable is not None and isinstance(axis, int) and has_axis_metadata(variable, self.axis_metadata):
                rank = np.ndim(entered.values[position]) + 1
                try:
                    dropped[position] = drop_axis(variable, axis % rank, self.axis_metadata)
                except AxisNameMismatchError as error:
                    parts = {**error.parts, "at": f"{self.value_labels()[position]}, {error.parts['at']}"}
                    raise AxisNameMismatchError(f"{self.name}: {error.message}", **parts) from None
        return dropped

    def _put_axis(self, variable: Variable[Any], axis: int, dropped: Any) -> None:
        rank = np.ndim(variable._cell.raw) + 1
        put_axis(variable, axis % rank, self.axis_metadata, dropped)


class _OutputPorts:
    """The results of a function, sorted into ports."""

    def __init__(self, body: Body, left: TracedResult, out: Any, inputs: Sequence[Sequence[Any]]) -> None:
        self.body, self.left = body, left
        self.values = left.entered.values
        self.outputs: tuple[list[Any], ...] = tuple([] for _ in body.ports)
        self.replaced = {} if body.loop is None else body.loop.replaced(left, out)
        self.spread = body.outs.broadcast(out)
        self.prefixes = (*body.prefixes, *itertools.compress(self.spread, map(is_graph_leaf, left.leaves)))
        # Positions of carried values: they are always returned, at the same position.
        self.carried: dict[int, Address] = {}
        self.slots = {id(variable): position for position, variable in self.replaced.items()}
        self.carried_plain: list[Address] = []
        if body.loop is not None and Carry in body.ports:
            self._carry(body.ports.index(Carry), inputs)
        if left.output.roots and not body.returns_inputs:
            self._check_output_aliasing(out)

    def _carry(self, port: int, inputs: Sequence[Sequence[Any]]) -> None:
        carried = self.outputs[port]
        for position, own in enumerate(self.body.value_ports):
            if own == port:
                self.carried[position] = Address(port, len(carried))
                variable = self.replaced.get(position)
                carried.append(self.left.after[position] if variable is None else variable._cell.raw)
        count = self.body.plain_ports.count(port)
        if count:
            if Carry in self.body.outs.leaves:
                self.carried_plain = [Address(port, len(carried) + i) for i in range(count)]
            carried += list(inputs[port])[-count:]

    def done(self) -> tuple[tuple[list[Any], ...], Outcome]:
        """The ports, and what the function did."""
        body, left = self.body, self.left
        written, unwritten = self._values_of_inputs() if left.arguments is None else ([], [])
        sources: list[Address] = []
        fixed = body.donated
        only_values = not body.structural and body.loop is None  # a returned argument comes out as a copy
        if body.all_values or only_values:
            fixed = frozenset(range(len(self.values)))
        self.inputs = {id(value): i for i, value in enumerate(self.values) if i not in fixed}
        if left.arguments is not None:
            sources = [self._source(number) for number in range(left.argument_count)]
        returned = [self._source(number) for number in range(left.argument_count, len(left.walk.leaves))]
        plain = self._plain_leaves()
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

    def _values_of_inputs(self) -> tuple[list[Any], list[Any]]:
        """(position, address) of the written values, and of the others if all values are returned."""
        body, written, unwritten, dropped = self.body, [], [], []
        for position, (raw, before) in enumerate(zip(self.left.after, self.values, strict=True)):
            if raw is not before or position in body.donated:
                if body.drops(body.ports[body.value_ports[position]]):
                    dropped.append(position)
                    continue
                written.append((position, self._send_back(position, raw)))
            elif body.all_values and (body.structural or self.left.variables[position] is not None):
                unwritten.append((position, self._send_back(position, raw)))
        if dropped:
            body.warn_of_dropped(self.left, dropped)
        return written, unwritten

    def _send_back(self, position: int, value: Any) -> Address:
        if position in self.carried:
            return self.carried[position]
        if self.body.writes is not OWN_PORT:
            return self._send(self.body.ports.index(self.body.writes), value)
        return self._send(self.body.value_ports[position], value)

    def _source(self, leaf: int) -> Address:
        """The address of the value of a leaf of the walk: its unchanged input, or an output."""
        raw, left, body = self.left.raws[leaf], self.left, self.body
        kept, position = self.inputs.get(id(raw)), left.position(leaf)
        if position is None:
            position = self.slots.get(id(left.walk.leaves[leaf]))
        prefix = left.prefix(leaf, self.prefixes) if position is None else body.ports[body.value_ports[position]]
        if kept is not None and (kept == position or self._is_itself_outside(kept, prefix)):
            return Address(INPUT, kept)
        if position is not None:
            if body.drops(prefix):
                body.warn_of_dropped(left, [position])
                return Address(INPUT, position)
            return self._send_back(position, raw)
        if body.loop is not None and (prefix is Carry or prefix is None):
            labels, root = body.labels()[0], left.root(leaf)
            owner = labels[root] if root < len(labels) else "the output"
            place = joined(owner, path_of(left.walk.links[leaf]))
            raise body.loop.new_variable_error(left.walk.leaves[leaf], place, prefix)
        if body.writes is not OWN_PORT and leaf < left.argument_count:
            prefix = body.writes
        return self._send(body.ports.index(prefix), raw)

    def _is_itself_outside(self, position: int, prefix: Any) -> bool:
        """Whether an input value that is returned elsewhere with this prefix is, outside, the caller's own value."""
        return prefix is not Carry and self.body.ports[self.body.value_ports[position]] == prefix

    def _plain_leaves(self) -> list[Address]:
        found, carried = [], iter(self.carried_plain)
        for leaf, prefix in zip(self.left.leaves, self.spread, strict=True):
            if is_graph_leaf(leaf):
                continue
            if prefix is Carry and self.body.loop is not None:
                address = next(carried)  # the rules of the loop have already compared the trees of the carry
                self.outputs[address.port][address.place] = leaf
                found.append(address)
            else:
                found.append(self._send(self.body.ports.index(prefix), leaf))
        return found

    def _send(self, port: int, value: Any) -> Address:
        if self.body.axis_metadata is not None:
            _check_output_axis(self.body.name, self.body.ports[port], value)
        self.outputs[port].append(value)
        return Address(port, len(self.outputs[port]) - 1)

    def _check_output_aliasing(self, out: Any) -> None:
        """An input variable must not be returned with a different prefix. (rule X3)"""
        pairs, _ = jax.tree_util.tree_flatten_with_path(out, is_leaf=is_graph_leaf)
        treatments = [
            (f"output{jax.tree_util.keystr(path)}", leaf, prefix)
            for (path, leaf), prefix in zip(pairs, self.spread, strict=True)
            if is_graph_leaf(leaf)
        ]
        known = {
            id(variable): (self.body.ports[self.body.value_ports[i]], "the arguments")
            for i, variable in enumerate(self.left.variables)
            if variable is not None
        }
        check_aliasing(self.body.name, treatments, known)


def _check_output_axis(name: str, axis: Any, value: Any) -> None:
    """Raise if an output cannot have this axis.

    Raises:
        ArgumentError: names the axis and the shape.
    """
    for leaf in jax.tree_util.tree_leaves(value) if isinstance(axis, int) else ():
        rank = np.ndim(leaf) + 1
        if not -rank <= axis < rank:
            raise ArgumentError(
                f"{name}: axis {axis} of the output is out of range",
                at="out_axes",
                found=f"an output of shape {np.shape(leaf)} in one call",
                expected=f"an axis from {-rank} to {rank - 1}",
                do=f"change the axis in out_axes, for example to {0 if axis >= 0 else -1}",
            )


def guarded(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user's that comes with another, such as a rule."""
    with AttachedToErrors((), inside=True), refusing_container_changes(f):
        return f(*args, **kwargs)
