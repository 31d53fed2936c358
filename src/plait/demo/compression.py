"""Baselines for a language model: the bits per byte that other methods need for the held-out text.

An n-gram model predicts a byte from the ``n − 1`` bytes before it, by how often it followed them in the training text.
Counts of each length are interpolated with those of the next shorter one, as Witten and Bell do: if the context ``c``
was seen ``N`` times, with ``U`` distinct next bytes, ``p(b | c) = (count(cb) + U · p(b | shorter c)) / (N + U)``.

Reference: Witten and Bell, "The zero-frequency problem", 1991 (method C).
"""

from __future__ import annotations

import lzma

import numpy as np


def ngram_bits(train: np.ndarray, text: np.ndarray, n: int) -> float:
    """The bits per byte of a text under the n-gram model of the training text.

    Args:
        train, text: uint8.
        n: the length of the longest counted sequence, 1 to 8.
    """
    probability = np.full(len(text) - (n - 1), 1 / 256)
    for length in range(1, n + 1):
        counted, counts = np.unique(_packed(train, length), return_counts=True)
        contexts, first, followers = np.unique(counted >> np.uint64(8), return_index=True, return_counts=True)
        totals = np.add.reduceat(counts, first)
        grams = _packed(text, length)[n - length :]
        seen = _found(counted, counts, grams)
        total = _found(contexts, totals, grams >> np.uint64(8))
        different = _found(contexts, followers, grams >> np.uint64(8))
        blended = (seen + different * probability) / np.maximum(total + different, 1)
        probability = np.where(total > 0, blended, probability)
    return float(-np.log2(probability).mean())


def _packed(text: np.ndarray, length: int) -> np.ndarray:
    """Each sequence of ``n`` bytes as one number."""
    numbers = np.zeros(len(text) - length + 1, np.uint64)
    for offset in range(length):
        numbers = (numbers << np.uint64(8)) | text[offset : offset + len(numbers)].astype(np.uint64)
    return numbers


def _found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The values of some sorted keys; 0 for missing keys."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)


def xz_bits(text: np.ndarray) -> float:
    """The bits per byte that ``xz -9`` needs for a text."""
    return 8 * len(lzma.compress(text.tobytes(), preset=9)) / len(text)
