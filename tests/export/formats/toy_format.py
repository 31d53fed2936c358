"""A format for tests, in the one file that a format is: affine functions as NumPy stores arrays."""

import numpy as np

from plait.export.formats.descriptions import Description, Tensor, size_of
from plait.export.formats.table import Format
from plait.export.formats.whole_write import written_whole

ROW = Format("toy", "Toy", "model.toy", blocked=("jax", "plait"))


def write(programs, path, options):
    (program,) = programs.values()
    with written_whole(path, overwrite=options.overwrite) as draft, open(draft, "wb") as file:
        np.savez(file, **program.weights)


def describe(place):
    with np.load(place) as file:
        weights = [Tensor(name, array.dtype.name, array.shape) for name, array in file.items()]
    return Description("toy", place, size_of(place), {"numpy": np.__version__}, {}, weights)


def run(path, signature):
    import numpy as np

    with np.load(path) as file:
        weights = dict(file)
    return lambda inputs: {"y": inputs["x"] @ weights["kernel"] + weights["bias"]}, ["x"]
