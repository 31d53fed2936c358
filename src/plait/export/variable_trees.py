"""The parameters as TensorFlow variables: plain ones on the CPU, or DTensors on the mesh of the current context."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from ..errors import ArgumentError, ArgumentTypeError
from ..util.dependencies import require
from ..util.notices import warn
from ..util.words import describe_type
from .dtensor_utils import CONTEXT, Mesh, get_current_mesh, jax_array_to_dtensor
from .program.checks import leaves_like
from .program.numbers import check_numbers


@dataclasses.dataclass(frozen=True)
class Placement:
    """The placement of a module's variables: on ``mesh`` according to their specs, or on the CPU without a mesh."""

    mesh: Mesh | None
    pspecs: list[PartitionSpec | None]
    consolidate: bool

    def tensor(self, index: int, value: Any) -> Any:
        """The tensor of the parameter at this index of the leaves."""
        if self.mesh is None:
            tf = require("tensorflow", extra="tensorflow", purpose="to make variables")
            with tf.device("CPU:0"):
                return tf.constant(np.asarray(value))
        return jax_array_to_dtensor(
            value, self.pspecs[index], self.mesh.dtensor_mesh, self.mesh.jax_mesh, self.consolidate
        )


def resolve_placement(params: Any, pspecs: Any, *, consolidate: bool) -> Placement:
    """The placement of the variables of ``params`` in the current context.

    Raises:
        ArgumentError: there are specs without a mesh, a mesh without specs, or the structure of the specs differs.
    """
    mesh = get_current_mesh()
    leaves, structure = jax.tree_util.tree_flatten(params)
    if mesh is not None and pspecs is not None and not all(isinstance(leaf, jax.Array) for leaf in leaves):
        strange = next(leaf for leaf in leaves if not isinstance(leaf, jax.Array))
        warn(
            UserWarning,
            f"the parameters have a leaf that is {describe_type(strange)} and not a jax.Array, "
            "so the DTensor mesh is ignored",
        )
        mesh = None
    if mesh is None:
        if pspecs is not None:
            raise ArgumentError(
                "pspecs needs a DTensor context",
                found="pspecs, and no mesh",
                expected="pspecs=None, or a context made by initialize_dtensor and maybe_enable_dtensor_export_on",
                do=CONTEXT,
            )
        return Placement(None, [], consolidate)
    if pspecs is None:
        raise ArgumentError(
            "a DTensor context needs pspecs",
            found=f"pspecs=None, and a mesh of {dict(mesh.jax_mesh.shape)}",
            expected="a partition spec for each parameter",
            do="JaxModule(..., pspecs=get_pspec_from_jax_arrays(params))",
        )
    kinds = (PartitionSpec, type(None))
    specs = leaves_like(structure, "pspecs", pspecs, kinds, "get_pspec_from_jax_arrays(params)")
    return Placement(mesh, specs, consolidate)


def resolve_values(params: Any) -> list[Any]:
    """Each leaf as an array of numbers: JAX arrays unchanged, others as NumPy arrays.

    Raises:
        ArgumentTypeError: a leaf is not an array of numbers.
    """
    pairs = jax.tree_util.tree_flatten_with_path(params)[0]
    for path, leaf in pairs:
        check_numbers(leaf, f"params{jax.tree_util.keystr(path)}", ArgumentTypeError)
    is_array = (jax.Array, np.ndarray, np.generic)
    return [leaf if isinstance(leaf, is_array) else np.asarray(jax.numpy.asarray(leaf)) for _, leaf in pairs]


def make_variables(values: list[Any], names: list[str], trainable: list[bool], placement: Placement) -> list[Any]:
    """A variable for each value. Plain ones are on the CPU, because on an accelerator they would double its memory
    use."""
    tf = require("tensorflow", extra="tensorflow", purpose="to make variables")
    kind = tf.Variable if placement.mesh is None else tf.experimental.dtensor.DVariable
    with tf.device("CPU:0") if placement.mesh is None else contextlib.nullcontext():
        return [
            kind(placement.tensor(index, value), trainable=flag, name=name)
            for index, (value, name, flag) in enumerate(zip(values, names, trainable, strict=True))
        ]
