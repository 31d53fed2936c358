"""A serving signature: names, inputs, and what TensorFlow does before and after a method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ArgumentError, ArgumentTypeError
from ..words import describe_type
from .dependencies import require
from .signatures import remove_signature_defaults

Method = Callable[[Any], Any]


@dataclasses.dataclass
class ServingConfig:
    """How a method of a ``JaxModule`` is served: ``postprocess(method(preprocess(*inputs)))``.

    Args:
        signature_key: the signature's name, or several names for the same signature.
        input_signature: for each positional input, a pytree of ``tf.TensorSpec`` or ``TensorSpecWithDefault``. These
            are inputs of the preprocessor if there is one, of the method otherwise. ``None`` takes the signature of
            the preprocessor, which is then a ``tf.function`` with an ``input_signature``.
        tf_preprocessor: a TensorFlow function of the inputs that returns the method's one input, a pytree.
        tf_postprocessor: a TensorFlow function of the method's outputs.
        preprocessors: must be empty.
        postprocessors: must be empty.
        extra_trackable_resources: a structure of TensorFlow resources (tables, variables, …) that the processors use.
        method_key: which method; may be left out where there is one.
        obm_kwargs: must be empty.

    Raises:
        ArgumentError: no name, or an argument that must be empty and is not.

    Example:
        >>> ServingConfig("serving_default", [tf.TensorSpec((None, 2), tf.float32, name="x")])  # doctest: +SKIP
    """

    signature_key: str | Sequence[str]
    input_signature: Sequence[Any] | None = None
    tf_preprocessor: Callable[..., Any] | None = None
    tf_postprocessor: Callable[..., Any] | None = None
    preprocessors: Sequence[Any] = ()
    postprocessors: Sequence[Any] = ()
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
        for name in ("preprocessors", "postprocessors", "obm_kwargs"):
            if getattr(self, name):
                raise ArgumentError(
                    f"{name} belongs to another format than a SavedModel",
                    at=f"signature {keys[0]!r}",
                    found=f"{name}={getattr(self, name)!r}",
                    expected="nothing",
                    do="use tf_preprocessor and tf_postprocessor",
                )
        signature = self.input_signature
        if signature is not None and not isinstance(signature, (list, tuple)):
            raise ArgumentTypeError(
                "an input signature has one entry for each positional input",
                at=f"signature {keys[0]!r}",
                found=describe_type(signature),
                expected="a list or tuple of pytrees of tf.TensorSpec",
                do="input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')]",
            )
        if signature is not None:
            _check_specs(signature, keys[0])

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
            raise ArgumentError(
                "there is no input signature",
                at=f"signature {self.get_signature_keys()[0]!r}",
                found="input_signature=None, and "
                + ("no preprocessor" if self.tf_preprocessor is None else "a preprocessor without input_signature"),
                expected="a tf.TensorSpec for each input",
                do="ServingConfig(..., input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')])",
            )
        return signature

    def get_infer_step(self, infer_step_fns: Method | Mapping[str, Method]) -> Method:
        """The method that is served.

        Raises:
            ArgumentError: a ``method_key`` that there is not, or none where there are several methods.
        """
        if not isinstance(infer_step_fns, Mapping):
            return infer_step_fns
        keys = sorted(infer_step_fns)
        if self.method_key is None and len(keys) == 1:
            return infer_step_fns[keys[0]]
        if self.method_key is None or self.method_key not in infer_step_fns:
            raise ArgumentError(
                "the signature does not say which method it serves"
                if self.method_key is None
                else "the signature serves a method that there is not",
                at=f"signature {self.get_signature_keys()[0]!r}",
                found=f"method_key={self.method_key!r}",
                expected=f"one of {', '.join(map(repr, keys))}",
                do=f"ServingConfig(..., method_key={keys[0] if keys else 'predict'!r})",
            )
        return infer_step_fns[self.method_key]

    def bind(
        self, infer_step_fns: Method | Mapping[str, Method], require_numpy: bool = True
    ) -> dict[str, Callable[..., Any]]:
        """The function from the signature's inputs to its outputs, by each of its names.

        Args:
            infer_step_fns: a method, or methods by key: ``module.jax_methods`` or ``module.methods``.
            require_numpy: whether tensors become NumPy arrays after each processor. For JAX methods they must; for
                TensorFlow's they need not.
        """
        method = self.get_infer_step(infer_step_fns)
        before, after = _as_tf_function(self.tf_preprocessor), _as_tf_function(self.tf_postprocessor)

        def infer(*inputs: Any) -> Any:
            if before is not None:
                x = before(*self._as_tensors(inputs))
                x = _to_numpy(x) if require_numpy else x
            else:
                x = self._one_input(inputs)
            outputs = method(x)
            if after is not None:
                if require_numpy:  # TensorFlow takes NumPy arrays, and not all that JAX may return
                    outputs = jax.tree_util.tree_map(np.asarray, outputs)
                outputs = after(outputs)
                outputs = _to_numpy(outputs) if require_numpy else outputs
            return outputs

        return dict.fromkeys(self.get_signature_keys(), infer)

    def _one_input(self, inputs: Sequence[Any]) -> Any:
        if len(inputs) != 1:
            raise ArgumentError(
                "a method takes one input, and there is no preprocessor to make one of several",
                at=f"signature {self.get_signature_keys()[0]!r}",
                found=f"{len(inputs)} inputs",
                expected="one input, which may be a pytree",
                do="pack them: input_signature=[{'a': spec_a, 'b': spec_b}], or tf_preprocessor=lambda a, b: (a, b)",
            )
        return inputs[0]

    def _as_tensors(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs as the served signature would get them: lists, for example, as one tensor."""
        tf = require("tensorflow", extra="tensorflow", purpose="to run a preprocessor")
        signature = self.get_input_signature(required=False)
        if signature is None or len(signature) != len(inputs):
            return inputs
        specs, structure = jax.tree_util.tree_flatten(tuple(remove_signature_defaults(signature)))
        try:
            values = structure.flatten_up_to(tuple(inputs))
        except ValueError:
            return inputs  # the preprocessor says what it wants
        return jax.tree_util.tree_unflatten(
            structure,
            [
                value if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype=spec.dtype)
                for value, spec in zip(values, specs, strict=True)
            ],
        )


def _check_specs(signature: Sequence[Any], key: str) -> None:
    tf = require("tensorflow", extra="tensorflow", purpose="to describe inputs")
    for leaf in jax.tree_util.tree_leaves(remove_signature_defaults(list(signature))):
        if not isinstance(leaf, tf.TypeSpec):
            raise ArgumentTypeError(
                "an input signature has an entry that is no spec",
                at=f"signature {key!r}",
                found=describe_type(leaf),
                expected="tf.TensorSpec or TensorSpecWithDefault",
                do="input_signature=[tf.TensorSpec((None, 2), tf.float32, name='x')]",
            )


def _as_tf_function(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Processors run as TensorFlow graphs, here as in the saved model."""
    if function is None or hasattr(function, "get_concrete_function"):
        return function
    tf = require("tensorflow", extra="tensorflow", purpose="to run a processor")
    return tf.function(function)


def _to_numpy(tree: Any) -> Any:
    tf = require("tensorflow", extra="tensorflow", purpose="to run a processor")
    return jax.tree_util.tree_map(lambda leaf: leaf.numpy() if tf.is_tensor(leaf) else leaf, tree)
