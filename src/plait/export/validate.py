"""Validates exported files: any file with given outputs, or a SavedModel with the module that it was made from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .program.checks import check_known, check_some
from .proof.report import ExportReport, validate_export
from .serving_config import ServingConfig
from .utils import remove_signature_defaults

if TYPE_CHECKING:
    from .jax_module import JaxModule  # importing it loads TensorFlow

__all__ = ["ExportReport", "ValidationManager", "validate_export"]
__dir__ = __all__.copy


class ValidationManager:
    """Compares the signatures of a SavedModel with the JAX functions that they were made from.

    Args:
        module: the exported module.
        serving_configs: its signatures.
        model_inputs: batches for all signatures, or a mapping from signature names to batches. A batch is a mapping of
            inputs by name, a sequence of positional inputs, or one input.

    Raises:
        ArgumentError: a signature has no batches, or there are batches for an unknown signature.

    Example:
        >>> manager = plait.export.validate.ValidationManager(module, configs, batches)  # doctest: +SKIP
        >>> manager.validate("model")["serving_default"].passed  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        module: JaxModule,
        serving_configs: Sequence[ServingConfig],
        model_inputs: Sequence[Any] | Mapping[str, Sequence[Any]],
    ) -> None:
        self._module = module
        self._configs = {key: config for config in serving_configs for key in config.get_signature_keys()}
        by_key = model_inputs if isinstance(model_inputs, Mapping) else dict.fromkeys(self._configs, model_inputs)
        message = "there are inputs for an unknown signature"
        check_known(message, by_key, self._configs, "name the inputs after a signature_key")
        self._batches = {key: by_key.get(key, ()) for key in self._configs}
        for key, batches in self._batches.items():
            advice = "ValidationManager(module, configs, [batch])"
            check_some("a validation needs inputs", "model_inputs", batches, advice, at=f"signature {key!r}")

    def validate(
        self, model_path: str | os.PathLike[str], *, tolerance: float | None = None, python: str | None = None
    ) -> dict[str, ExportReport]:
        """Run each signature of the file in a new process, and compare it with its method and processors.

        Args:
            model_path: the folder that ``ExportManager.save`` wrote.
            tolerance: as in ``validate_export``.
            python: as in ``validate_export``.

        Returns:
            The report of each signature.

        Raises:
            ExportError: the file could not be loaded or run.
        """
        reports = {}
        for key, config in self._configs.items():
            baseline = config.bind(self._module.jax_methods)[key]
            specs = remove_signature_defaults(list(config.get_input_signature()))
            positional = [_positional(specs, batch) for batch in self._batches[key]]
            inputs = [_by_name(specs, batch) for batch in positional]
            outputs = [_named(baseline(*batch)) for batch in positional]
            reports[key] = validate_export(
                "saved_model", model_path, inputs, outputs, tolerance=tolerance, signature=key, python=python
            )
        return reports


def _positional(specs: list[Any], batch: Any) -> Sequence[Any]:
    """A batch as the positional inputs of a bound function; names are those of the input signature."""
    if isinstance(batch, (list, tuple)):
        return batch
    if isinstance(batch, Mapping) and {spec.name for spec in jax.tree_util.tree_leaves(specs)} == set(batch):
        return jax.tree_util.tree_map(lambda spec: batch[spec.name], specs)
    return [batch]


def _by_name(specs: list[Any], inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    """Positional inputs under the names that a loaded signature has for them."""
    leaves, structure = jax.tree_util.tree_flatten(specs)
    values = structure.flatten_up_to(list(inputs))
    return {
        spec.name or f"inputs_{index}": np.asarray(value, spec.dtype.as_numpy_dtype)
        for index, (spec, value) in enumerate(zip(leaves, values, strict=True))
    }


def _named(outputs: Any) -> dict[str, Any]:
    """Outputs under the names that a loaded signature has for them."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return {f"output_{index}": output for index, output in enumerate(several)}
