"""TensorFlow SavedModels, which run without JAX and plait.

The file has the function as StableHLO in one TensorFlow operation (``XlaCallModule``) and each weight as one
``tf.Variable``, which the operation reads when it is called. ``jax2tf`` would build the same operation, but always with
the StableHLO version that JAX serialises. Here it is first converted to the version that its reader supports: that of
the installed TensorFlow, or of an older ``target`` (see ``portable.py`` and ``readers.py``). So the file runs on the
TensorFlow that it was written for, and on newer ones.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from ...errors import ExportError
from ...util.dependencies import require
from ...util.files import check_files
from ..program.input_spec import InputSpec
from ..program.lowering import PLATFORMS, export_program, lowered
from ..program.program import SIGNATURE, Program, program_of, shared_weights
from ..program.unsupported import refusal_of
from ..program.weights import Function
from ..tensorflow.calling import call_exported, foreign_calls, without_foreign_calls
from ..tensorflow.names import check_savable, is_savable, variable_name
from ..tensorflow.readers import Reader, reader_of
from .descriptions import Description, ReadableTensor, Running, Tensor, size_of
from .options import WriteOptions
from .whole_write import written_whole


def save_saved_model(
    function: Function,
    params: Any,
    path: str | os.PathLike[str],
    *,
    input_spec: InputSpec | tuple[int | str, ...] | Sequence[InputSpec],
    platforms: Sequence[str] = PLATFORMS,
    target: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write ``function(params, x)`` as a SavedModel with the signature ``serving_default(x) -> {"y": …}``.

    Args:
        function: a pure JAX function of the parameters and the inputs.
        params: a pytree of arrays. Each becomes a variable, named by its key path (``_`` for ``~``, ``-`` for ``:``).
        path: the folder to create.
        input_spec: shape, dtype and name of the input, or of each; dynamic sizes are names: ``("batch", 8, 8, 1)``.
        platforms: where the file can run: some of ``"cpu"``, ``"cuda"``, ``"rocm"``, ``"tpu"``.
        target: the reader of the file: ``"tensorflow==2.16"``, or a StableHLO version such as ``"1.9.0"``; by default
            the installed TensorFlow. Newer readers can read files for older ones.
        overwrite: whether to replace an existing export.

    Raises:
        MissingDependencyError: TensorFlow is not installed.
        ExportPathError: the folder cannot be written, or ``path`` exists.
        ExportError: the function or a parameter's name cannot be expressed in a SavedModel.

    Example:
        >>> save_saved_model(f, params, "digits", input_spec=InputSpec(("batch", 8, 8, 1)))  # doctest: +SKIP
        >>> tf.saved_model.load("digits").signatures["serving_default"](x=images)["y"]  # doctest: +SKIP
    """
    program = program_of((params, function), input_spec)
    write({SIGNATURE: program}, path, WriteOptions(platforms, target, overwrite))


def write(
    programs: Mapping[str, Program],
    path: str | os.PathLike[str],
    options: WriteOptions = WriteOptions(),  # noqa: B008  (it cannot be changed)
) -> None:
    """Write several functions that share their weights, one signature each.

    Args:
        programs: programs, by the name of the signature.
        path: the folder to create.
        options: platforms, target and overwrite.

    Raises:
        ArgumentError: two programs have different weights under one name, or ``target`` is not a version.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to write a SavedModel")
    reader = reader_of(options.target)
    with written_whole(path, overwrite=options.overwrite) as draft:
        _check_inputs(programs)
        exported = {name: export_program(program, options.platforms) for name, program in programs.items()}
        _check_calls(exported, options.platforms)
        weights = shared_weights({name: program for name, (_, program) in exported.items()})
        names = {name: variable_name(name) for name in weights}
        check_savable(names)
        module = tf.Module()
        with tf.device("CPU:0"):  # a copy of every weight on the accelerator would double its memory
            variables = {name: tf.Variable(array, trainable=False, name=names[name]) for name, array in weights.items()}
        module.weights = list(variables.values())  # a list keeps the variables' own names; a dict is rewrapped
        signatures = {
            name: _tf_function(tf, function, variables, program, reader)
            for name, (function, program) in exported.items()
        }
        module.functions = list(signatures.values())
        tf.saved_model.save(module, os.fspath(draft), signatures=signatures)


def _check_inputs(programs: Mapping[str, Program]) -> None:
    """Raise for input names that TensorFlow would reject later, with an unclear error."""
    states = {name for program in programs.values() for name in program.state}
    for spec in (spec for program in programs.values() for spec in program.inputs):
        if not is_savable(spec.name) or spec.name == "self":
            raise ExportError(
                "TensorFlow does not accept this input name",
                at=spec.name,
                found=f"the {'state' if spec.name in states else 'input'} {spec.name!r}",
                expected="an ASCII letter, then letters, digits and _; not self",
                do="rename the variable of the model" if spec.name in states else "InputSpec(shape, name='x')",
            )


def _check_calls(exported: Mapping[str, tuple[jax.export.Exported, Program]], platforms: Sequence[str]) -> None:
    """Raise for a program that could be written but not run."""

    def convert(function: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
        without_foreign_calls(lowered(function, *shapes, platforms=platforms))

    for function, program in exported.values():
        if foreign_calls(function):
            raise refusal_of("TensorFlow cannot run the model", None, [program], convert, expected="XLA operations")


def _tf_function(
    tf: Any, exported: jax.export.Exported, variables: dict[str, Any], program: Program, reader: Reader
) -> Any:
    """A TensorFlow function of the inputs that reads the variables at each call and runs the exported program."""
    own = {name: variables[name] for name in program.weights}

    def serve(**inputs: Any) -> dict[str, Any]:
        # The order of the arguments is that of the exported function's own flattening.
        arguments = jax.tree_util.tree_leaves(((dict(own), inputs), {}))
        return jax.tree_util.tree_unflatten(exported.out_tree, call_exported(tf, exported, arguments, reader))

    specs = {spec.name: tf.TensorSpec(spec.open_shape, np.dtype(spec.dtype), name=spec.name) for spec in program.inputs}
    return tf.function(serve, autograph=False).get_concrete_function(**specs)


def describe(place: Path) -> Description:
    """The description of a file; its functions are not loaded."""
    tf = require("tensorflow", extra="tensorflow", purpose="to read a SavedModel")
    check_files(place)
    content = _protocol("saved_model", "SavedModel").FromString((place / "saved_model.pb").read_bytes())
    graph = next((each for each in content.meta_graphs if "serve" in each.meta_info_def.tags), None)
    graph = content.meta_graphs[0] if graph is None else graph
    signatures = {
        name: (_tensors(tf, each.inputs), _tensors(tf, each.outputs))
        for name, each in sorted(graph.signature_def.items())
        if not name.startswith(_RESERVED)
    }
    versions = {"tensorflow": graph.meta_info_def.tensorflow_version}
    stored = _variables(tf, place)
    weights = [each.tensor for each in stored]
    return Description("saved_model", place, size_of(place), versions, signatures, weights, lambda: stored)


_RESERVED = "__saved_model"  # begins the names of TensorFlow's own signatures


def _protocol(file: str, message: str) -> Any:
    return getattr(importlib.import_module(f"tensorflow.core.protobuf.{file}_pb2"), message)


def _tensors(tf: Any, infos: Mapping[str, Any]) -> list[Tensor]:
    return [
        Tensor(name, tf.dtypes.as_dtype(info.dtype).name, _sizes(info.tensor_shape))
        for name, info in sorted(infos.items())
    ]


def _sizes(shape: Any) -> tuple[int | str, ...]:
    return ("...",) if shape.unknown_rank else tuple("?" if each.size < 0 else each.size for each in shape.dim)


def _variables(tf: Any, place: Path) -> list[ReadableTensor]:
    """The variables, by the names that they were made with; nothing of the model is loaded."""
    if not (place / "variables" / "variables.index").is_file():
        return []

    def read(key: str) -> np.ndarray:
        return np.asarray(reader.get_tensor(key))

    reader = tf.train.load_checkpoint(os.fspath(place / "variables" / "variables"))
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    names = _names_of_variables(reader, [key for key in shapes if key != _OBJECTS])
    return [
        ReadableTensor(Tensor(name, dtypes[key].name, tuple(shapes[key])), functools.partial(read, key))
        for key, name in names.items()
    ]


_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # ends the keys of what was saved as an object's attribute


def _names_of_variables(reader: Any, keys: Sequence[str]) -> dict[str, str]:
    """Key in the checkpoint → name of the variable, if all names differ; else the places in the object graph."""
    found: dict[str, str] = {}
    if reader.has_tensor(_OBJECTS):
        objects = _protocol("trackable_object_graph", "TrackableObjectGraph").FromString(reader.get_tensor(_OBJECTS))
        found = {each.checkpoint_key: each.full_name for node in objects.nodes for each in node.attributes}
    names = {key: found.get(key) or key.removesuffix(_VALUE) for key in found if key in keys}
    names |= {key: key.removesuffix(_VALUE) for key in sorted(keys) if key not in names}
    if len(set(names.values())) == len(names):
        return names
    return {key: key.removesuffix(_VALUE) for key in names}


def run(path: str, signature: str | None) -> Running:
    """Run with TensorFlow."""
    import os

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    loaded = tf.saved_model.load(path)
    function = loaded.signatures[signature or next(iter(loaded.signatures))]

    def call(inputs: Any, model: Any = loaded) -> Any:  # keeps the model alive, which owns the variables
        outputs = function(**{key: tf.constant(array) for key, array in inputs.items()})
        return {key: y.numpy() for key, y in outputs.items()}

    return call, list(function.structured_input_signature[1])
