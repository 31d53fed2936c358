"""ONNX files, written by jax2onnx, with each weight stored once under its own name.

jax2onnx would store the weights that a function closes over as numbered constants. Instead they are passed as inputs,
and converted to initializers afterwards: each is stored once, has the name of its parameter, and any ONNX tool can
replace it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from ...core.module_calls.layer_scopes import layer_of
from ...errors import ExportError
from ...util.dependencies import require
from ...util.files import given_path, open_file, read_file
from ...util.schemas import check_schema, inner_path
from ..program.checks import check_different
from ..program.input_spec import InputSpec, symbolic
from ..program.lowering import traced_program
from ..program.operations import operations
from ..program.program import SIGNATURE, Program, program_of
from ..program.rewriting import FOR_ONNX, rewritten
from ..program.unsupported import refusal_of
from ..program.weights import Function
from .descriptions import Description, ReadableTensor, Running, Tensor, size_of
from .onnx_pooling import narrow_pools
from .options import WriteOptions
from .whole_write import ExportPathError, check_opens, written_whole

NEXT = "_next"
MOST_BYTES = 2**31 - 2**24  # a protobuf message is limited to 2 GiB; 16 MiB are reserved for the graph
DATA = ".data"  # suffix of the external data file of a larger model
ALIGNMENT = 4_096  # a page, so that runtimes can memory-map a weight


def save_onnx(
    function: Function,
    params: Any,
    path: str | os.PathLike[str],
    *,
    input_spec: InputSpec | tuple[int | str, ...] | Sequence[InputSpec],
    overwrite: bool = False,
) -> None:
    """Write ``function(params, x)`` as one ONNX file with the input ``x`` and the output ``y``.

    Args:
        function: a pure JAX function of the parameters and the inputs.
        params: a pytree of arrays. Each becomes an initializer, named by its key path.
        path: the file to create. More than 2 GB of weights go to an external data file, ``PATH.data``.
        input_spec: shape, dtype and name of the input, or of each; dynamic sizes are names: ``("batch", 8, 8, 1)``.
        overwrite: whether to replace an existing file.

    Raises:
        MissingDependencyError: jax2onnx or onnx is not installed.
        ExportPathError: the file cannot be written, or ``path`` exists.
        ExportError: the function has an operation that jax2onnx cannot convert.
    """
    write({SIGNATURE: program_of((params, function), input_spec)}, path, WriteOptions(overwrite=overwrite))


def write(
    programs: Mapping[str, Program],
    path: str | os.PathLike[str],
    options: WriteOptions = WriteOptions(),  # noqa: B008  (it cannot be changed)
) -> None:
    """Write the first program as an ONNX file, with the program's names of inputs and outputs.

    Args:
        programs: programs, by the name of the signature.
        path: the file to create. More than ``MOST_BYTES`` of weights go to an external data file, ``PATH.data``.
        options: whether to replace an existing file.
    """
    onnx = require("onnx", extra="onnx", purpose="to write an ONNX file")
    jax2onnx = require("jax2onnx", extra="onnx", purpose="to write an ONNX file")
    program, overwrite = next(iter(programs.values())), options.overwrite
    path = given_path(path, ExportPathError)
    data = path.with_name(path.name + DATA)
    small = sum(array.nbytes for array in program.weights.values()) <= MOST_BYTES
    with written_whole(path, overwrite=overwrite) as draft:
        program, outputs = traced_program(program)
        _check_names(program, outputs)
        model = _convert(jax2onnx, onnx, program, outputs)
        narrow_pools(model, onnx)
        onnx.checker.check_model(model)
        _store_weights(model, program.weights, onnx, None if small else data.name)
        with contextlib.nullcontext() if small else written_whole(data, overwrite=overwrite) as data_draft:
            onnx.save_model(model, os.fspath(draft))  # and the external data file
            check_opens("ONNX", run, draft)
            if data_draft is not None:
                draft.with_name(data.name).rename(data_draft)
    if small and overwrite:
        data.unlink(missing_ok=True)  # of an earlier, larger model


def _check_names(program: Program, outputs: list[str]) -> None:
    """Raise for duplicate names. The new value of a state has the suffix ``_next``."""
    names = [
        *(("a parameter", name) for name in program.weights),
        *(("an input", each.name) for each in program.inputs),
    ]
    names += [("an output", name) for name in outputs if name not in program.state]
    names += [("the new value of a state", f"{name}{NEXT}") for name in program.state]
    advice = "give the input another name: InputSpec(shape, name=...), or rename the parameter or the output"
    check_different("two values of an ONNX file have the same name", names, advice, ExportError)


def _convert(jax2onnx: Any, onnx: Any, program: Program, outputs: list[str]) -> Any:
    """The ``ModelProto`` of the program, with weights and inputs as its inputs.

    ONNX needs unique names, but a state is both an input and an output: the new value of ``cache`` is ``cache_next``.
    """
    names = [spec.name for spec in program.inputs]

    def of_arrays(*arrays: jax.Array) -> list[jax.Array]:
        weights = dict(zip(program.weights, arrays, strict=False))
        found = program.call(weights, dict(zip(names, arrays[len(weights) :], strict=True)))
        return [found[name] for name in outputs]

    def of_names(*arrays: jax.Array) -> list[jax.Array]:
        results = rewritten(of_arrays, FOR_ONNX)(*arrays)
        for index, result in enumerate(results):  # ONNX allows one name per value
            if any(result is other for other in (*arrays, *results[:index])):
                results[index] = jnp.copy(result)
        return results

    arguments = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in program.weights.values()]
    arguments += symbolic(program.inputs).values()
    # While tracing, jax2onnx replaces functions of JAX, Flax and others by its own, which accept fewer arguments. So it
    # gets a program that is already traced.
    closed = jax.make_jaxpr(of_names)(*arguments)
    _check_runs(closed.jaxpr)
    traced = jax.extend.core.jaxpr_as_fun(closed)
    shown = [f"{name}{NEXT}" if name in program.state else name for name in outputs]
    try:
        return _checked(
            jax2onnx, onnx, lambda *arrays: tuple(traced(*arrays)), arguments,
            input_names=[*program.weights, *names], output_names=shown,
        )  # fmt: skip
    except Exception as error:  # jax2onnx raises any error of its converters
        known = dataclasses.replace(program, call=rewritten(program.call, FOR_ONNX))
        message, expected = "jax2onnx cannot write the model as ONNX", "operations that jax2onnx supports"
        convert = functools.partial(_checked, jax2onnx, onnx)
        raise refusal_of(message, error, [known], convert, expected=expected) from error


def _checked(jax2onnx: Any, onnx: Any, function: Any, shapes: Sequence[Any], **names: Any) -> Any:
    """The ``ModelProto`` of a function, checked: jax2onnx also writes invalid files, such as ``Cast`` to complex."""
    with _quiet_converter(), _functions_of_jax_kept():
        model = jax2onnx.to_onnx(function, shapes, **names)
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.value_info[:]  # jax2onnx's annotations of intermediate values may be wrong; runtimes ignore them
    onnx.checker.check_model(bare, full_check=True)
    return model


HALVES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
CASTS = ("convert_element_type", "copy")  # to and from 16-bit storage


def _check_runs(jaxpr: Any) -> None:
    """Raise for dtypes that would give a file that cannot be loaded.

    jax2onnx writes constants of 16-bit operations in float32, and ONNX Runtime cannot compute in bfloat16.
    """
    for eqn, _ in operations(jaxpr):
        inside = list(jax.extend.core.jaxprs_in_params(eqn.params))
        for var in (*eqn.invars, *eqn.outvars):
            if getattr(var.aval, "dtype", None) in HALVES and not inside and eqn.primitive.name not in CASTS:
                raise ExportError(
                    "ONNX export needs float32 computation",
                    at=layer_of(eqn),
                    found=f"the operation {eqn.primitive.name} of {var.aval.dtype}",
                    expected="16-bit dtypes only for stored weights, cast before use",
                    do="compute in float32, dtype=jnp.float32 in the layers; or export with save_stablehlo",
                )


@contextlib.contextmanager
def _quiet_converter() -> Iterator[None]:
    """Silence warnings that a user cannot act on.

    jax2onnx reports plugins for other libraries that do not load with this JAX, and onnx_ir reports the scalars of
    jax2onnx's own shape arithmetic.
    """
    loggers = [logging.getLogger("onnx_ir"), logging.getLogger("jax2onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def _functions_of_jax_kept() -> Iterator[None]:
    """Put back what jax2onnx replaces while it converts: it leaves its own ``jnp.cumsum`` in the process."""
    before = [(module, dict(vars(module))) for module in (jnp, jax.nn, jax.lax)]
    try:
        yield
    finally:
        for module, names in before:
            vars(module).update(names)


def _store_weights(model: Any, weights: dict[str, np.ndarray], onnx: Any, data: str | None) -> None:
    """Convert the inputs that are weights to initializers; their values go to the external file ``data``, if given."""
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    offset = 0
    for name, array in weights.items():
        tensor = onnx.numpy_helper.from_array(array, name)
        if data is not None:
            offset += -offset % ALIGNMENT
            onnx.external_data_helper.set_external_data(tensor, data, offset)
            offset += array.nbytes
        model.graph.initializer.append(tensor)


def describe(place: Path) -> Description:
    """Describe the graph, without reading the values of its weights, which an external file may hold."""
    onnx = require("onnx", extra="onnx", purpose="to read an ONNX file")
    model = onnx.load_model_from_string(read_file(place))
    if not model.HasField("graph"):  # so is an empty file, which protobuf takes for a message without fields
        raise ValueError("the model has no graph")

    def dtype(number: int) -> str:
        return str(onnx.helper.tensor_dtype_to_np_dtype(number))

    def tensor(value: Any) -> Tensor:
        kind = value.type.tensor_type
        return Tensor(value.name, dtype(kind.elem_type), tuple(d.dim_param or d.dim_value for d in kind.shape.dim))

    def read(initializer: Any) -> np.ndarray:
        for entry in initializer.external_data:
            if entry.key == "location":
                check_schema(entry.value, inner_path, "the file of a tensor")
                open_file(place.parent / entry.value).close()  # onnx would wait for a pipe
        return onnx.numpy_helper.to_array(initializer, os.fspath(place.parent))

    versions = {f"opset {each.domain or 'ai.onnx'}": str(each.version) for each in model.opset_import}
    versions["ir"] = str(model.ir_version)
    if model.producer_name:
        versions[model.producer_name] = model.producer_version
    signature = list(map(tensor, model.graph.input)), list(map(tensor, model.graph.output))
    size = size_of(place) + size_of(place.with_name(place.name + DATA))
    stored = [
        ReadableTensor(Tensor(each.name, dtype(each.data_type), tuple(each.dims)), functools.partial(read, each))
        for each in model.graph.initializer
    ]
    weights = [each.tensor for each in stored]
    return Description("onnx", place, size, versions, {model.graph.name: signature}, weights, lambda: stored)


def run(path: str, signature: str | None) -> Running:
    """Run with ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of constants that nothing uses
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = [each.name for each in session.get_inputs()]
    found = [each.name for each in session.get_outputs()]
    states = {name: name.removesuffix("_next") for name in found if name.removesuffix("_next") in given}
    names = [states.get(name, name) for name in found]
    return lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)), given
