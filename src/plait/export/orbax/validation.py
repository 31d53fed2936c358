"""Compares a saved model with its original: outputs and times of each signature on the same inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from ...errors import ArgumentTypeError
from ...ground.dependencies import require
from ...ground.words import describe_type
from ..program.checks import check_known
from .serving import ServingConfig
from .signatures import remove_signature_defaults
from .validation_job import ValidationJob, checked_batches
from .validation_report import ValidationReport, ValidationReportOption, ValidationSingleJobResult, compared


class ValidationManager:
    """Compares a loaded SavedModel with its original JAX functions.

    Args:
        module: the ``JaxModule``, or a mapping from method keys to JAX functions of one argument.
        serving_configs: the exported signatures.
        model_inputs: batches for all signatures, or a mapping from signature names to batches. A batch is a mapping of
            inputs by name, a sequence of positional inputs, or one input.

    Raises:
        ArgumentError: a signature has no batches, or there are batches for an unknown signature.

    Example:
        >>> manager = plait.export.validate.ValidationManager(module, configs, batches)  # doctest: +SKIP
        >>> manager.validate(tf.saved_model.load("model"))["serving_default"].status  # doctest: +SKIP
        <Status.Pass: 1>
    """

    def __init__(
        self,
        module: Any,
        serving_configs: Sequence[ServingConfig],
        model_inputs: Sequence[Any] | Mapping[str, Sequence[Any]],
    ) -> None:
        methods = module if isinstance(module, Mapping) else getattr(module, "jax_methods", None)
        if methods is None:
            raise ArgumentTypeError(
                "ValidationManager takes a JaxModule",
                found=describe_type(module),
                expected="a JaxModule, or a mapping from method keys to JAX functions",
                do="ValidationManager(module, configs, batches)",
            )
        self._jobs: dict[str, tuple[ServingConfig, Callable[..., Any], list[Any]]] = {}
        for config in serving_configs:
            for key, function in config.bind(methods, require_numpy=True).items():
                batches = model_inputs.get(key) if isinstance(model_inputs, Mapping) else model_inputs
                advice = "ValidationManager(module, configs, [batch])"
                self._jobs[key] = (config, function, checked_batches(batches, f"signature {key!r}", advice))
        named = model_inputs if isinstance(model_inputs, Mapping) else {}
        message = "there are inputs for an unknown signature"
        check_known(message, named, self._jobs, "name the inputs after a signature_key")

    def validate(
        self, loaded_model: Any, with_xprof: bool = False, report_option: ValidationReportOption | None = None
    ) -> dict[str, ValidationReport]:
        """Run every batch through both, and compare.

        Args:
            loaded_model: the result of ``tf.saved_model.load``, or a mapping from signature names to functions.
            with_xprof: whether to record profiles, in the folders ``xprof_url`` of the reports.
            report_option: tolerances, and the output of reports.

        Returns:
            The report of each signature.

        Raises:
            ArgumentError: the loaded model lacks a signature, or outputs have different structures.
        """
        option = report_option or ValidationReportOption()
        signatures = getattr(loaded_model, "signatures", loaded_model)
        reports = {}
        for key, (config, baseline, batches) in self._jobs.items():
            advice = "load the model that was exported with these configs"
            check_known("the loaded model lacks a signature", [key], signatures, advice, at=f"signature {key!r}")
            signature = config.get_input_signature(required=False)
            job = ValidationJob(
                lambda batch, f=baseline, s=signature: f(*positional_inputs(s, batch)),
                lambda batch, f=signatures[key], s=signature: _call(f, batch, s),
                batches,
                with_xprof,
            )
            reports[key] = ValidationReport(job.calc_baseline_result(), job.calc_candidate_result(), option)
        if option.print_debug_info:
            for key, report in reports.items():
                print(f"{key}: {report.to_json(indent=2)}")
        if option.output_report_path is not None:
            text = json.dumps({key: report.to_dict() for key, report in reports.items()}, indent=2)
            Path(option.output_report_path).write_text(text + "\n", encoding="utf-8")
        return reports

    @staticmethod
    def check_input(inputs: Any, batch_mode: bool = True) -> None:
        """Check the batches of a validation.

        Args:
            inputs: a list of batches, or one batch.
            batch_mode: whether they are a list; one batch may be anything.

        Raises:
            ArgumentError: it is not a list, or empty.
        """
        if batch_mode:
            checked_batches(inputs, "inputs", "ValidationManager.check_input([batch])")

    @staticmethod
    def check_output(baseline_result: ValidationSingleJobResult, candidate_result: ValidationSingleJobResult) -> None:
        """Check that two results can be compared: as many batches, of equal structure, shapes and kinds of numbers.

        Raises:
            ArgumentError: they cannot; the message says what differs.
        """
        compared(baseline_result, candidate_result)


def positional_inputs(signature: Sequence[Any] | None, batch: Any) -> Sequence[Any]:
    """A batch as the positional inputs of a bound function; names are those of the input signature."""
    if isinstance(batch, (list, tuple)):
        return batch
    if not isinstance(batch, Mapping) or signature is None:
        return [batch]
    specs = remove_signature_defaults(list(signature))
    if len(specs) == 1 and isinstance(specs[0], Mapping) and set(specs[0]) == set(batch):
        return [batch]
    if {spec.name for spec in jax.tree_util.tree_leaves(specs)} == set(batch):
        return jax.tree_util.tree_map(lambda spec: batch[spec.name], specs)
    return [batch]


def _call(function: Callable[..., Any], batch: Any, signature: Sequence[Any] | None) -> Any:
    """Call a candidate on a batch. A loaded signature takes tensors, and several inputs only by name."""
    specs = dict(getattr(function, "structured_input_signature", ((), {}))[1])
    inputs = batch if isinstance(batch, Mapping) else _by_name(batch, signature, list(specs))
    if inputs is None:
        return function(*batch) if isinstance(batch, (list, tuple)) else function(batch)
    tf = require("tensorflow", extra="tensorflow", purpose="to run a SavedModel")
    tensors = {
        name: tf.convert_to_tensor(value, specs[name].dtype) if name in specs and not tf.is_tensor(value) else value
        for name, value in inputs.items()
    }
    return function(**tensors)


def _by_name(batch: Any, signature: Sequence[Any] | None, wanted: list[str]) -> dict[str, Any] | None:
    """A batch of positional inputs under the names of a loaded signature, if the names can be determined."""
    values = list(batch) if isinstance(batch, (list, tuple)) else [batch]
    if len(wanted) == len(values) == 1:
        return {wanted[0]: values[0]}
    if signature is None or len(signature) != len(values):
        return None
    specs, structure = jax.tree_util.tree_flatten(remove_signature_defaults(list(signature)))
    names = [spec.name or f"inputs_{index}" for index, spec in enumerate(specs)]
    if set(names) != set(wanted):
        return None
    return dict(zip(names, structure.flatten_up_to(values), strict=True))
