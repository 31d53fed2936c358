"""Recurrent layers: scan a cell over time, forwards, backwards, or both.

``RNN`` is one ``scan`` over the cell and its carry. Sequences of unequal lengths are padded at the end, and
``seq_lengths`` gives their lengths. The cell runs over the padding too; the lengths affect only the order of steps and
the returned carry. (rules L34, L35)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from ..core.functional.merge import merge
from ..core.functional.split import split
from ..core.graph.locate import describe_place
from ..core.graph.traversal import variables
from ..core.intermediates.sowing import RECORD, sows
from ..core.nodes.module import Module
from ..core.nodes.nodes import iter_graph_nodes
from ..core.rngs import RngCount, Rngs, RngStream
from ..core.states.state import to_flat_state
from ..core.variables.filters import All, PathContains
from ..errors import ShapeError
from ..transforms.call.prefixes import Carry, StateAxes
from ..transforms.jit.function import jit
from ..transforms.loops import scan
from ..transforms.streams import split_rngs
from ..typing import Array, FilterLiteral
from ..util.jax_versions import top_level_trace, trace_state, varying_axes
from ..util.notices import warn
from ..util.paths import Path
from .cells import RNNCellBase
from .checks import check_min_rank, shape_of, wrong_rngs
from .promotion import as_dtype, common_dtype

_CELLS = RNNCellBase.__module__


class RNN(Module):
    """A recurrent cell applied to every step of a sequence.

    Shapes:
        inputs: ``(*batch, time, *features)``, or ``(time, *batch, *features)`` with ``time_major``; with
            ``cell.num_feature_axes`` feature axes. outputs: the same, with the features that the cell returns.
        seq_lengths: ``(*batch,)``, integers.

    Variables:
        cell: those of the cell.
        rngs: a ``RngStream``, or ``None``.

    Args:
        cell: the cell. Its variables are carried from step to step.
        time_major: whether the time axis comes first.
        return_carry: whether to return ``(carry, outputs)`` instead of the outputs.
        reverse: whether to start at the last step. The outputs are in the order in which they were computed.
        keep_order: whether to put the outputs of a reversed run back into the order of the inputs.
        unroll: steps in one iteration of the loop.
        state_axes: how the loop treats the cell's variables, by filter; ``None`` carries all of them.
        broadcast_rngs: a filter for the cell's random streams that draw the same keys in every step of a call.
        rngs: the source of keys for ``cell.initialize_carry``: a fork of an ``Rngs``' stream ``carry``, or of the given
            stream. ``True`` makes a stream with seed 0; ``False`` leaves it to the call or to the cell.

    Raises:
        ShapeError: the input has too few axes, or ``seq_lengths`` are not integers of the batch's shape.
        StreamError: there is no stream for the initial carry, here, in the call, or in the cell.
        ArgumentTypeError: ``rngs`` has the wrong type.

    Example:
        >>> rnn = plait.RNN(plait.GRUCell(3, 4, rngs=plait.Rngs(0)))
        >>> rnn(jnp.ones((2, 5, 3))).shape
        (2, 5, 4)
        >>> carry, y = rnn(jnp.ones((2, 5, 3)), seq_lengths=jnp.array([5, 2]), return_carry=True)
        >>> bool((carry[1] == y[1, 1]).all())
        True
    """

    def __init__(
        self,
        cell: RNNCellBase,
        *,
        reverse: bool = False,
        time_major: bool = False,
        keep_order: bool = False,
        return_carry: bool = False,
        unroll: int = 1,
        state_axes: Mapping[FilterLiteral, Any] | None = None,
        broadcast_rngs: FilterLiteral = None,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse: bool = reverse
        self.keep_order = keep_order
        self.unroll: int = unroll
        self.broadcast_rngs = broadcast_rngs
        self.state_axes = StateAxes({...: Carry} if state_axes is None else state_axes)
        self.rngs = _own_stream(rngs, self)

    def __call__(
        self,
        inputs: Array,
        *,
        seq_lengths: Array | None = None,
        initial_carry: Any = None,
        reverse: bool | None = None,
        time_major: bool | None = None,
        keep_order: bool | None = None,
        return_carry: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Run the cell over a sequence; ``None`` means the constructor's value.

        Args:
            inputs: the sequence.
            initial_carry: the initial carry; ``None`` calls ``cell.initialize_carry``, which may draw keys.
            seq_lengths: the number of steps of each sequence before the padding. ``reverse`` then reverses only these,
                and the returned carry is the one after the last of them (the initial carry if the length is 0).
            return_carry, time_major, reverse, keep_order: see the class.
            rngs: the source of keys for ``cell.initialize_carry``.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order

        n_features = self.cell.num_feature_axes
        check_min_rank(inputs, n_features + 1, f"time, then {n_features} of features", layer=self)
        x = jnp.asarray(inputs)
        if isinstance(self.cell, RNNCellBase):  # here, so an error names its path in the model: the loop runs copies
            self.cell._cell__check_inputs(x)
        n_batch = x.ndim - n_features - 1
        time = 0 if time_major else n_batch
        step_shape = x.shape[:time] + x.shape[time + 1 :]
        if seq_lengths is not None:
            seq_lengths = _checked_lengths(seq_lengths, step_shape[:n_batch], self)
        flip = functools.partial(flip_sequences, seq_lengths=seq_lengths, num_batch_dims=n_batch, time_major=time_major)
        backwards = reverse and seq_lengths is None  # the loop itself can run from the end; then nothing is copied
        if reverse and not backwards:
            x = flip(x)
        if initial_carry is None:
            source = rngs.carry.fork() if isinstance(rngs, Rngs) else self.rngs if rngs is None else rngs
            initial_carry = self.cell.initialize_carry(step_shape, source)
        kept_lengths = seq_lengths if return_carry else None
        is_usual = self.broadcast_rngs is None and type(self.cell).__module__ == _CELLS
        is_eager = trace_state.value is top_level_trace and not jax.debug_nans.value
        scan_of = _compiled_scan if is_usual and is_eager else type(self)._scan
        carry, outputs = scan_of(self, x, initial_carry, time, kept_lengths, backwards=backwards)
        if reverse and keep_order != backwards:
            outputs = jax.tree.map(flip, outputs)
        return (carry, outputs) if return_carry else outputs

    def _scan(
        self, x: Array, initial_carry: Any, time: int, seq_lengths: Array | None, *, backwards: bool
    ) -> tuple[Any, Any]:
        """The loop. With lengths, it also carries the carry after the last step of each sequence."""
        initial_carry = _widened(self.cell, initial_carry, x, time)
        # `capture`: values recorded by steps are stacked, values recorded by `initialize_carry` are not.
        recorded = {_is_of_a_step: 0, PathContains(RECORD): Carry}
        state_axes = StateAxes({**recorded, **self.state_axes})

        def run(cell: RNNCellBase, carries: Any, x: Array, step: Array) -> Any:
            carry, kept = carries
            counts = self._broadcast_counts(cell)
            before = [count.get_value() for count in counts]
            (carry, _), y = _run(cell, (carry, None), x, step)
            for count, value in zip(counts, before, strict=True):
                count.set_value(value)
            if seq_lengths is not None:
                kept = _where(step < seq_lengths, carry, kept)
            return (carry, kept), y

        # One function for all layers: what is compiled for it is kept. Other cells may read what changes.
        is_usual = seq_lengths is None and self.broadcast_rngs is None and type(self.cell).__module__ == _CELLS
        run = scan(
            _run if is_usual else run,
            reverse=backwards,
            unroll=self.unroll,
            in_axes=(state_axes, Carry, time, 0),
            out_axes=(Carry, time),
            graph=True,
            graph_updates=True,
        )
        carries = initial_carry, None if seq_lengths is None else initial_carry
        steps = jnp.arange(x.shape[time])
        if self.broadcast_rngs is None:
            (carry, kept), outputs = run(self.cell, carries, x, steps)
        else:
            with split_rngs(
                self.cell, splits=1, only=self.broadcast_rngs, squeeze=True, graph=True, graph_updates=True
            ):
                (carry, kept), outputs = run(self.cell, carries, x, steps)
        return (carry if seq_lengths is None else kept), outputs

    def _broadcast_counts(self, cell: RNNCellBase) -> list[Any]:
        """The counters of the streams that draw the same keys in every step."""
        if self.broadcast_rngs is None:
            return []
        return [count for _, count in to_flat_state(variables(cell, All(RngCount, self.broadcast_rngs), graph=True))]


# The loop of one of plait's cells, and what leads to it, outside of traces. Other cells may read what changes.
_compiled_scan = jit(RNN._scan, static_argnames=("time", "backwards"), graph=True, graph_updates=True)


def _run(cell: RNNCellBase, carries: Any, x: Array, step: Array) -> Any:
    """A step of the cell."""
    carry, kept = carries
    after, y = cell(carry, x)
    return (_in_dtypes_of(carry, after), kept), y


_run.__name__ = _run.__qualname__ = "run"  # the name in programs and errors


def _is_of_a_step(path: Path, value: Any) -> bool:
    """Whether ``capture`` recorded the value in a step of the cell."""
    return RECORD in path and not any(str(key).startswith("initialize_carry") for key in path)


def _own_stream(rngs: Any, layer: Module) -> RngStream | None:
    """The stream that a layer keeps for initial carries."""
    if isinstance(rngs, bool):
        return RngStream(0, tag="carry") if rngs else None
    if isinstance(rngs, (Rngs, RngStream)):
        return (rngs.carry if isinstance(rngs, Rngs) else rngs).fork()
    raise wrong_rngs(rngs, layer, "an Rngs, a RngStream, True or False")


def _checked_lengths(seq_lengths: Any, batch: tuple[int, ...], layer: RNN) -> Array:
    shape = shape_of(seq_lengths)
    lengths = jnp.asarray(seq_lengths)
    if not jnp.issubdtype(lengths.dtype, jnp.integer) or shape not in (batch, ()):
        raise ShapeError(
            "seq_lengths do not fit the input",
            at=describe_place(layer),
            found=f"{lengths.dtype.name} of shape {shape}",
            expected=f"integers of shape {batch}, one length for each sequence",
            do="pass the length of each sequence without padding, for example (tokens != padding).sum(-1)",
        )
    return jnp.broadcast_to(lengths, batch)


def _widened(cell: RNNCellBase, carry: Any, x: Array, time: int) -> Any:
    """The initial carry in the dtypes and, on a mesh, in the layouts that the cell returns: a loop cannot change the
    types of its carry."""
    graphdef, state = split(cell, graph=True)
    make = _carry_after if type(cell).__module__ == _CELLS else _carry_after.__wrapped__  # JAX keeps traces by function
    after = jax.eval_shape(make(graphdef, time), state, carry, x)
    if jax.tree.structure(after) != jax.tree.structure(carry):
        return carry  # the loop will raise the error
    return jax.tree.map(lambda old, new: _laid_out(as_dtype(old, common_dtype(old, new)), new), carry, after)


def _laid_out(x: Array, like: jax.ShapeDtypeStruct) -> Array:
    """The array with the sharding of another on explicit axes, and varying along the manual axes where that varies."""
    sharding: Any = like.sharding
    if sharding is not None and AxisType.Explicit in sharding.mesh.axis_types:
        x = jax.sharding.reshard(x, sharding)
    varying = tuple(varying_axes(like) - varying_axes(x))
    return jax.lax.pcast(x, varying, to="varying") if varying else x


@functools.lru_cache(64)
def _carry_after(graphdef: Any, time: int) -> Callable[[Any, Any, Array], Any]:
    """The carry after a step of the cell with this structure, of sequences along this axis, which may be empty."""

    def step(state: Any, carry: Any, x: Array) -> Any:
        cell = merge(graphdef, state)
        for _, node in iter_graph_nodes(cell):  # `capture` records all steps together; this call is a single one
            if sows(node):
                delattr(node, RECORD)
        return cell(carry, jax.lax.reduce_max(x, (time,)))[0]

    return step


def _in_dtypes_of(before: Any, after: Any) -> Any:
    """The carry that the cell returned, in the dtypes of its input carry, which are equal or wider."""
    if jax.tree.structure(after) != jax.tree.structure(before):
        return after
    return jax.tree.map(lambda new, old: as_dtype(new, old.dtype), after, before)


def _where(condition: Array, new: Any, old: Any) -> Any:
    """``jnp.where`` for pytrees of arrays whose leading axes are those of the condition."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(jnp.reshape(condition, condition.shape + (1,) * (new.ndim - condition.ndim)), new, old)

    return jax.tree.map(choose, new, old)


def flip_sequences(inputs: Array, seq_lengths: Array | None, num_batch_dims: int, time_major: bool) -> Array:
    """Reverse sequences along time; padding stays at the end.

    Args:
        inputs: ``(*batch, time, ...)``, or ``(time, *batch, ...)`` with ``time_major``.
        seq_lengths: ``(*batch,)``: the number of steps of each sequence before the padding; ``None`` means all.
        num_batch_dims: number of batch axes.
        time_major: whether the time axis comes first.

    Returns:
        Steps ``length - 1, …, 0``, followed by the padding.

    Example:
        >>> from plait.nn.recurrent import flip_sequences
        >>> flip_sequences(jnp.array([[1, 0, 0], [2, 3, 0]]), jnp.array([1, 2]), 1, False).tolist()
        [[1, 0, 0], [3, 2, 0]]
    """
    time = 0 if time_major else num_batch_dims
    if seq_lengths is None:
        return jnp.flip(inputs, time)
    size = inputs.shape[time]
    lengths = jnp.expand_dims(jnp.clip(jnp.asarray(seq_lengths), 0, size), time)
    steps = jnp.arange(size, dtype=lengths.dtype)
    steps = jnp.reshape(steps, [size if axis == time else 1 for axis in range(num_batch_dims + 1)])
    # Count down from a sequence's last step, modulo the length: then the padding follows, from its end. As in Flax.
    index = jnp.mod(lengths - 1 - steps, size)
    index = jnp.reshape(index, index.shape + (1,) * (inputs.ndim - index.ndim))
    return jnp.take_along_axis(inputs, index, axis=time)


def _concatenate(forward: Array, backward: Array) -> Array:
    return jnp.concatenate([forward, backward], axis=-1)


class Bidirectional(Module):
    """Two recurrent layers over one sequence, one in each direction; their outputs are merged step by step.

    Shapes:
        inputs: as for ``RNN``. outputs: the features of both, concatenated.

    Variables:
        forward_rnn, backward_rnn: those of the two layers.
        rngs: a ``RngStream``, or ``None``.

    Args:
        forward_rnn: the layer that starts at the first step.
        backward_rnn: the layer that starts at the last step; its outputs are put into the order of the inputs.
        merge_fn: ``(forward outputs, backward outputs) -> outputs``; by default, concatenation along the last axis.
        time_major: whether the time axis comes first.
        return_carry: whether to return ``((forward carry, backward carry), outputs)`` instead of the outputs.
        rngs: the source of keys for initial carries, as in ``RNN``; ``False`` leaves it to the two layers.

    Raises:
        ShapeError, StreamError, ArgumentTypeError: as for ``RNN``.

    Example:
        >>> def make(seed):
        ...     return plait.RNN(plait.GRUCell(3, 4, rngs=plait.Rngs(seed)))
        >>> plait.Bidirectional(make(0), make(1))(jnp.ones((2, 5, 3))).shape
        (2, 5, 8)

    Reference: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", 1997, IEEE Trans. Signal Processing 45.
    """

    def __init__(
        self,
        forward_rnn: RNN,
        backward_rnn: RNN,
        *,
        merge_fn: Callable[[Array, Array], Array] = _concatenate,
        time_major: bool = False,
        return_carry: bool = False,
        rngs: Rngs | RngStream | bool = True,
    ) -> None:
        if forward_rnn is backward_rnn:
            warn(
                UserWarning,
                "Bidirectional: forward_rnn and backward_rnn are the same object, so both directions share their "
                "parameters. Make two layers, unless you intend this.",
            )
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn: Callable[..., Any] = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        self.rngs = _own_stream(rngs, self)

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: tuple[Any, Any] | None = None,
        rngs: Rngs | RngStream | None = None,
        seq_lengths: Array | None = None,
        reverse: bool | None = None,
        time_major: bool | None = None,
        keep_order: bool | None = None,
        return_carry: bool | None = None,
    ) -> Any:
        """Run both layers over a sequence; ``None`` means the constructor's value.

        Args:
            inputs: the sequence.
            initial_carry: the initial carries of the two layers.
            rngs: the source of keys for initial carries.
            seq_lengths: the number of steps of each sequence before the padding.
            return_carry, time_major: see the class.
            reverse, keep_order: no effect; accepted so that the layer can replace an ``RNN``.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        forward, backward = (None, None) if initial_carry is None else initial_carry
        if isinstance(rngs, Rngs):
            rngs = rngs.carry  # one stream for both, or both would fork the same name
        options: dict[str, Any] = {
            "rngs": self.rngs if rngs is None else rngs,
            "seq_lengths": seq_lengths,
            "return_carry": return_carry,
            "time_major": time_major,
        }
        forward = self.forward_rnn(inputs, initial_carry=forward, reverse=False, **options)
        backward = self.backward_rnn(inputs, initial_carry=backward, reverse=True, keep_order=True, **options)
        if not return_carry:
            return self.merge_fn(forward, backward)
        (carry_f, y_f), (carry_b, y_b) = forward, backward
        return (carry_f, carry_b), self.merge_fn(y_f, y_b)
