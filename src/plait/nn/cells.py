"""Recurrent cells: one step of a sequence, ``(carry, x) -> (carry, y)``.

A cell computes one step; ``RNN`` runs it over a sequence. Every cell has two kinds of kernels: input kernels and
recurrent ones. The recurrent ones start orthogonal, so gradients neither grow nor shrink over many steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from jax.nn import sigmoid
from jax.numpy import tanh

from ..core.graph.locate import describe_place
from ..core.nodes.module import Module
from ..core.rngs import Rngs, RngStream
from ..errors import ShapeError, StreamError
from ..typing import Array, DTypeLike, Initializer
from ..util.static_values import HashableMapping
from .arithmetic import arithmetic
from .checks import check_last_axis, shape_of, weight_length, wrong_rngs
from .initializers import (
    default_bias_init,
    default_kernel_init,
    default_lstm_recurrent_init,
    default_recurrent_init,
)
from .linear import Linear
from .promotion import promote_dtype
from .stored_arguments import store_arguments

Carry = Any


class RNNCellBase(Module):
    """The interface that ``RNN`` needs: a step, an initial carry, and the number of feature axes.

    Example:
        >>> class Sum(plait.RNNCellBase):
        ...     def __call__(self, carry, x):
        ...         carry = carry + x
        ...         return carry, carry
        ...     def initialize_carry(self, input_shape, rngs=None, carry_init=None):
        ...         return jnp.zeros(input_shape)
        ...     @property
        ...     def num_feature_axes(self):
        ...         return 1
        >>> plait.RNN(Sum())(jnp.ones((4, 1)))[:, 0].tolist()
        [1.0, 2.0, 3.0, 4.0]
    """

    def __call__(self, carry: Carry, inputs: Array) -> tuple[Carry, Array]:
        """Compute one step.

        Returns:
            The next carry, with the structure and shapes of ``carry``, and the output of the step.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define __call__(carry, inputs)")

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Initializer | None = None,
    ) -> Carry:
        """The initial carry.

        Args:
            input_shape: shape of the input of one step, batch axes included.
            rngs: the source of random keys.
            carry_init: initializer; ``None`` means the cell's own.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define initialize_carry(input_shape, rngs)")

    @property
    def num_feature_axes(self) -> int:
        """How many of the last axes of an input are features; the axes before them are batch axes."""
        raise NotImplementedError(f"{type(self).__name__} does not define the property num_feature_axes")

    def _cell__check_inputs(self, inputs: Any) -> None:
        """Raise if the cell does not take inputs of this shape. ``RNN`` calls it before it runs copies of the cell."""


class _Cell(RNNCellBase):
    """Base of the cells below: inputs are vectors of features, the carry is one or more hidden vectors."""

    CARRIED: ClassVar[tuple[str, ...]] = ("h",)  # names of the vectors in the carry; one is not wrapped in a tuple

    in_features: int
    hidden_features: int
    activation_fn: Callable[..., Any]
    dtype: DTypeLike | None
    param_dtype: DTypeLike
    carry_init: Initializer | None
    promote_dtype: Callable[..., Any]
    keep_rngs: bool
    rngs: RngStream | None

    def initialize_carry(
        self,
        input_shape: tuple[int, ...],
        rngs: Rngs | RngStream | None = None,
        carry_init: Initializer | None = None,
    ) -> Carry:
        """The initial carry: zeros of ``param_dtype``, or what an initializer returns.

        Args:
            input_shape: shape of the input of one step, batch axes included.
            rngs: draws one key from the ``carry`` stream for each vector of the carry; ``None`` means the cell's own.
            carry_init: initializer; ``None`` means the cell's own.

        Raises:
            StreamError: ``rngs`` is ``None``, and the cell keeps no stream (``keep_rngs``).
            ArgumentTypeError: ``rngs`` has the wrong type.
        """
        rngs = self.rngs if rngs is None else rngs
        if rngs is None:
            raise _no_stream(self)
        if not isinstance(rngs, (Rngs, RngStream)):
            raise wrong_rngs(rngs, self, "an Rngs, a RngStream or None")
        stream = rngs.carry if isinstance(rngs, Rngs) else rngs
        init = carry_init or self.carry_init or default_bias_init
        shape = (*input_shape[:-1], self.hidden_features)
        parts = [init(stream(), shape, self.param_dtype) for _ in self.CARRIED]
        return tuple(parts) if len(parts) > 1 else parts[0]

    @property
    def num_feature_axes(self) -> int:
        """1: the last axis."""
        return 1

    def _cell__check_inputs(self, inputs: Any) -> None:
        check_last_axis(inputs, weight_length(_kernel(self, "i"), 0, self.in_features), layer=self)

    def _check(self, carry: Carry, inputs: Any) -> None:
        self._cell__check_inputs(inputs)
        hidden = weight_length(_kernel(self, "h"), 0, self.hidden_features)
        several = len(self.CARRIED) > 1
        is_tuple = isinstance(carry, (tuple, list))
        parts = carry if is_tuple else (carry,)
        if (
            is_tuple is not several
            or len(parts) != len(self.CARRIED)
            or any(shape_of(part)[-1:] != (hidden,) for part in parts)
        ):
            kind = type(self).__name__
            shapes = ", ".join(str(shape_of(part)) for part in parts)
            raise ShapeError(
                f"the carry does not fit the {kind}",
                at=describe_place(self),
                found=f"a tuple of shapes {shapes}" if is_tuple else f"an array of shape {shapes}",
                expected=(f"the tuple ({', '.join(self.CARRIED)}), each" if several else "one array")
                + f" of shape (..., {hidden}), since hidden_features={self.hidden_features}",
                do="start with cell.initialize_carry(x.shape, rngs), then pass the carry that each call returns first",
            )

    def _store(self, arguments: Mapping[str, Any]) -> tuple[Callable[..., Linear], Callable[..., Linear]]:
        """Store the arguments of a constructor, its ``locals()``.

        Returns:
            Factories of the input maps and of the recurrent maps; called with a size and ``use_bias``.
        """
        store_arguments(self, arguments)
        self.rngs = arguments["rngs"].carry.fork() if self.keep_rngs else None
        recurrent_init = arguments["recurrent_kernel_init"]
        if recurrent_init is default_recurrent_init and isinstance(self, LSTMCell):
            recurrent_init = default_lstm_recurrent_init
        same = ("bias_init", "bias_metadata", "dtype", "param_dtype", "promote_dtype", "rngs")
        make = functools.partial(Linear, **{name: arguments[name] for name in same})
        of_input = functools.partial(
            make, self.in_features, kernel_init=arguments["kernel_init"], kernel_metadata=arguments["kernel_metadata"]
        )
        recurrent = functools.partial(
            make,
            self.hidden_features,
            kernel_init=recurrent_init,
            kernel_metadata=arguments["recurrent_kernel_metadata"],
        )
        return of_input, recurrent


def _kernel(cell: Any, what: str) -> Any:
    """The kernel of a linear map of the input (``i``) or the hidden vector (``h``); ``None`` in a cell without one."""
    for name in (f"dense_{what}", f"{what}i"):
        kernel = getattr(getattr(cell, name, None), "kernel", None)
        if kernel is not None:
            return kernel[...]
    return None


def _no_stream(cell: _Cell) -> StreamError:
    return StreamError(
        f"{type(cell).__name__} has no random stream to draw the initial carry from",
        at=describe_place(cell),
        found="rngs=None, and a cell that keeps no stream",
        expected="an Rngs or a RngStream",
        do="pass one: cell.initialize_carry(shape, plait.Rngs(carry=0)); or to the RNN that runs the cell: "
        "plait.RNN(cell, rngs=rngs) or rnn(x, rngs=rngs); or create the cell with keep_rngs=True",
    )


class SimpleCell(_Cell):
    """Elman's simple recurrence: ``h' = activation(W_i x + b + W_h h)``; the output is ``h'``.

    Shapes:
        carry, y: ``(..., hidden_features)``. x: ``(..., in_features)``.

    Variables:
        dense_h: ``Linear`` without bias, ``(hidden_features, hidden_features)``.
        dense_i: ``Linear``, ``(in_features, hidden_features)``.
        rngs: a ``RngStream`` with ``keep_rngs``, otherwise ``None``.

    Args:
        in_features: length of the last axis of ``x``.
        hidden_features: length of the last axis of the carry.
        dtype: dtype to compute in; ``None`` means the common dtype of input, carry and parameters.
        param_dtype: dtype in which the parameters are stored, and of the initial carry.
        carry_init: initializer of the initial carry; ``None`` gives zeros.
        residual: whether to add ``h`` before the activation.
        activation_fn: the activation.
        kernel_init: initializer of the kernel of the input.
        recurrent_kernel_init: initializer of the recurrent kernel.
        bias_init: initializer of the bias.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        keep_rngs: whether to keep a fork of the ``carry`` stream, for ``initialize_carry`` without ``rngs``.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of the kernel of the input.
        recurrent_kernel_metadata: metadata of the recurrent kernel.
        bias_metadata: metadata of the bias.

    Raises:
        ShapeError: the last axis of ``x`` or of the carry has a different length.

    Example:
        >>> cell = plait.SimpleCell(3, 4, rngs=plait.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3), plait.Rngs(1))
        >>> carry, y = cell(carry, jnp.ones((2, 3)))
        >>> y.shape, carry is y
        ((2, 4), True)

    Reference: Elman, "Finding Structure in Time", 1990, Cognitive Science 14.
    """

    residual: bool

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        dtype: DTypeLike | None = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
        carry_init: Initializer | None = None,
        residual: bool = False,
        activation_fn: Callable[..., Any] = tanh,
        kernel_init: Initializer = default_kernel_init,
        recurrent_kernel_init: Initializer = default_recurrent_init,
        bias_init: Initializer = default_bias_init,
        promote_dtype: Callable[..., Any] = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        recurrent_kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        of_input, recurrent = self._store(locals())
        self.dense_h = recurrent(hidden_features, use_bias=False)
        self.dense_i = of_input(hidden_features)

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        self._check(carry, inputs)
        x, h = promote_dtype((self.dense_i(inputs), self.dense_h(carry)))
        h = x + h
        if self.residual:
            h, carry = promote_dtype((h, carry))
            h = h + carry
        h = self.activation_fn(h)
        return h, h


class _GatedCell(_Cell):
    """Base of LSTM and GRU, which differ in their linear maps and in the step."""

    gate_fn: Callable[..., Any]

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        kernel_init: Initializer = default_kernel_init,
        gate_fn: Callable[..., Any] = sigmoid,
        bias_init: Initializer = default_bias_init,
        activation_fn: Callable[..., Any] = tanh,
        recurrent_kernel_init: Initializer = default_recurrent_init,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        carry_init: Initializer | None = None,
        promote_dtype: Callable[..., Any] = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Mapping[str, Any] = HashableMapping(),
        recurrent_kernel_metadata: Mapping[str, Any] = HashableMapping(),
        bias_metadata: Mapping[str, Any] = HashableMapping(),
    ) -> None:
        self._add_maps(*self._store(locals()))

    def _add_maps(self, of_input: Callable[..., Linear], recurrent: Callable[..., Linear]) -> None:
        raise NotImplementedError


class LSTMCell(_GatedCell):
    """Long short-term memory: gates decide what the memory ``c`` forgets, adds and outputs.

    With ``σ`` the gate function and ``φ`` the activation::

        i = σ(W_ii x + W_hi h + b_hi)      input gate
        f = σ(W_if x + W_hf h + b_hf)      forget gate
        g = φ(W_ig x + W_hg h + b_hg)      candidate
        o = σ(W_io x + W_ho h + b_ho)      output gate
        c' = f · c + i · g                 h' = o · φ(c')

    The output is ``h'``. ``OptimizedLSTMCell`` computes the same with two products instead of eight.

    Shapes:
        carry: ``(c, h)``, each ``(..., hidden_features)``. x: ``(..., in_features)``. y: ``(..., hidden_features)``.

    Variables:
        ii, if_, ig, io: ``Linear`` without bias, ``(in_features, hidden_features)``.
        hi, hf, hg, ho: ``Linear``, ``(hidden_features, hidden_features)``.
        rngs: a ``RngStream`` with ``keep_rngs``, otherwise ``None``.

    Args:
        in_features: length of the last axis of ``x``.
        hidden_features: length of the last axis of ``c`` and ``h``.
        gate_fn: ``σ``.
        activation_fn: ``φ``.
        kernel_init: initializer of the kernels of the input.
        recurrent_kernel_init: initializer of the recurrent kernels.
        bias_init: initializer of the biases.
        dtype: dtype of the products; ``None`` means the common dtype of input or carry and parameters.
        param_dtype: dtype in which the parameters are stored, and of the initial carry.
        carry_init: initializer of the initial carry; ``None`` gives zeros.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        keep_rngs: whether to keep a fork of the ``carry`` stream, for ``initialize_carry`` without ``rngs``.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of the kernels of the input.
        recurrent_kernel_metadata: metadata of the recurrent kernels.
        bias_metadata: metadata of the biases.

    Raises:
        ShapeError: the last axis of ``x`` or of the carry has a different length, or the carry is not a pair.

    Example:
        >>> cell = plait.LSTMCell(3, 4, rngs=plait.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3), plait.Rngs(1))
        >>> (c, h), y = cell(carry, jnp.ones((2, 3)))
        >>> c.shape, h is y
        ((2, 4), True)

    Reference: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, Neural Computation 9.
    """

    CARRIED = ("c", "h")

    def _add_maps(self, of_input: Callable[..., Linear], recurrent: Callable[..., Linear]) -> None:
        size = self.hidden_features
        self.ii = of_input(size, use_bias=False)
        self.if_ = of_input(size, use_bias=False)
        self.ig = of_input(size, use_bias=False)
        self.io = of_input(size, use_bias=False)
        self.hi = recurrent(size)
        self.hf = recurrent(size)
        self.hg = recurrent(size)
        self.ho = recurrent(size)

    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        self._check(carry, inputs)
        c, h = carry
        i = self.gate_fn(_sum(self.ii(inputs), self.hi(h)))
        f = self.gate_fn(_sum(self.if_(inputs), self.hf(h)))
        g = self.activation_fn(_sum(self.ig(inputs), self.hg(h)))
        o = self.gate_fn(_sum(self.io(inputs), self.ho(h)))
        c, o = _memory(c, i, f, g, o)
        h = o * self.activation_fn(c)
        return (c, h), h


class OptimizedLSTMCell(_GatedCell):
    """``LSTMCell`` with the kernels of its gates concatenated: the same function, in two products instead of eight.

    The order of the gates along the last axis of the kernels is ``i, f, g, o``.

    Shapes:
        carry: ``(c, h)``, each ``(..., hidden_features)``. x: ``(..., in_features)``. y: ``(..., hidden_features)``.

    Variables:
        dense_i: ``Linear`` without bias, ``(in_features, 4 · hidden_features)``.
        dense_h: ``Linear``, ``(hidden_features, 4 · hidden_features)``.
        rngs: a ``RngStream`` with ``keep_rngs``, otherwise ``None``.

    Args:
        in_features: length of the last axis of ``x``.
        hidden_features: length of the last axis of ``c`` and ``h``.
        gate_fn: function of the gates ``i``, ``f`` and ``o``.
        activation_fn: function of the candidate ``g`` and of the memory.
        kernel_init: initializer of the kernel of the input.
        recurrent_kernel_init: initializer of the recurrent kernel, called for the whole kernel.
        bias_init: initializer of the bias.
        dtype: dtype of the products; ``None`` means the common dtype of input or carry and parameters.
        param_dtype: dtype in which the parameters are stored, and of the initial carry.
        carry_init: initializer of the initial carry; ``None`` gives zeros.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        keep_rngs: whether to keep a fork of the ``carry`` stream, for ``initialize_carry`` without ``rngs``.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of the kernel of the input.
        recurrent_kernel_metadata: metadata of the recurrent kernel.
        bias_metadata: metadata of the bias.

    Raises:
        ShapeError: the last axis of ``x`` or of the carry has a different length, or the carry is not a pair.

    Example:
        >>> cell = plait.OptimizedLSTMCell(3, 4, rngs=plait.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3), plait.Rngs(1))
        >>> carry, y = cell(carry, jnp.ones((2, 3)))
        >>> cell.dense_h.kernel.shape, y.shape
        ((4, 16), (2, 4))

    Reference: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, Neural Computation 9.
    """

    CARRIED = ("c", "h")

    def _add_maps(self, of_input: Callable[..., Linear], recurrent: Callable[..., Linear]) -> None:
        self.dense_i = of_input(4 * self.hidden_features, use_bias=False)
        self.dense_h = recurrent(4 * self.hidden_features)

    def __call__(self, carry: tuple[Array, Array], inputs: Array) -> tuple[tuple[Array, Array], Array]:
        self._check(carry, inputs)
        c, h = carry
        i, f, g, o = _gates(self.dense_i(inputs), self.dense_h(h))
        c, o = _memory(c, self.gate_fn(i), self.gate_fn(f), self.activation_fn(g), self.gate_fn(o))
        h = o * self.activation_fn(c)
        return (c, h), h


class GRUCell(_GatedCell):
    """Gated recurrent unit: a reset gate and an update gate, and no memory other than the output.

    With ``σ`` the gate function and ``φ`` the activation::

        r = σ(W_ir x + b_ir + W_hr h)          reset gate
        z = σ(W_iz x + b_iz + W_hz h)          update gate
        n = φ(W_in x + b_in + r · (W_hn h))    candidate
        h' = (1 − z) · n + z · h

    The output is ``h'``. The order of the gates along the last axis of the kernels is ``r, z, n``.

    Shapes:
        carry, y: ``(..., hidden_features)``. x: ``(..., in_features)``.

    Variables:
        dense_i: ``Linear``, ``(in_features, 3 · hidden_features)``.
        dense_h: ``Linear`` without bias, ``(hidden_features, 3 · hidden_features)``.
        rngs: a ``RngStream`` with ``keep_rngs``, otherwise ``None``.

    Args:
        in_features: length of the last axis of ``x``.
        hidden_features: length of the last axis of the carry.
        gate_fn: ``σ``.
        activation_fn: ``φ``.
        kernel_init: initializer of the kernel of the input.
        recurrent_kernel_init: initializer of the recurrent kernel, called for the whole kernel.
        bias_init: initializer of the bias.
        dtype: dtype of the products; ``None`` means the common dtype of input or carry and parameters.
        param_dtype: dtype in which the parameters are stored, and of the initial carry.
        carry_init: initializer of the initial carry; ``None`` gives zeros.
        promote_dtype: replaces the function that brings input and parameters to one dtype.
        keep_rngs: whether to keep a fork of the ``carry`` stream, for ``initialize_carry`` without ``rngs``.
        rngs: draws one key from the ``params`` stream for each parameter.
        kernel_metadata: metadata of the kernel of the input.
        recurrent_kernel_metadata: metadata of the recurrent kernel.
        bias_metadata: metadata of the bias.

    Raises:
        ShapeError: the last axis of ``x`` or of the carry has a different length.

    Example:
        >>> cell = plait.GRUCell(3, 4, rngs=plait.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3), plait.Rngs(1))
        >>> carry, y = cell(carry, jnp.ones((2, 3)))
        >>> cell.dense_h.kernel.shape, y.shape
        ((4, 12), (2, 4))

    Reference: Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014, arXiv:1406.1078.
    """

    def _add_maps(self, of_input: Callable[..., Linear], recurrent: Callable[..., Linear]) -> None:
        self.dense_i = of_input(3 * self.hidden_features)
        self.dense_h = recurrent(3 * self.hidden_features, use_bias=False)

    def __call__(self, carry: Array, inputs: Array) -> tuple[Array, Array]:
        self._check(carry, inputs)
        x, h = promote_dtype((self.dense_i(inputs), self.dense_h(carry)))
        x_r, x_z, x_n, h_r, h_z, h_n = _thirds(x, h)
        r, z = self.gate_fn(x_r + h_r), self.gate_fn(x_z + h_z)
        h = _interpolated(z, self.activation_fn(x_n + r * h_n), carry)
        return h, h


@arithmetic
def _thirds(x: Array, h: Array) -> list[Array]:
    return [*jnp.split(x, 3, axis=-1), *jnp.split(h, 3, axis=-1)]


@arithmetic
def _interpolated(z: Array, new: Array, h: Array) -> Array:
    """``(1 − z) · new + z · h`` in their common dtype."""
    new, z, h = promote_dtype(((1 - z) * new, z, h))
    return new + z * h


@arithmetic
def _gates(x: Array, h: Array) -> list[Array]:
    return jnp.split(_sum(x, h), 4, axis=-1)


@arithmetic
def _sum(x: Array, h: Array) -> Array:
    x, h = promote_dtype((x, h))
    return x + h


@arithmetic
def _memory(c: Array, i: Array, f: Array, g: Array, o: Array) -> tuple[Array, Array]:
    """``c' = f · c + i · g``, products of gates in their dtype, all else in that of ``c``; and ``o`` in its dtype."""
    f, o, c, new = promote_dtype((f, o, c, i * g))
    return f * c + new, o
