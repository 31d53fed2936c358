"""A serving signature: names, inputs, and TensorFlow's pre- and postprocessing of a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ...errors import ArgumentError
from ...ground.dependencies import require
from ..program.checks import check_known, check_type
from .config import config as settings
from .data_processors import DataProcessor, TfDataProcessor
from .pipeline import Pipeline, by_key, connected, named_by_key, named_outputs, run_in_a_row, run_steps
from .signatures import remove_signature_defaults, with_default_args
from .typing import info_of

Method = Callable[[Any], Any]


@dataclasses.dataclass
class ServingConfig:
    """How a method of a ``JaxModule`` is served: ``postprocess(method(preprocess(*inputs)))``.

    Args:
        signature_key: the signature's name, or several names for the same signature.
        input_signature: for each positional input, a pytree of ``tf.TensorSpec`` or ``TensorSpecWithDefault``. These
            are inputs of the preprocessor if there is one, of the method otherwise. ``None`` means the signature of
            the preprocessor, which must be a ``tf.function`` with an ``input_signature``.
        tf_preprocessor: a TensorFlow function of the inputs that returns the method's one input, a pytree.
        tf_postprocessor: a TensorFlow function of the method's outputs.
        preprocessors: steps before the method, of ``plait.export.data_processors``, instead of ``tf_preprocessor``.
            With keys they run in the order of their dependencies, and the method is an ``ApplyFnInfo``; without keys
            each takes the output of the previous one.
        postprocessors: steps after the method, instead of ``tf_postprocessor``.
        extra_trackable_resources: a structure of TensorFlow resources (tables, variables, …) that the processors use.
        method_key: the method to serve; optional if there is only one.
        obm_kwargs: must be empty.

    Raises:
        ArgumentError: there is no name, arguments exclude each other, or ``obm_kwargs`` is not empty.

    Example:
        >>> ServingConfig("serving_default", [tf.TensorSpec((None, 2), tf.float32, name="x")])  # doctest: +SKIP
    """

    signature_key: str | Sequence[str]
    input_signature: Sequence[Any] | None = None
    tf_preprocessor: Callable[..., Any] | None = None
    tf_postprocessor: Callable[..., Any] | None = None
    preprocessors: Sequence[DataProcessor] = ()
    postprocessors: Sequence[DataProcessor] = ()
    extra_trackable_resources: Any = None
    method_key: str | None = None
    obm_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        keys = self.get_signature_keys()
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise ArgumentError(
                "a signature needs a name",
                found=f"signature_key={self.signature_key!r}",
                expected="a name, or a sequence of names",
                do="ServingConfig('serving_default', ...)",
            )
        if self.obm_kwargs:
            raise ArgumentError(
                "obm_kwargs does not apply to a SavedModel",
                at=self._place,
                found=f"obm_kwargs={self.obm_kwargs!r}",
                expected="nothing",
                do="omit it",
            )
        _check_steps(self)
        signature = self.input_signature
        if signature is not None:
            _check_specs(signature, self._place)

    @property
    def _place(self) -> str:
        return f"signature {self.get_signature_keys()[0]!r}"

    @property
    def _before(self) -> list[DataProcessor]:
        return [TfDataProcessor(self.tf_preprocessor)] if self.tf_preprocessor else list(self.preprocessors)

    @property
    def _after(self) -> list[DataProcessor]:
        return [TfDataProcessor(self.tf_postprocessor)] if self.tf_postprocessor else list(self.postprocessors)

    def get_signature_keys(self) -> list[str]:
        """The signature's names."""
        return [self.signature_key] if isinstance(self.signature_key, str) else list(self.signature_key)

    def get_input_signature(self, required: bool = True) -> Any:
        """The input signature given here, or else the preprocessor's own.

        Raises:
            ArgumentError: there is neither, and it is required.
        """
        signature = self.input_signature
        if signature is None and self._before:
            signature = self._before[0].input_signature
        if signature is None and required:
            other = "a preprocessor without input_signature" if self._before else "no preprocessor"
            raise ArgumentError(
                "there is no input signature",
                at=self._place,
                found=f"input_signature=None, and {other}",
                expected="a tf.TensorSpec for each input",
                do="ServingConfig(..., input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')])",
            )
        return signature

    def get_traced_signature(self, infer_step_fns: Method | Mapping[str, Method]) -> Any:
        """The input signature with a name for each input of a pipeline that is connected by keys."""
        signature = self.get_input_signature()
        return signature if self._pipeline(self.get_infer_step(infer_step_fns)) is None else named_by_key(signature)

    def get_infer_step(self, infer_step_fns: Method | Mapping[str, Method]) -> Method:
        """The method that is served.

        Raises:
            ArgumentError: ``method_key`` is unknown, or missing although there are several methods.
        """
        if not isinstance(infer_step_fns, Mapping):
            return infer_step_fns
        keys = sorted(infer_step_fns)
        key: Any = keys[0] if self.method_key is None and len(keys) == 1 else self.method_key
        advice = f"ServingConfig(..., method_key={keys[0] if keys else 'predict'!r})"
        check_known("method_key is not the key of a method", [key], keys, advice, at=self._place)
        return infer_step_fns[key]

    def bind(
        self, infer_step_fns: Method | Mapping[str, Method], require_numpy: bool = True
    ) -> dict[str, Callable[..., Any]]:
        """The function from the signature's inputs to its outputs, by each of its names.

        Args:
            infer_step_fns: a method, or methods by key: ``module.jax_methods`` or ``module.methods``.
            require_numpy: whether tensors become NumPy arrays after each processor. JAX methods need this; TensorFlow
                methods do not.
        """
        method = self.get_infer_step(infer_step_fns)
        pipeline = self._pipeline(method)
        if pipeline is None:
            infer = self._bound_in_a_row(method, require_numpy)
        else:
            infer = self._bound_by_keys(pipeline, method, require_numpy)
        return dict.fromkeys(self.get_signature_keys(), infer)

    def bind_preprocessing(self, infer_step_fns: Method | Mapping[str, Method]) -> Callable[..., list[Any]]:
        """Only the preprocessing: a TensorFlow function from the signature's inputs to a list of tensors.

        Raises:
            ArgumentError: there is no preprocessor.
        """
        if not self._before:
            raise ArgumentError(
                "there is no preprocessor to export",
                at=self._place,
                found="neither tf_preprocessor nor preprocessors, with obx_export_tf_preprocess_only",
                expected="a preprocessor",
                do="ServingConfig(..., tf_preprocessor=...), or omit the signature",
            )
        pipeline = self._pipeline(self.get_infer_step(infer_step_fns))
        if pipeline is None:
            before = _as_graph(run_in_a_row, self._before)
            return lambda *inputs: jax.tree_util.tree_leaves(before(*inputs))

        def prepare(*inputs: Any) -> list[Any]:
            values = by_key(pipeline, inputs)
            values |= run_steps(pipeline.before, values)
            return [values[key] for key in pipeline.method.input_keys]

        return prepare

    def _pipeline(self, method: Method) -> Pipeline | None:
        """The steps by their keys, if they have keys."""
        steps, info = [*self._before, *self._after], info_of(method)
        if not any(step.has_keys for step in steps) and (steps or info is None):
            return None
        if info is None:
            raise ArgumentError(
                "processors with keys need a method with keys",
                at=self._place,
                found=f"{', '.join(map(repr, steps))}, and a method without keys",
                expected="an ApplyFnInfo as the apply_fn of the JaxModule",
                do="ApplyFnInfo(apply_fn, input_keys=('x',), output_keys=('y',))",
            )
        return connected(self.get_input_signature(), self.preprocessors, info, self.postprocessors)

    def _bound_in_a_row(self, method: Method, require_numpy: bool) -> Callable[..., Any]:
        before, after = _as_graph(run_in_a_row, self._before), _as_graph(run_in_a_row, self._after)

        def infer(*inputs: Any) -> Any:
            x = before(*self._as_tensors(inputs)) if before else self._one_input(inputs)
            outputs = method(_to_numpy(x) if before and require_numpy else x)
            if after:
                outputs = after(_for_tensorflow(outputs, require_numpy))
                outputs = _to_numpy(outputs) if require_numpy else outputs
            return outputs

        return infer

    def _bound_by_keys(self, pipeline: Pipeline, method: Method, require_numpy: bool) -> Callable[..., Any]:
        before, after = _as_graph(run_steps, pipeline.before), _as_graph(run_steps, pipeline.after)

        def infer(*inputs: Any) -> Any:
            values = by_key(pipeline, self._as_tensors(inputs))
            values |= before(values) if before else {}
            x = {key: values[key] for key in pipeline.method.input_keys}
            outputs = method(_to_numpy(x) if require_numpy else x)
            outputs = named_outputs(pipeline.method.output_keys, outputs, "the method")
            values |= _for_tensorflow(outputs, require_numpy)
            values |= after(values) if after else {}
            found = {key: values[key] for key in pipeline.outputs}
            return _to_numpy(found) if require_numpy else found

        return infer

    def _one_input(self, inputs: Sequence[Any]) -> Any:
        if len(inputs) != 1:
            raise ArgumentError(
                "a method takes one input, and there is no preprocessor to combine several",
                at=self._place,
                found=f"{len(inputs)} inputs",
                expected="one input, which may be a pytree",
                do="pack them: input_signature=[{'a': spec_a, 'b': spec_b}], or tf_preprocessor=lambda a, b: (a, b)",
            )
        return inputs[0]

    def _as_tensors(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs as the served signature would receive them; for example, a list as one tensor."""
        tf = require("tensorflow", extra="tensorflow", purpose="to run a preprocessor")
        signature = self.get_input_signature(required=False)
        if signature is None or len(signature) != len(inputs):
            return inputs
        specs, structure = jax.tree_util.tree_flatten(tuple(remove_signature_defaults(signature)))
        try:
            values = structure.flatten_up_to(tuple(inputs))
        except ValueError:
            return inputs  # the preprocessor raises its own error
        return jax.tree_util.tree_unflatten(
            structure,
            [
                value if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype=spec.dtype)
                for value, spec in zip(values, specs, strict=True)
            ],
        )


def make_e2e_inference_fn(model_fn: Callable[..., Any] | Mapping[str, Any], serving_config: ServingConfig) -> Any:
    """The traced ``tf.function`` from a signature's inputs to its outputs.

    Args:
        model_fn: a TensorFlow function of one pytree, or such functions by method key.
        serving_config: inputs and processors.
    """
    key = serving_config.get_signature_keys()[0]
    signature = serving_config.get_traced_signature(model_fn)
    if settings.obx_export_tf_preprocess_only:
        infer = serving_config.bind_preprocessing(model_fn)
    else:
        infer = serving_config.bind(model_fn, require_numpy=False)[key]
    function = with_default_args(infer, signature)
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


def _check_steps(config: ServingConfig) -> None:
    for name in ("preprocessors", "postprocessors"):
        message, advice = f"{name} must be steps of a pipeline", f"{name}=[TfDataProcessor(function)]"
        expected = "a sequence of TfDataProcessor and JaxDataProcessor, of plait.export.data_processors"
        check_type(message, getattr(config, name), (list, tuple), expected, advice, at=config._place)
        for step in getattr(config, name):
            check_type(message, step, DataProcessor, expected, advice, at=config._place)
    steps = [*config.preprocessors, *config.postprocessors]
    if steps and (config.tf_preprocessor is not None or config.tf_postprocessor is not None):
        raise ArgumentError(
            "tf_preprocessor and preprocessors exclude each other",
            at=config._place,
            found="tf_preprocessor or tf_postprocessor, and preprocessors or postprocessors",
            expected="one of the two",
            do="preprocessors=[TfDataProcessor(tf_preprocessor)], postprocessors=[TfDataProcessor(tf_postprocessor)]",
        )
    if any(step.has_keys for step in steps):
        lacking = next((step for step in steps if not (step.input_keys and step.output_keys)), None)
        if lacking is not None:
            raise ArgumentError(
                "a step of a pipeline lacks keys that the others have",
                at=config._place,
                found=f"{lacking.name!r} with input_keys={lacking.input_keys}, output_keys={lacking.output_keys}",
                expected="input_keys and output_keys for every step, or for none",
                do="TfDataProcessor(function, name, input_keys=('x',), output_keys=('y',))",
            )


def _check_specs(signature: Any, place: str) -> None:
    tf = require("tensorflow", extra="tensorflow", purpose="to describe inputs")
    advice = "input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')]"
    message = "an input signature has one entry for each positional input"
    check_type(message, signature, (list, tuple), "a list or tuple of pytrees of tf.TensorSpec", advice, at=place)
    message, expected = "an input signature has an entry that is not a spec", "tf.TensorSpec or TensorSpecWithDefault"
    for leaf in jax.tree_util.tree_leaves(remove_signature_defaults(list(signature))):
        check_type(message, leaf, tf.TypeSpec, expected, advice, at=place)


def _as_graph(run: Callable[..., Any], steps: Sequence[DataProcessor]) -> Any:
    """Steps as one TensorFlow graph, as in the saved model, or ``None`` without steps.

    Each step traces its own part, so this function needs no autograph.
    """
    if not steps:
        return None
    tf = require("tensorflow", extra="tensorflow", purpose="to run a processor")
    return tf.function(lambda *inputs: run(steps, *inputs), autograph=False)


def _for_tensorflow(outputs: Any, from_jax: bool) -> Any:
    """Convert to NumPy arrays, since TensorFlow does not accept every JAX array."""
    return jax.tree_util.tree_map(np.asarray, outputs) if from_jax else outputs


def _to_numpy(tree: Any) -> Any:
    tf = require("tensorflow", extra="tensorflow", purpose="to run a processor")
    return jax.tree_util.tree_map(lambda leaf: leaf.numpy() if tf.is_tensor(leaf) else leaf, tree)
