"""TensorFlow SavedModels, which run where neither JAX nor plait is installed.

The file holds the function as StableHLO inside one TensorFlow operation (``XlaCallModule``) and each weight as one
``tf.Variable``, which the operation reads when it is called. ``jax2tf`` would build the same operation, but always with
the StableHLO that JAX serialised; here it is first written for the version that the installed TensorFlow reads
(``portable.py`` says why). So the file runs on the TensorFlow that wrote it and on newer ones.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from ..errors import ExportError
from .dependencies import require
from .input_spec import InputSpec, resolve_input_spec
from .lowering import PLATFORMS, lower, open_shape
from .portable import serialize_for, tensorflow_version
from .variable_names import SAVABLE_IN_WORDS, is_savable
from .weights import Function, by_name, named_weights
from .whole_write import written_whole

SIGNATURE = "serving_default"
OUTPUT = "y"


def save_saved_model(
    function: Function,
    params: Any,
    path: str | os.PathLike[str],
    *,
    input_spec: InputSpec | tuple[int | str, ...],
    platforms: Sequence[str] = PLATFORMS,
    overwrite: bool = False,
) -> None:
    """Write ``function(params, x)`` as a SavedModel with the signature ``serving_default(x) -> {"y": …}``.

    Args:
        function: a pure JAX function of the parameters and one array, which returns one array.
        params: a pytree of arrays. Each becomes a variable, named by its key path (``~`` is replaced by ``_``).
        path: the folder to be made.
        input_spec: shape, dtype and name of ``x``; free sizes are names, as in ``("batch", 8, 8, 1)``.
        platforms: where the file can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        overwrite: whether to replace what is at ``path``.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportPathError: the folder cannot be written, or ``path`` exists.
        ExportError: the function or a parameter's name cannot be expressed in a SavedModel.

    Example:
        >>> save_saved_model(f, params, "digits", input_spec=InputSpec(("batch", 8, 8, 1)))  # doctest: +SKIP
        >>> tf.saved_model.load("digits").signatures["serving_default"](x=images)["y"]  # doctest: +SKIP
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to write a SavedModel")
    spec = resolve_input_spec(input_spec)
    weights = named_weights(params)
    names = {name: _variable_name(name) for name in weights}
    with written_whole(path, overwrite=overwrite) as draft:
        exported = lower(by_name(function, params), weights, spec, platforms)
        module = tf.Module()
        with tf.device("CPU:0"):  # a copy of every weight on the accelerator would double its memory
            variables = {name: tf.Variable(array, trainable=False, name=names[name]) for name, array in weights.items()}
        module.weights = list(variables.values())  # a list keeps the variables' own names; a dict is rewrapped
        module.serve = _tf_function(tf, exported, variables, spec)
        tf.saved_model.save(module, os.fspath(draft), signatures={SIGNATURE: module.serve})


def _tf_function(tf: Any, exported: jax.export.Exported, variables: dict[str, Any], spec: InputSpec) -> Any:
    """A TensorFlow function of ``x`` that reads the variables at each call and runs the exported program on them."""
    attributes = _operation_attributes(tf, exported)
    xla = importlib.import_module("tensorflow.compiler.tf2xla.python.xla")

    def serve(x: Any) -> dict[str, Any]:
        # The exported function's own flattening says in which order its arguments come.
        arguments = jax.tree_util.tree_leaves(((dict(variables), x), {}))
        kept = [arguments[index] for index in exported.module_kept_var_idx]
        return {OUTPUT: xla.call_module(kept, **attributes)[0]}

    signature = [tf.TensorSpec(spec.open_shape, np.dtype(spec.dtype), name=spec.name)]
    return tf.function(serve, input_signature=signature, autograph=False)


def _operation_attributes(tf: Any, exported: jax.export.Exported) -> dict[str, Any]:
    """The attributes of ``XlaCallModule``; TensorFlow writes platforms in capitals."""
    (y,) = exported.out_avals
    return {
        "version": exported.calling_convention_version,
        "module": serialize_for(tensorflow_version(), exported.mlir_module_serialized),
        "Tout": [tf.as_dtype(y.dtype)],
        "Sout": [open_shape(y)],
        "platforms": [platform.upper() for platform in exported.platforms],
        "disabled_checks": [str(check) for check in exported.disabled_safety_checks],
    }


def _variable_name(name: str) -> str:
    """The variable's name for a parameter's; TensorFlow would refuse some only after all the work is done."""
    variable = name.replace("~", "_")
    if not is_savable(variable):
        raise ExportError(
            "TensorFlow cannot save a variable of this name",
            at=name,
            found=f"the variable name {variable!r}",
            expected=SAVABLE_IN_WORDS,
            do="rename the parameter",
        )
    return variable
