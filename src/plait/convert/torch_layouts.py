"""Layouts of the standard layers in PyTorch. The layer determines its layout, which is never guessed from shapes.

    Linear, LinearGeneral   weight (out, in), with LinearGeneral's axes flattened
    Conv                    weight (out, in / groups, *window)
    ConvTranspose           weight (in, out, *window), window reversed: torch's is the gradient of a convolution
    BatchNorm, …            weight, bias, running_mean, running_var; num_batches_tracked is ignored
    MultiHeadAttention      in_proj_weight (3 · features, in), or q_proj_weight, …; in_proj_bias; out_proj
    RNN with a cell         weight_ih_l0 (gates · hidden, in), weight_hh_l0, bias_ih_l0, bias_hh_l0
    a cell alone            the same without _l0

torch has two biases in each recurrent cell, but only their sum matters. Plait has one: their sum when loading from
torch, and bias and zeros when converting back. The candidate of a GRU is an exception: plait lacks its second bias, so
it must be zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..nn.attention import MultiHeadAttention
from ..nn.batch_norm import BatchNorm
from ..nn.cells import GRUCell, LSTMCell, OptimizedLSTMCell, SimpleCell
from ..nn.conv import Conv, ConvTranspose
from ..nn.embedding import Embed
from ..nn.group_norm import GroupNorm
from ..nn.linear import Linear, LinearGeneral
from ..nn.lora import LoRA
from ..nn.norm import InstanceNorm, LayerNorm, RMSNorm
from ..nn.prelu import PReLU
from ..nn.recurrent import RNN, Bidirectional
from .layouts import Arrays, DoesNotFit, Layout, Piece, add_layout, follow, path_of_name, register_layout


def _transposed(array: np.ndarray) -> Arrays:
    if array.ndim != 2:
        raise DoesNotFit(
            f"the shape is {array.shape} instead of a matrix: convert a model whose layers are not stacked, then "
            "stack the states"
        )
    return (array.T,)


def _present(module: Any, *pieces: Piece) -> tuple[Piece, ...]:
    """The pieces whose variables the module has: a layer may lack bias or scale."""
    return tuple(
        piece for piece in pieces if all(follow(module, path_of_name(name)) is not None for name in piece.ours)
    )


def _linear(layer: Linear) -> Sequence[Piece]:
    return _present(layer, Piece("kernel", "weight", _transposed, _transposed), Piece("bias", "bias"))


def _linear_general(layer: LinearGeneral) -> Sequence[Piece]:
    if layer.batch_axis:
        return ()  # torch has no layer with a matrix per batch entry
    weight = _matrix_piece("kernel", "weight", layer.in_features, layer.out_features)
    bias = Piece("bias", "bias", lambda bias: (bias.reshape(layer.out_features),), lambda bias: (bias.reshape(-1),))
    return _present(layer, weight, bias)


def _matrix_piece(ours: str, theirs: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Piece:
    return Piece(
        ours,
        theirs,
        lambda weight: (weight.T.reshape((*inputs, *outputs)),),
        lambda kernel: (kernel.reshape((math.prod(inputs), math.prod(outputs))).T,),
    )


def _conv(layer: Conv) -> Sequence[Piece]:
    n = len(layer.kernel_size)
    there, back = (n + 1, n, *range(n)), (*range(2, n + 2), 1, 0)
    kernel = Piece("kernel", "weight", lambda w: (w.transpose(back),), lambda k: (k.transpose(there),))
    return _present(layer, kernel, Piece("bias", "bias"))


def _conv_transpose(layer: ConvTranspose) -> Sequence[Piece]:
    n = len(layer.kernel_size)
    window = tuple(range(n))
    if layer.transpose_kernel:  # ours is (*window, out, in), and is reversed by the convolution itself
        there, back = (n + 1, n, *window), (*range(2, n + 2), 1, 0)
        kernel = Piece("kernel", "weight", lambda w: (w.transpose(back),), lambda k: (k.transpose(there),))
    else:
        there, back = (n, n + 1, *window), (*range(2, n + 2), 0, 1)
        kernel = Piece(
            "kernel",
            "weight",
            lambda w: (np.flip(w.transpose(back), window),),
            lambda k: (np.flip(k, window).transpose(there),),
        )
    return _present(layer, kernel, Piece("bias", "bias"))


def _norm(layer: Any) -> Sequence[Piece]:
    pieces = [Piece(name, theirs) for name, theirs in (("scale", "weight"), ("bias", "bias")) if hasattr(layer, name)]
    return _present(layer, *pieces)


def _batch_norm(layer: BatchNorm) -> Sequence[Layout]:
    statistics = (Piece("mean", "running_mean"), Piece("var", "running_var"))
    return (Layout((*_norm(layer), *statistics), ignored=("num_batches_tracked",)),)


def _prelu(layer: PReLU) -> Sequence[Piece]:
    shape = layer.negative_slope.shape
    return (Piece("negative_slope", "weight", lambda w: (w.reshape(shape),), lambda s: (s.reshape(-1),)),)


def _lora(layer: LoRA) -> Sequence[Piece]:
    return (
        Piece("lora_a", "lora_A.weight", _transposed, _transposed),
        Piece("lora_b", "lora_B.weight", _transposed, _transposed),
    )


def _attention(layer: MultiHeadAttention) -> Sequence[Layout]:
    query, key, value, out = layer.query, layer.key, layer.value, layer.out
    if layer.num_kv_heads != layer.num_heads or len(query.in_features) > 1 or len(key.in_features) > 1:
        return ()
    n = layer.num_heads * layer.head_dim
    inputs = [(part.in_features[0], n) for part in (query, key, value)]
    heads = (layer.num_heads, layer.head_dim)
    last = (
        _matrix_piece("out.kernel", "out_proj.weight", out.in_features, out.out_features),
        Piece(
            "out.bias",
            "out_proj.bias",
            lambda bias: (bias.reshape(out.out_features),),
            lambda bias: (bias.reshape(-1),),
        ),
    )
    parts = ("query", "key", "value")
    biases = Piece(
        [f"{part}.bias" for part in parts],
        "in_proj_bias",
        lambda bias: [each.reshape(heads) for each in np.split(bias, 3)],
        lambda *biases: (np.concatenate([bias.reshape(-1) for bias in biases]),),
    )
    apart = [
        _matrix_piece(f"{part}.kernel", f"{part[0]}_proj_weight", (size,), heads)
        for part, (size, _) in zip(parts, inputs, strict=True)
    ]
    layouts = [Layout(_present(layer, *apart, biases, *last))]
    if inputs[0] == inputs[1]:
        together = Piece(
            [f"{part}.kernel" for part in parts],
            "in_proj_weight",
            lambda weight: [each.T.reshape((-1, *heads)) for each in np.split(weight, 3)],
            lambda *kernels: (np.concatenate([kernel.reshape((-1, n)).T for kernel in kernels]),),
        )
        layouts.insert(0, Layout(_present(layer, together, biases, *last)))
    return layouts


def _lstm_pieces(cell: LSTMCell, prefix: str, suffix: str) -> tuple[Piece, ...]:
    """Four separate gates; torch concatenates them in one matrix, in the order i, f, g, o."""
    of_input = [f"{prefix}{gate}.kernel" for gate in ("ii", "if_", "ig", "io")]
    recurrent = [f"{prefix}{gate}.kernel" for gate in ("hi", "hf", "hg", "ho")]
    biases = [f"{prefix}{gate}.bias" for gate in ("hi", "hf", "hg", "ho")]

    def split(weight: np.ndarray) -> Arrays:
        return [each.T for each in np.split(weight, 4)]

    def join(*kernels: np.ndarray) -> Arrays:
        return (np.concatenate([kernel.T for kernel in kernels]),)

    return (
        Piece(of_input, f"weight_ih{suffix}", split, join),
        Piece(recurrent, f"weight_hh{suffix}", split, join),
        Piece(
            biases,
            (f"bias_ih{suffix}", f"bias_hh{suffix}"),
            lambda b_ih, b_hh: np.split(b_ih + b_hh, 4),
            lambda *biases: (np.zeros_like(np.concatenate(biases)), np.concatenate(biases)),
        ),
    )


def _sum(b_ih: np.ndarray, b_hh: np.ndarray) -> Arrays:
    return (b_ih + b_hh,)


def _packed_pieces(
    prefix: str, suffix: str, biased: str, one_bias: Callable[[np.ndarray, np.ndarray], Arrays] = _sum
) -> tuple[Piece, ...]:
    """Plait's cell has the bias in the layer of the input, ``biased="i"``, or of the hidden state, ``biased="h"``."""

    def two_biases(bias: np.ndarray) -> Arrays:
        zeros = np.zeros_like(bias)
        return (bias, zeros) if biased == "i" else (zeros, bias)

    return (
        Piece(f"{prefix}dense_i.kernel", f"weight_ih{suffix}", _transposed, _transposed),
        Piece(f"{prefix}dense_h.kernel", f"weight_hh{suffix}", _transposed, _transposed),
        Piece(f"{prefix}dense_{biased}.bias", (f"bias_ih{suffix}", f"bias_hh{suffix}"), one_bias, two_biases),
    )


def _optimized_lstm_pieces(cell: OptimizedLSTMCell, prefix: str, suffix: str) -> tuple[Piece, ...]:
    return _packed_pieces(prefix, suffix, "h")


def _gru_pieces(cell: GRUCell, prefix: str, suffix: str) -> tuple[Piece, ...]:
    def one_bias(b_ih: np.ndarray, b_hh: np.ndarray) -> Arrays:
        gates, candidate = b_hh[: 2 * cell.hidden_features], b_hh[2 * cell.hidden_features :]
        if np.any(candidate):
            raise DoesNotFit(
                "torch's GRU multiplies a bias of the candidate by the reset gate, and plait's GRUCell has no such "
                f"bias: the last third of bias_hh{suffix} must be zero"
            )
        return (b_ih + np.concatenate([gates, candidate]),)

    return _packed_pieces(prefix, suffix, "i", one_bias)


def _simple_pieces(cell: SimpleCell, prefix: str, suffix: str) -> tuple[Piece, ...]:
    return _packed_pieces(prefix, suffix, "i")


_CELLS: dict[type, Callable[[Any, str, str], tuple[Piece, ...]]] = {
    LSTMCell: _lstm_pieces,
    OptimizedLSTMCell: _optimized_lstm_pieces,
    GRUCell: _gru_pieces,
    SimpleCell: _simple_pieces,
}


def _cell_pieces(cell: Any, prefix: str, suffix: str) -> tuple[Piece, ...]:
    return next((_CELLS[cls](cell, prefix, suffix) for cls in type(cell).__mro__ if cls in _CELLS), ())


def _rnn(layer: RNN) -> Sequence[Piece]:
    return _cell_pieces(layer.cell, "cell.", "_l0")


def _bidirectional(layer: Bidirectional) -> Sequence[Piece]:
    sides = (("forward_rnn", "_l0"), ("backward_rnn", "_l0_reverse"))
    pieces = [_cell_pieces(getattr(layer, side).cell, f"{side}.cell.", suffix) for side, suffix in sides]
    return (*pieces[0], *pieces[1]) if all(pieces) else ()


for _cls, _pieces_of in {
    Linear: _linear,
    LinearGeneral: _linear_general,
    Conv: _conv,
    ConvTranspose: _conv_transpose,
    LayerNorm: _norm,
    RMSNorm: _norm,
    GroupNorm: _norm,
    InstanceNorm: _norm,
    Embed: lambda layer: (Piece("embedding", "weight"),),
    PReLU: _prelu,
    LoRA: _lora,
    **dict.fromkeys(_CELLS, lambda cell: _cell_pieces(cell, "", "")),
    RNN: _rnn,
    Bidirectional: _bidirectional,
}.items():
    register_layout("torch", _cls, _pieces_of)
add_layout("torch", BatchNorm, _batch_norm)
add_layout("torch", MultiHeadAttention, _attention)
