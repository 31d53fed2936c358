"""Prompts of different lengths as the rows of one array: each begins at position 0, and padding follows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..util.jax_versions import Tracer
from ..util.words import describe_type


class Prompts(NamedTuple):
    """Prompts, one in each row.

    Attributes:
        tokens: ``(batch, longest)``, int32.
        lengths: ``(batch,)``, int32, each at least 1.
        is_single: whether there was one prompt without a batch axis.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    is_single: bool


def resolve_prompts(prompt: Any, mask: Any = None) -> Prompts:
    """The rows of a prompt.

    Args:
        prompt: integers, ``(length,)`` or ``(batch, length)``, or a list of sequences of any lengths.
        mask: which positions of an array are tokens; the others, before and after them, are padding.

    Raises:
        ArgumentTypeError: the prompt is traced, or not of integers.
        ArgumentError: a prompt is empty, or has padding between its tokens.
        ShapeError: the prompt or the mask has the wrong shape.
    """
    if isinstance(prompt, Tracer):
        raise ArgumentTypeError(
            "a prompt cannot be traced, since its length chooses the program that runs",
            found=describe_type(prompt),
            expected="an array or lists of integers",
            do="call generate outside of jit: it compiles what it runs",
        )
    is_single = len(prompt) == 0 or np.ndim(prompt[0]) == 0
    rows = [np.asarray(row) for row in ([prompt] if is_single else prompt)]
    if mask is not None:
        rows = _unpadded(rows, np.asarray(mask, bool).reshape(-1, np.shape(mask)[-1]))
    for number, row in enumerate(rows):
        _check_row(row, number)
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for row, values in zip(tokens, rows, strict=True):
        row[: len(values)] = values
    return Prompts(tokens, lengths, is_single)


def _unpadded(rows: list[np.ndarray], mask: np.ndarray) -> list[np.ndarray]:
    if [row.shape for row in rows] != [each.shape for each in mask]:
        raise ShapeError(
            "the mask of a prompt does not fit it",
            found=f"a mask of shape {mask.shape} for {len(rows)} prompts of shapes {sorted({r.shape for r in rows})}",
            expected="one entry for each position",
            do="pass mask=prompt != pad, or a list of prompts without padding and no mask",
        )
    return [row[_tokens_of(each, number)] for number, (row, each) in enumerate(zip(rows, mask, strict=True))]


def _tokens_of(mask: np.ndarray, number: int) -> slice:
    """Where the tokens of a row are."""
    places = np.flatnonzero(mask)
    if len(places) and places[-1] - places[0] + 1 != len(places):
        raise ArgumentError(
            "a prompt has padding between its tokens",
            at=f"prompt {number}",
            found=f"tokens at {len(places)} of the positions {places[0]} to {places[-1]}",
            expected="padding before or after the tokens",
            do="remove it, or mark it as tokens in the mask",
        )
    return slice(places[0], places[-1] + 1) if len(places) else slice(0)


def _check_row(row: np.ndarray, number: int) -> None:
    if row.ndim == 1 and len(row) and np.issubdtype(row.dtype, np.integer):
        return
    if row.ndim == 1 and not len(row):
        raise ArgumentError(
            "a prompt is empty",
            at=f"prompt {number}",
            found="no token",
            expected="one token or more",
            do="begin with the token that stands for the beginning of a text",
        )
    raise (ShapeError if row.ndim != 1 else ArgumentTypeError)(
        "a prompt is a sequence of integers",
        at=f"prompt {number}",
        found=f"shape {row.shape}, dtype {row.dtype}",
        expected="integers of shape (length,)",
        do="pass the numbers of the tokens",
    )
