"""A serving signature: names, inputs, and TensorFlow's pre- and postprocessing of a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError
from ..util.dependencies import require
from .program.checks import check_known, check_type
from .utils import remove_signature_defaults

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
        extra_trackable_resources: a structure of TensorFlow resources (tables, variables, …) that the processors use.
        method_key: the method to serve; optional if there is only one.

    Raises:
        ArgumentError: there is no name.

    Example:
        >>> ServingConfig("serving_default", [tf.TensorSpec((None, 2), tf.float32, name="x")])  # doctest: +SKIP
    """

    signature_key: str | Sequence[str]
    input_signature: Sequence[Any] | None = None
    tf_preprocessor: Callable[..., Any] | None = None
    tf_postprocessor: Callable[..., Any] | None = None
    extra_trackable_resources: Any = None
    method_key: str | None = None

    def __post_init__(self) -> None:
        keys = self.get_signature_keys()
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise ArgumentError(
                "a signature needs a name",
                found=f"signature_key={self.signature_key!r}",
                expected="a name, or a sequence of names",
                do="ServingConfig('serving_default', ...)",
            )
        signature = self.input_signature
        if signature is not None:
            _check_specs(signature, self._place)

    @property
    def _place(self) -> str:
        return f"signature {self.get_signature_keys()[0]!r}"

    def get_signature_keys(self) -> list[str]:
        """The signature's names."""
        return [self.signature_key] if isinstance(self.signature_key, str) else list(self.signature_key)

    def get_input_signature(self, required: bool = True) -> Any:
        """The input signature given here, or else the preprocessor's own.

        Raises:
            ArgumentError: there is neither, and it is required.
        """
        signature = self.input_signature
        if signature is None:
            signature = getattr(self.tf_preprocessor, "input_signature", None)
        if signature is None and required:
            other = "a preprocessor without input_signature" if self.tf_preprocessor else "no preprocessor"
            raise ArgumentError(
                "there is no input signature",
                at=self._place,
                found=f"input_signature=None, and {other}",
                expected="a tf.TensorSpec for each input",
                do="ServingConfig(..., input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')])",
            )
        return signature

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
        before, after = _as_graph(self.tf_preprocessor), _as_graph(self.tf_postprocessor)

        def infer(*inputs: Any) -> Any:
            x = before(*self._as_tensors(inputs)) if before else self._one_input(inputs)
            outputs = method(_to_numpy(x) if before and require_numpy else x)
            if after:
                # TensorFlow does not accept every JAX array.
                outputs = after(jax.tree_util.tree_map(np.asarray, outputs) if require_numpy else outputs)
                outputs = _to_numpy(outputs) if require_numpy else outputs
            return outputs

        return dict.fromkeys(self.get_signature_keys(), infer)

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


def _check_specs(signature: Any, place: str) -> None:
    tf = require("tensorflow", extra="tensorflow", purpose="to describe inputs")
    advice = "input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')]"
    message = "an input signature has one entry for each positional input"
    check_type(message, signature, (list, tuple), "a list or tuple of pytrees of tf.TensorSpec", advice, at=place)
    message, expected = "an input signature has an entry that is not a spec", "tf.TensorSpec or TensorSpecWithDefault"
    for leaf in jax.tree_util.tree_leaves(remove_signature_defaults(list(signature))):
        check_type(message, leaf, tf.TypeSpec, expected, advice, at=place)


def _as_graph(processor: Callable[..., Any] | None) -> Any:
    """The processor as a TensorFlow graph, as in the saved model."""
    if processor is None or hasattr(processor, "get_concrete_function"):
        return processor
    return require("tensorflow", extra="tensorflow", purpose="to run a processor").function(processor)


def _to_numpy(tree: Any) -> Any:
    tf = require("tensorflow", extra="tensorflow", purpose="to run a processor")
    return jax.tree_util.tree_map(lambda leaf: leaf.numpy() if tf.is_tensor(leaf) else leaf, tree)
