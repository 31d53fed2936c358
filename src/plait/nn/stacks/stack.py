"""``Stack``: equal blocks written as a list, stored as one block with stacked arrays, and run as one loop.

A stack holds one block for each of its **groups**: the layers at one position of the period, whose arrays are stacked
along a first axis. The key of a group is the slice that selects its layers from the list, ``"0:24"``, so a path names
all layers that it stands for: ``blocks[0:24].attention.query.kernel``. Layers after the last whole period form groups
of one. (rules ST1 to ST9, decision 0023)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten, tree_unflatten

from ...core.graph.axes import PARTITION_NAME
from ...core.graph.locate import describe_place
from ...core.graph.walks import is_graph_leaf
from ...core.intermediates.sowing import RECORD
from ...core.nodes.containers import List
from ...core.nodes.journal import Journal
from ...core.nodes.module import Module
from ...core.nodes.nodes import Static, iter_variables
from ...core.nodes.pytree import Pytree
from ...core.rngs import Rngs
from ...core.settings import Restoring, defaults
from ...core.transform import Transformation
from ...core.variables.filters import Not
from ...core.variables.variable_kinds import Cache, Param
from ...errors import ArgumentError, ArgumentTypeError
from ...transforms.batching import vmap
from ...transforms.call.body import guarded
from ...transforms.call.call import Call, check_function
from ...transforms.call.prefixes import Carry, Prefix, StateAxes
from ...transforms.loop_rules import LoopRules
from ...transforms.loops import scan, scan_ports
from ...util.counts import check_count
from ...util.jax_versions import is_staged
from ...util.paths import layers_key
from ...util.sentinels import NOTHING, Sentinel
from ...util.static_values import HashableMapping
from ...util.words import describe_type
from .every_layer import note_stack
from .per_layer import PerLayer
from .stack_records import with_records
from .stacking import (
    Write,
    check_equal,
    check_layers,
    described,
    is_same_layer,
    layer_copy,
    layer_view,
    layer_writes,
    place_new,
    smallest_period,
    stacked,
    store_in_references,
)

STACK = Transformation(
    "Stack",
    of_model="stack.scan(f, x, model), where f takes a block, x and the model, and returns x and an output",
    new_variables="create the variable before the call, or return its value: stack.scan(f, x) returns what f returns "
    "for each block",
    loops=True,
)
SCAN = Transformation("Stack.scan", "{f}")


B = TypeVar("B", covariant=True)
P = ParamSpec("P")
X = TypeVar("X")
Y = TypeVar("Y")


class StackOptions(TypedDict, total=False):
    """The options of a ``Stack``."""

    period: int | None
    axis: str | None
    remat: bool | Callable[..., bool]
    unroll: int | bool


class Stack(Module, Generic[B]):
    """Equal blocks that run one after the other: a list to read and write, one compiled loop to run.

    ``stack(x, *args)`` is ``for block in stack: x = block(x, *args)``, traced and compiled once, however many blocks
    there are. It runs as ``jax.lax.scan``. Everywhere else it is a list of blocks: ``stack[3]``, ``len``, iteration and
    slices give views, which read from the stacked arrays and write into them.

    Args:
        blocks: the blocks; or a function that makes one; or several functions, one for each position of the period.
            A function is called with ``rngs`` if it is given, and traced twice, however many blocks it is to make.
        number: how many blocks to make, if ``blocks`` makes them.
        rngs: the random streams from which blocks are made; keys and counts are those of
            ``[make(rngs=rngs) for _ in range(number)]``.
        period: after how many blocks the same block comes again, such as 6 for five local and one global; ``None``
            means the smallest that fits. What is left after whole periods runs after the loop.
        axis: the name of the stacked axis in the variables' axis names, such as ``"layers"``; ``None`` is no name.
        remat: what the backward pass recomputes. ``True``: whole blocks; a policy of ``jax.checkpoint_policies``: all
            that it does not keep.
        unroll: as in ``jax.lax.scan``.

    Raises:
        ArgumentError: blocks that differ; names the paths. A number of blocks that is not an integer of 1 or more.
        SharingError: blocks that share a variable.

    Example:
        >>> class Block(plait.Module):
        ...     def __init__(self, features, *, rngs):
        ...         self.linear = plait.Linear(features, features, rngs=rngs)
        ...     def __call__(self, x):
        ...         return x + jnp.tanh(self.linear(x))
        >>> blocks = plait.Stack(lambda rngs: Block(4, rngs=rngs), 24, rngs=plait.Rngs(0), remat=True)
        >>> blocks(jnp.ones((2, 4))).shape, len(blocks)
        ((2, 4), 24)
        >>> blocks[3].linear.bias[...] = jnp.ones(4)
        >>> plait.state(blocks)["0:24"]["linear"]["bias"].value[2:5, 0].tolist()
        [0.0, 1.0, 0.0]
    """

    _pytree__has_layers: ClassVar[bool] = True  # ``update`` takes entries of one layer, and writes them into its view

    depth: int
    period: int
    axis: str | None

    @overload
    def __init__(
        self, blocks: Callable[..., B], number: int, *, rngs: Rngs | None = None, **options: Unpack[StackOptions]
    ) -> None: ...
    @overload
    def __init__(self, blocks: Iterable[B], **options: Unpack[StackOptions]) -> None: ...
    @overload
    def __init__(
        self,
        blocks: Iterable[Callable[..., B]],
        number: int,
        *,
        rngs: Rngs | None = None,
        **options: Unpack[StackOptions],
    ) -> None: ...
    def __init__(
        self,
        blocks: Iterable[Any] | Callable[..., Any],
        number: int | None = None,
        *,
        rngs: Rngs | None = None,
        period: int | None = None,
        axis: str | None = None,
        remat: bool | Callable[..., bool] = False,
        unroll: int | bool = 1,
    ) -> None:
        if not (isinstance(remat, bool) or callable(remat)):
            raise ArgumentTypeError(
                "remat= of a stack says what is recomputed",
                found=f"{remat!r:.80}",
                expected="True, False, or a policy of jax.checkpoint_policies",
                do="for example remat=True; to recompute a part of a block, call plait.remat in the block",
            )
        self.axis = axis
        self.remat = remat
        self.unroll = unroll
        if number is None:
            if callable(blocks):
                raise _no_number(blocks)
            self._take(list(blocks), period)
        else:
            makers = [blocks] if callable(blocks) else list(blocks)
            self._make(makers, number, rngs, period)

    def _take(self, blocks: list[Any], period: int | None) -> None:
        if not blocks or not all(isinstance(block, Pytree) for block in blocks):
            raise ArgumentTypeError(
                "a stack is made of blocks",
                found="no block" if not blocks else describe_type(next(b for b in blocks if not isinstance(b, Pytree))),
                expected="one module or more",
                do="for example plait.Stack([Block(rngs=rngs) for _ in range(24)])",
            )
        self.depth = len(blocks)
        self.period = _period_of(blocks) if period is None else _checked_period(period, len(blocks))
        for layers in self._groups():
            setattr(self, layers_key(layers), stacked([blocks[i] for i in layers], self.axis, self._name(layers)))

    @staticmethod
    def _name(layers: range) -> Callable[[int], str]:
        return lambda number: f"blocks[{layers[number]}]"

    def _make(self, makers: list[Any], number: int, rngs: Rngs | None, period: int | None) -> None:
        if period not in (None, len(makers)):
            raise ArgumentError(
                "a stack is made by one function for each position of its period",
                found=f"{len(makers)} functions, and period={period}",
                expected="as many functions as the period is long",
                do="leave period out",
            )
        check_count("number", number, "blocks", "24")
        number = int(number)
        self.depth, self.period = number, len(makers)
        in_references = defaults.ref
        with Restoring(defaults, ref=False):  # references cannot leave the transforms that make the blocks
            self._make_groups(makers, number, rngs)
        if in_references:
            store_in_references(self)

    def _make_groups(self, makers: list[Any], number: int, rngs: Rngs | None) -> None:
        streams = {} if rngs is None else dict(rngs.items())
        draws = [_draws(make, streams) for make in makers]
        for layers in self._groups():
            start = {
                name: stream.count.get_value() + np.uint32(sum(draws[i % self.period][name] for i in range(layers[0])))
                for name, stream in streams.items()
            }
            step = {name: np.uint32(sum(each[name] for each in draws)) for name in streams}
            counts = {name: start[name] + np.arange(len(layers), dtype=np.uint32) * step[name] for name in streams}
            make = functools.partial(_made, makers[layers[0] % self.period], streams)
            options: Any = {"transform_metadata": {PARTITION_NAME: self.axis}, "graph": True, "graph_updates": True}
            if all(map(_draws_alone, streams.values())):
                block = vmap(make, axis_size=len(layers), **options)(counts)
            else:
                one_by_one: Any = scan(make, in_axes=0, out_axes=0, length=len(layers), **options)
                block = one_by_one(counts)
            place_new(block)
            setattr(self, layers_key(layers), block)
        for name, stream in streams.items():
            drawn = sum(draws[i % self.period][name] for i in range(number))
            stream.count.set_value(stream.count.get_value() + np.uint32(drawn))

    def _pytree__graph_flatten(self) -> tuple[list[tuple[str, Any]], Any]:
        note_stack(self)
        return super()._pytree__graph_flatten()

    # The groups -------------------------------------------------------------------------------------------------------

    def _groups(self) -> list[range]:
        """The layers of each group: those of the loop by their position in the period, then those that are left."""
        whole = self.depth - self.depth % self.period
        loop = [range(first, whole, self.period) for first in range(self.period)] if whole else []
        return [*loop, *(range(i, i + 1) for i in range(whole, self.depth))]

    def _group_of(self, layer: int) -> tuple[str, int, int]:
        """The key of the group of a layer, its place there, and the number of layers there."""
        layers = next(layers for layers in self._groups() if layer in layers)
        return layers_key(layers), layers.index(layer), len(layers)

    # A list -----------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.depth

    def __iter__(self) -> Iterator[B]:
        return (self[i] for i in range(self.depth))

    @overload
    def __getitem__(self, index: int) -> B: ...
    @overload
    def __getitem__(self, index: slice) -> list[B]: ...
    def __getitem__(self, index: Any) -> Any:
        """A view of one block, or a list of views for a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(self.depth)[index]]
        layer = self._layer(index)
        key, place, count = self._group_of(layer)
        return with_records(self, layer, key, layer_view(self.__dict__[key], place, count, self.axis))

    def __setitem__(self, index: int | slice, block: Any) -> None:
        """Write the values of another block of the same structure into a layer; or of a list of blocks into a slice.

        Earlier views of the layer become separate blocks with its old values, like a block taken out of a list.
        So ``stack[0], stack[1] = stack[1], stack[0]`` exchanges two layers.
        """
        layers = [*range(self.depth)[index]] if isinstance(index, slice) else [self._layer(index)]
        blocks = list(block) if isinstance(index, slice) else [block]
        if len(blocks) != len(layers):
            raise ArgumentError(
                "a stack cannot change its number of blocks",
                found=f"{len(blocks)} blocks for {len(layers)} layers",
                expected="one block for each layer",
                do=_OTHER_DEPTH,
            )
        writes = [write for pair in zip(layers, blocks, strict=True) for write in self._writes(*pair)]
        with Journal() as journal:
            for write in writes:
                write(journal)

    def _writes(self, layer: int, block: Any) -> list[Write]:
        """A function that writes the values of a block into a layer; does nothing if the block is that layer."""
        view = self[layer]
        if is_same_layer(view, block):
            return []
        key, place, _ = self._group_of(layer)
        return layer_writes(self.__dict__[key], view, place, block, (f"blocks[{layer}]", "the new block"))

    def __delitem__(self, index: Any) -> None:
        raise ArgumentTypeError(
            "a stack cannot change its number of blocks",
            at=f"del blocks[{index!r}]",
            found="a block to remove",
            expected=f"{self.depth} blocks, as long as the stack exists",
            do=_OTHER_DEPTH,
        )

    def __contains__(self, block: object) -> bool:
        """Whether it is a view of one of the blocks."""
        return any(is_same_layer(view, block) for view in self)

    def _layer(self, index: Any) -> int:
        try:
            return range(self.depth)[index]
        except (IndexError, TypeError):
            raise IndexError(f"a stack of {self.depth} blocks has no block {index!r}") from None

    def to_list(self) -> List[B]:
        """The blocks as blocks of their own, with the same values.

        Example:
            >>> stack = plait.Stack(lambda rngs: plait.Linear(2, 2, rngs=rngs), 3, rngs=plait.Rngs(0))
            >>> type(stack.to_list()[1]).__name__
            'Linear'
        """
        places = map(self._group_of, range(self.depth))
        return List([layer_copy(self.__dict__[key], place, count, self.axis) for key, place, count in places])

    # The loop ---------------------------------------------------------------------------------------------------------

    def __call__(self: Stack[Callable[Concatenate[Any, P], X]], x: Any, /, *args: P.args, **kwargs: P.kwargs) -> X:
        """``for block in self: x = block(x, *args, **kwargs)``.

        Args:
            x: what is handed from block to block: arrays, in any pytree, whose shapes and dtypes stay.
            *args, **kwargs: the same for all blocks, but for a ``PerLayer``, of which each block gets its entry.
                Booleans, also those of NumPy, and Python numbers are not traced.
                Modules among them are shared; what the blocks write to variables other than ``Param`` stays.

        Returns:
            What the last block returned.

        Raises:
            ArgumentTypeError: a block returned an array of another shape or dtype than it was given.
        """
        return self._run(_call, x, args, kwargs)[0]

    def scan(
        self, f: Callable[Concatenate[B, X, P], tuple[X, Y]], x: X, /, *args: P.args, **kwargs: P.kwargs
    ) -> tuple[X, PerLayer[Y]]:
        """``for block in self: x, out = f(block, x, *args, **kwargs)``, with the ``out`` of every block.

        Args:
            f: returns what is handed on, and the block's own output. A method of the block serves: ``Block.decode``.
            x, *args, **kwargs: as for a call.

        Returns:
            The last ``x``, and the outputs.

        Raises:
            ArgumentTypeError: ``f`` is not callable, or does not return a pair.
            ArgumentError: ``f`` is a bound method of a module, whose module would be a hidden constant.

        Example:
            >>> stack = plait.Stack(lambda rngs: plait.Linear(2, 2, rngs=rngs), 3, rngs=plait.Rngs(0))
            >>> def step(linear, x, scale):
            ...     x = linear(x) * scale
            ...     return x, (x**2).mean()
            >>> x, squares = stack.scan(step, jnp.ones(2), plait.PerLayer.stacked(jnp.ones(3)))
            >>> len(squares), squares.stack().shape
            (3, (3,))
        """
        check_function(f, SCAN)
        return self._run(f, x, args, kwargs)

    def _run(self, f: Callable[..., Any], x: Any, args: Any, kwargs: Any) -> tuple[Any, PerLayer]:
        given, treedef = tree_flatten((args, kwargs), is_leaf=lambda leaf: is_graph_leaf(leaf) or _is_each(leaf))
        leaves: list[Any] = [bool(leaf) if isinstance(leaf, np.bool_) else leaf for leaf in given]  # as in a list
        for leaf in leaves:
            if _is_each(leaf) and len(leaf) != self.depth:
                raise ArgumentError(
                    "a PerLayer does not have one entry for each block",
                    found=f"{len(leaf)} entries",
                    expected=f"{self.depth}",
                    do="plait.PerLayer([...]) with one value for each block",
                )
        if RECORD in self.__dict__:
            return self._run_views(f, x, leaves, treedef)
        groups = self._groups()
        loop = groups[: self.period] if self.depth >= self.period else []
        outputs: dict[str, Any] = {}
        for segment in (loop, groups[len(loop) :]):
            if segment:
                x, found = self._run_groups(f, x, leaves, treedef, segment)
                outputs.update(zip(map(layers_key, segment), found, strict=True))
        return x, PerLayer.grouped(outputs)

    def _run_views(self, f: Any, x: Any, leaves: list[Any], treedef: Any) -> tuple[Any, PerLayer]:
        """Call the blocks one after the other: during a capture each has a record of its own."""
        outputs = []
        for layer, block in enumerate(self):
            x, out = _called(f, block, x, treedef, [leaf[layer] if _is_each(leaf) else leaf for leaf in leaves])
            outputs.append(out)
        groups = {layers_key(layers): [outputs[layer] for layer in layers] for layers in self._groups()}
        stacked = {key: jax.tree.map(lambda *values: jnp.stack(values), *group) for key, group in groups.items()}
        return x, PerLayer.grouped(stacked)

    def _run_groups(self, f: Any, x: Any, leaves: list[Any], treedef: Any, groups: list[range]) -> tuple[Any, Any]:
        """Run groups of one size, each iteration through all of them."""
        keys = tuple(map(layers_key, groups))
        each = [[leaf.of(layers) for layers in groups] for leaf in leaves if _is_each(leaf)]
        shared = [leaf for leaf in leaves if not _is_each(leaf)]
        period = _Period(keys, treedef, tuple(map(_is_each, leaves)))
        blocks = {key: self.__dict__[key] for key in keys}
        axes = (Carry, 0, 0, [_SHARED if is_graph_leaf(leaf) else None for leaf in shared], None, None)
        call = Call(
            STACK,
            _iteration,
            (x, blocks, each, shared, Static(period), Static(f)),
            ins=Prefix.of(STACK, "the arguments", axes, updates=True),
            outs=Prefix.of(STACK, "the output", (Carry, 0), updates=True),
            rules=LoopRules(0, 0, parts="blocks", axis=HashableMapping({PARTITION_NAME: self.axis})),
        )
        policy = NOTHING if self.remat is False else None if self.remat is True else self.remat
        user = type(blocks[keys[0]]).__call__ if f is _call else f
        size = len(groups[0])
        if any(np.shape(leaf)[:1] != (size,) for leaf in jax.tree_util.tree_leaves(call.port(0, call.inputs))):
            for key, block in blocks.items():
                check_layers(block, size, f"{describe_place(self)}[{key}]")
        found = scan_ports(call, call.inputs, size, {"unroll": self.unroll}, policy=policy, user=user)
        return _finished(call, found, blocks)


_OTHER_DEPTH = "make another stack from the list: plait.Stack([*stack.to_list(), block])"

# What all blocks share: variables that a forward pass writes are handed from block to block.
_SHARED: Any = StateAxes({Not(Param): Carry, ...: None})
_call: Any = Sentinel(__name__, "_call", "the block itself")


after_loop: Callable[[Any], None] | None = None
"""blocks → nothing; raises if what the loop wrote into their caches must not stay. A layer's file puts it here."""


def _finished(call: Call, found: Any, blocks: dict[str, Any]) -> Any:
    """Write back what the loop did; its caches are checked then, since inside the loop no index is known."""
    caches = [] if is_staged() else [each for _, each in iter_variables(blocks) if isinstance(each, Cache)]
    if after_loop is None or not caches:
        return call.finish(*found)
    with Journal() as journal:
        for cache in caches:
            journal.note_cell(cache._cell)
        output = call.finish(*found)
        after_loop(blocks)
        return output


@dataclasses.dataclass(frozen=True)
class _Period:
    """The static half of one iteration.

    Attributes:
        keys: of its blocks, in order.
        treedef: of ``(args, kwargs)``.
        places: which of its leaves have a value for each layer.
    """

    keys: tuple[str, ...]
    treedef: Any
    places: tuple[bool, ...]


def _iteration(x: Any, blocks: dict[str, Any], each: list[Any], shared: list[Any], period: _Period, f: Any) -> Any:
    """One iteration: the blocks of one period, in order."""
    outputs = []
    for number, key in enumerate(period.keys):
        own, common = (values[number] for values in each), iter(shared)
        leaves = [next(own) if is_each else next(common) for is_each in period.places]
        x, out = _called(f, blocks[key], x, period.treedef, leaves)
        outputs.append(out)
    return x, outputs


def _called(f: Any, block: Any, x: Any, treedef: Any, leaves: list[Any]) -> Any:
    """The carry after one block, and the block's own output."""
    args, kwargs = tree_unflatten(treedef, leaves)
    if f is _call:
        return block(x, *args, **kwargs), None
    returned = guarded(f, block, x, *args, **kwargs)
    if isinstance(returned, tuple | list) and len(returned) == 2:
        return returned
    raise ArgumentTypeError(
        "Stack.scan: the function did not return a pair",
        found=f"{len(returned)} values" if isinstance(returned, tuple | list) else describe_type(returned),
        expected="what is handed to the next block, and the block's own output",
        do="return x, out; or return x, None; or call the stack itself: stack(x)",
    )


def _is_each(leaf: Any) -> bool:
    return isinstance(leaf, PerLayer)


def _made(make: Callable[..., Any], streams: Mapping[str, Any], counts: Mapping[str, Any]) -> Any:
    """A block, made with the keys of these streams from these counts on."""
    return _call_maker(make, _streams(streams, counts) if streams else None)


def _streams(streams: Mapping[str, Any], counts: Mapping[str, Any]) -> Rngs:
    rngs = Rngs(**{name: stream.key.get_value() for name, stream in streams.items()})
    for name, stream in rngs.items():
        stream.count.set_value(counts[name])
    return rngs


def _draws_alone(stream: Any) -> bool:
    """Whether what a key draws under ``vmap`` is what it draws alone. With JAX's ``rbg`` keys, which are usual on TPUs,
    all draws of a batch come from its first key."""
    return str(jax.random.key_impl(stream.key.get_value())) == "threefry2x32"


def _draws(make: Callable[..., Any], streams: Mapping[str, Any]) -> dict[str, int]:
    """How often a maker draws from each stream: counts of NumPy stay concrete while it is traced."""
    found: dict[str, int] = {}

    def trace() -> None:
        rngs = _streams(streams, dict.fromkeys(streams, np.uint32(0)))
        _call_maker(make, rngs)
        for name, stream in rngs.items():
            count = stream.count.get_value()
            if not isinstance(count, (np.ndarray, np.generic)):
                raise ArgumentError(
                    "a stack cannot count what a block draws from a random stream",
                    at=f"the stream {name!r}",
                    found="a draw inside a transform, such as jit or vmap",
                    expected="draws in the constructor of the block itself",
                    do="make the blocks one by one: plait.Stack([make(rngs=rngs) for _ in range(number)])",
                )
            found[name] = int(count)

    if streams:
        jax.eval_shape(trace)
    return found


def _call_maker(make: Callable[..., Any], rngs: Rngs | None) -> Any:
    if rngs is None:
        return make()
    try:
        by_name = "rngs" in inspect.signature(make).parameters
    except (TypeError, ValueError):  # builtins may have no signature
        by_name = False
    return make(rngs=rngs) if by_name else make(rngs)


def _period_of(blocks: Sequence[Any]) -> int:
    """The smallest period of blocks."""
    structures = list(map(described, blocks))
    found = smallest_period(structures)
    if found > 1 and 2 * found > len(blocks):
        check_equal(structures[0][0], structures[1][0], "blocks[0]", "blocks[1]")
        stacked(blocks, None, "blocks[{}]".format)  # names what differs
    return found


def _checked_period(period: int, depth: int) -> int:
    if not isinstance(period, int) or not 1 <= period <= depth:
        raise ArgumentError(
            "this is no period of a stack",
            found=f"period={period!r} of {depth} blocks",
            expected=f"a number from 1 to {depth}",
            do="leave it out, and the smallest that fits is found",
        )
    return period


def _no_number(make: Any) -> ArgumentError:
    return ArgumentError(
        "a stack does not know how many blocks to make",
        found=f"a function, {make!r:.60}, and no number",
        expected="both, or a list of blocks",
        do="for example plait.Stack(lambda rngs: Block(rngs=rngs), 24, rngs=plait.Rngs(0))",
    )
