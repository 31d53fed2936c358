"""Layouts of the standard layers in Flax's Linen: as in plait, except the recurrent cells.

Linen's cells have a layer for each gate (``ii``, ``if``, ``hi``, …). Plait's ``LSTMCell`` has the same layers under
other names; its other cells concatenate the gates. Linen's ``GRUCell`` has a bias in ``hn`` that plait's lacks, so it
must be zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..nn.cells import GRUCell, LSTMCell, OptimizedLSTMCell, SimpleCell
from .layouts import Arrays, DoesNotFit, Piece, register_layout


def _joined(*kernels: np.ndarray) -> Arrays:
    return (np.concatenate(kernels, axis=-1),)


def _side_by_side(ours: str, gates: Sequence[str], leaf: str) -> Piece:
    """Linen's gates, concatenated in this order along the last axis of one plait variable."""
    theirs = [f"{gate}.{leaf}" for gate in gates]
    return Piece(ours, theirs, _joined, lambda whole: np.split(whole, len(gates), axis=-1))


def _lstm(cell: LSTMCell) -> Sequence[Piece]:
    return (Piece("if_.kernel", "if.kernel"),)  # `if` cannot be an attribute in Python


def _optimized_lstm(cell: OptimizedLSTMCell) -> Sequence[Piece]:
    of_input, recurrent = ("ii", "if", "ig", "io"), ("hi", "hf", "hg", "ho")
    return (
        _side_by_side("dense_i.kernel", of_input, "kernel"),
        _side_by_side("dense_h.kernel", recurrent, "kernel"),
        _side_by_side("dense_h.bias", recurrent, "bias"),
    )


def _gru(cell: GRUCell) -> Sequence[Piece]:
    of_input, recurrent = ("ir", "iz", "in"), ("hr", "hz", "hn")

    def without_last(*biases: np.ndarray) -> Arrays:
        if np.any(biases[-1]):
            raise DoesNotFit("plait's GRUCell has no bias in the recurrent part of the candidate: hn.bias must be zero")
        return _joined(*biases[:-1])

    def with_zeros(bias: np.ndarray) -> Arrays:
        parts = np.split(bias, 3)
        return [*parts, np.zeros_like(parts[0])]

    return (
        _side_by_side("dense_i.kernel", of_input, "kernel"),
        _side_by_side("dense_h.kernel", recurrent, "kernel"),
        Piece("dense_i.bias", [*(f"{gate}.bias" for gate in of_input), "hn.bias"], without_last, with_zeros),
    )


def _simple(cell: SimpleCell) -> Sequence[Piece]:
    return (Piece("dense_i.kernel", "i.kernel"), Piece("dense_i.bias", "i.bias"), Piece("dense_h.kernel", "h.kernel"))


register_layout("linen", LSTMCell, _lstm)
register_layout("linen", OptimizedLSTMCell, _optimized_lstm)
register_layout("linen", GRUCell, _gru)
register_layout("linen", SimpleCell, _simple)
