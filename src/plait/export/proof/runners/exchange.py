"""Passes arrays by name between processes, as ``.npz`` files, and the times of calls. Needs only NumPy.

``.npz`` does not store the names of extension dtypes such as bfloat16, so these arrays are stored as integers of the
same width, with the dtype as a prefix of the name: ``bfloat16|x``. All others have an empty prefix, ``|x``, so that no
array has the name of a NumPy argument, or of the times: ``milliseconds``.
"""

import functools
import importlib
import time
from pathlib import Path

import numpy as np

MILLISECONDS = "milliseconds"


def write(path, arrays, milliseconds=None):
    """Write a dictionary of arrays; also writes ``milliseconds``, if given."""
    stored = {} if milliseconds is None else {MILLISECONDS: np.asarray(milliseconds)}
    for name, array in arrays.items():
        array = array_of(array)
        if array.dtype.kind == "V":  # an extension dtype
            stored[f"{array.dtype.name}|{name}"] = array.view(f"u{array.dtype.itemsize}")
        else:
            stored[f"|{name}"] = array
    np.savez(path, **stored)  # pyright: ignore[reportArgumentType]  # no name is that of an option


def array_of(value):
    """The value as an array; text, which TensorFlow has as objects, as bytes."""
    array = np.asarray(value)
    return array.astype("S") if array.dtype.kind == "O" else array


def read(path):
    """The arrays that ``write`` wrote; extension dtypes come from the package ``ml_dtypes``."""
    with np.load(path, allow_pickle=False) as file:
        return dict(_restored(name, file[name]) for name in file.files if name != MILLISECONDS)


def read_milliseconds(path):
    """The times that ``write`` wrote."""
    with np.load(path, allow_pickle=False) as file:
        return file[MILLISECONDS]


def _restored(name, array):
    dtype, _, name = name.partition("|")
    return name, array.view(getattr(importlib.import_module("ml_dtypes"), dtype)) if dtype else array


def run_all(folder, call, names):
    """Run ``call`` on the inputs ``x_*.npz`` of a folder, and write its outputs and the milliseconds of each call.

    ``names`` are the names of the file's inputs; a single input may have any name.
    """
    folder = Path(folder)
    for file in sorted(folder.glob("x_*.npz")):
        inputs = read(file)
        if len(inputs) == len(names) == 1:
            inputs = dict(zip(names, inputs.values(), strict=True))
        outputs = call(inputs)
        times = milliseconds_of(functools.partial(call, inputs))
        write(folder / file.name.replace("x_", "y_"), outputs, sorted(times))


def milliseconds_of(call):
    """The times of a few calls."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1_000)
    return times
