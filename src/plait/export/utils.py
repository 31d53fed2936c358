"""Input signatures with default values, and SavedModel signatures as functions.

A signature is a sequence with one entry for each positional input; an entry is a pytree of ``tf.TensorSpec``, or of
``TensorSpecWithDefault`` for optional inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..errors import ArgumentError
from ..util.dependencies import require
from .program.checks import check_known

__all__ = [
    "CallableSignatures",
    "TensorSpecWithDefault",
    "make_auto_batching_function",
    "make_e2e_inference_fn",
    "remove_signature_defaults",
    "with_default_args",
]
__dir__ = __all__.copy


@dataclasses.dataclass
class TensorSpecWithDefault:
    """A ``tf.TensorSpec`` with a default value for an omitted input.

    Args:
        tensor_spec: shape, dtype and name of the input.
        default_val: the value; it becomes a tensor of the spec's dtype.
        is_primary: whether ``make_auto_batching_function`` takes the batch size from this input too.

    Raises:
        ArgumentError: the value is ``None`` or does not match the spec.

    Example:
        >>> TensorSpecWithDefault(tf.TensorSpec((None,), tf.float32), [1.0])  # doctest: +SKIP
    """

    tensor_spec: Any
    default_val: Any
    is_primary: bool = False

    def __post_init__(self) -> None:
        tf = require("tensorflow", extra="tensorflow", purpose="to describe an input")
        try:
            value = tf.convert_to_tensor(self.default_val, dtype=self.tensor_spec.dtype)
            fits = self.tensor_spec.shape.is_compatible_with(value.shape)
            problem = None if fits else f"a value of shape {tuple(value.shape)}"
        except (TypeError, ValueError) as error:
            value, problem = None, error
        if problem is not None:
            raise ArgumentError(
                "a default value does not fit its spec",
                at=str(self.tensor_spec),
                found=f"default_val={self.default_val!r}: {problem}",
                expected=f"a {self.tensor_spec.dtype.name} value of the shape {self.tensor_spec.shape}",
                do="TensorSpecWithDefault(tf.TensorSpec((None,), tf.float32), [1.0])",
            )
        self.default_val = value


def _is_default(spec: Any) -> bool:
    return isinstance(spec, TensorSpecWithDefault)


def remove_signature_defaults(input_signature: Any) -> Any:
    """The signature with a plain ``tf.TensorSpec`` for each ``TensorSpecWithDefault``."""
    return jax.tree_util.tree_map(lambda spec: spec.tensor_spec if _is_default(spec) else spec, input_signature)


def with_default_args(tf_fn: Callable[..., Any], input_signature: Sequence[Any]) -> Any:
    """``tf_fn`` as a ``tf.function`` with this signature and its defaults.

    Raises:
        ArgumentError: only a part of an input has defaults, or an input without default follows one with a default.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to make a signature")
    signature = inspect.Signature(_parameters(input_signature))

    def inference(*inputs: Any, **by_name: Any) -> Any:
        bound = signature.bind(*inputs, **by_name)
        bound.apply_defaults()
        return tf_fn(*bound.args)

    inference.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]  # TensorFlow asks it
    return tf.function(inference, input_signature=tuple(remove_signature_defaults(input_signature)), autograph=False)


def make_e2e_inference_fn(model_fn: Callable[..., Any] | Mapping[str, Any], serving_config: Any) -> Any:
    """The traced ``tf.function`` from a signature's inputs to its outputs.

    Args:
        model_fn: a TensorFlow function of one pytree, or such functions by method key.
        serving_config: the ``ServingConfig``.
    """
    infer = serving_config.bind(model_fn, require_numpy=False)[serving_config.get_signature_keys()[0]]
    function = with_default_args(infer, serving_config.get_input_signature())
    _check_outputs(function.get_concrete_function().structured_outputs)
    return function


def _check_outputs(outputs: Any) -> None:
    """SavedModel signatures return a tensor, a sequence of tensors, or a flat dictionary of them."""
    leaves = outputs.values() if isinstance(outputs, Mapping) else outputs
    parts = list(leaves) if isinstance(outputs, (Mapping, list, tuple)) else [outputs]
    names_are_text = not isinstance(outputs, Mapping) or all(isinstance(name, str) for name in outputs)
    if not names_are_text or any(not hasattr(part, "dtype") for part in parts):
        raise ArgumentError(
            "a signature's outputs are nested",
            found=str(jax.tree_util.tree_structure(outputs)),
            expected="a tensor, a sequence of tensors, or a flat dictionary from names to tensors",
            do="flatten them in tf_postprocessor: lambda y: {'logits': y['head']['logits']}",
        )


def _parameters(input_signature: Sequence[Any]) -> list[inspect.Parameter]:
    """A parameter for each positional input."""
    parameters: list[inspect.Parameter] = []
    for index, entry in enumerate(input_signature):
        specs = jax.tree_util.tree_leaves(entry)
        defaults = [_is_default(spec) for spec in specs]
        if any(defaults) and not all(defaults):
            raise ArgumentError(
                "only a part of an input has defaults",
                at=f"input {index}",
                found=f"{sum(defaults)} of {len(defaults)} tensors with a default: {entry!r}",
                expected="defaults for all tensors of one positional input, or for none",
                do="give each tensor a TensorSpecWithDefault, or make them separate inputs in tf_preprocessor",
            )
        default: Any = inspect.Parameter.empty
        if defaults and all(defaults):
            default = jax.tree_util.tree_map(lambda spec: spec.default_val, entry)
        elif parameters and parameters[-1].default is not inspect.Parameter.empty:
            raise ArgumentError(
                "an input without default follows one with a default",
                at=f"input {index}",
                found=repr(entry),
                expected="inputs with defaults last",
                do="change the order of the inputs of tf_preprocessor",
            )
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(f"inputs_{index}", kind, default=default))
    return parameters


def make_auto_batching_function(input_signature: Sequence[Any]) -> Callable[..., Any]:
    """A function that broadcasts every input to the batch size of the primary ones, for ``tf_preprocessor``.

    Inputs whose spec is a plain ``tf.TensorSpec``, or has ``is_primary``, are primary. Other inputs with batch size 1
    are repeated. A positional input that is left out has its default.

    Returns:
        A function of the positional inputs (tensors, arrays or lists of numbers), that returns them as a tuple.

    Raises:
        ArgumentError: the signature has no primary input.
    """
    tf = require("tensorflow", extra="tensorflow", purpose="to batch inputs")
    specs = jax.tree_util.tree_leaves(tuple(input_signature))
    primary = [not _is_default(spec) or spec.is_primary for spec in specs]
    if not any(primary):
        raise ArgumentError(
            "no input of the signature is primary",
            found=repr(input_signature),
            expected="an input whose batch size the others take: a tf.TensorSpec, or a default with is_primary=True",
            do="TensorSpecWithDefault(spec, value, is_primary=True)",
        )
    scalar = next((spec for spec in remove_signature_defaults(specs) if spec.shape.rank == 0), None)
    if scalar is not None:
        raise ArgumentError(
            "an input has no batch axis",
            found=repr(scalar),
            expected="a leading axis of the batch in every input",
            do="tf.TensorSpec((None,), tf.float32)",
        )

    structure = jax.tree_util.tree_structure(tuple(input_signature))
    bind = inspect.Signature(_parameters(input_signature)).bind

    def auto_batch(*inputs: Any) -> Any:
        bound = bind(*inputs)
        bound.apply_defaults()
        given = zip(structure.flatten_up_to(bound.args), remove_signature_defaults(specs), strict=True)
        tensors = [tf.convert_to_tensor(value, spec.dtype) for value, spec in given]
        sizes = [tf.shape(tensor)[0] for tensor, first in zip(tensors, primary, strict=True) if first]
        same = [tf.debugging.assert_equal(size, sizes[0], "primary inputs differ in batch size") for size in sizes[1:]]
        with tf.control_dependencies([check for check in same if check is not None]):
            batch = tf.identity(sizes[0])
        batched = [
            tensor if first else _repeated(tf, tensor, batch) for tensor, first in zip(tensors, primary, strict=True)
        ]
        return jax.tree_util.tree_unflatten(structure, batched)

    return auto_batch


def _repeated(tf: Any, tensor: Any, batch: Any) -> Any:
    """The tensor repeated to the batch size ``batch``; its first size is that or 1."""
    size = tf.shape(tensor)[0]
    message = "an input has neither the batch size 1 nor that of the primary inputs"
    check = tf.debugging.assert_equal(tf.logical_or(size == 1, size == batch), True, message)
    with tf.control_dependencies([] if check is None else [check]):
        repeats = tf.where(size == batch, 1, batch)
        many = tf.concat([[repeats], tf.ones([tf.rank(tensor) - 1], tf.int32)], 0)
        result = tf.tile(tensor, many)
    result.set_shape([None, *tensor.shape[1:]])
    return result


class CallableSignatures:
    """The signatures of a SavedModel as functions of named inputs, with defaults.

    ``tf.saved_model.load`` returns signatures that need every input; TensorFlow Serving and this class do not.

    Args:
        sess: a session of ``tf.compat.v1`` that holds the model.
        signature_defs: ``SignatureDef`` protos by name.
    """

    def __init__(self, sess: Any, signature_defs: Mapping[str, Any]) -> None:
        self._session = sess
        self._signatures = {
            name: functools.partial(self._call, name, definition)
            for name, definition in signature_defs.items()
            if definition.method_name  # definitions without one are the model's initialisation
        }

    @classmethod
    def from_saved_model(
        cls, model_dir: str | os.PathLike[str], tags: Sequence[str] = ("serve",), sess_config: Any = None
    ) -> CallableSignatures:
        """Load the model in a session.

        Args:
            model_dir: folder of the SavedModel.
            tags: the tags of the graph to load.
            sess_config: configuration of the session.
        """
        tf = require("tensorflow", extra="tensorflow", purpose="to load a SavedModel")
        level = tf.compat.v1.logging.get_verbosity()
        tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)  # it warns that this API is deprecated
        try:
            with tf.Graph().as_default():
                session = tf.compat.v1.Session(config=sess_config)
                graph = tf.compat.v1.saved_model.load(session, list(tags), os.path.expanduser(model_dir))
        finally:
            tf.compat.v1.logging.set_verbosity(level)
        return cls(session, graph.signature_def)

    @property
    def signatures(self) -> Mapping[str, Callable[..., dict[str, Any]]]:
        """The functions by signature name; they take arrays by keyword, and return NumPy's by name."""
        return dict(self._signatures)

    def _call(self, name: str, definition: Any, /, **inputs: Any) -> dict[str, Any]:
        tf = require("tensorflow", extra="tensorflow", purpose="to run a SavedModel")
        message, needed = f"the inputs are not those of the signature {name!r}", set(definition.inputs)
        check_known(message, inputs, sorted(needed), "pass the inputs by keyword")
        check_known(f"{message}: some are missing", sorted(needed - set(definition.defaults)), inputs, "pass them too")
        values = {key: tf.make_ndarray(proto) for key, proto in definition.defaults.items()} | inputs
        feed = {
            definition.inputs[key].name: value.numpy() if tf.is_tensor(value) else value
            for key, value in values.items()
        }
        return self._session.run({key: info.name for key, info in definition.outputs.items()}, feed)
