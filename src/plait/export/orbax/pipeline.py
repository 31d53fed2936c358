"""Pipelines of steps connected by keys: their order, and the values passed between them.

A value keeps the key that it got from the input signature, or from the step that returned it. So the keys determine the
order of the steps, and a step after the method may also take an input of the signature.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...errors import ArgumentError
from ...ground.words import describe_type
from ..program.checks import check_different, check_known
from .data_processors import DataProcessor
from .signatures import TensorSpecWithDefault
from .typing import ApplyFnInfo

Values = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Steps in their order before and after a method; created by ``connected``."""

    inputs: tuple[str, ...]
    before: tuple[DataProcessor, ...]
    method: ApplyFnInfo
    after: tuple[DataProcessor, ...]
    outputs: tuple[str, ...]


def connected(
    input_signature: Sequence[Any],
    preprocessors: Sequence[DataProcessor],
    method: ApplyFnInfo,
    postprocessors: Sequence[DataProcessor],
) -> Pipeline:
    """The steps in the order required by their keys. Outputs are the values that no step after the method uses.

    Raises:
        ArgumentError: a key has no source or two, or the steps form a cycle.
    """
    inputs = _input_keys(input_signature)
    givers = dict.fromkeys(inputs, "the input signature")
    before = _in_order(preprocessors, givers)
    _need(method.input_keys, "the method", givers)
    _give(method.output_keys, "the method", givers)
    after = _in_order(postprocessors, givers)
    taken = {key for step in after for key in step.input_keys}
    given = [*method.output_keys, *(key for step in after for key in step.output_keys)]
    return Pipeline(inputs, before, method, after, tuple(key for key in given if key not in taken))


def by_key(pipeline: Pipeline, inputs: Sequence[Any]) -> Values:
    """The positional inputs of a signature under their keys."""
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        return {key: inputs[0][key] for key in pipeline.inputs}
    return dict(zip(pipeline.inputs, inputs, strict=True))


def run_steps(steps: Sequence[DataProcessor], values: Mapping[str, Any]) -> Values:
    """The values that the steps add."""
    known = dict(values)
    for step in steps:
        known |= named_outputs(step.output_keys, step(*(known[key] for key in step.input_keys)), repr(step.name))
    return {key: known[key] for step in steps for key in step.output_keys}


def run_in_a_row(steps: Sequence[DataProcessor], *inputs: Any) -> Any:
    """Run steps without keys: each takes the output of the previous one."""
    outputs = steps[0](*inputs)
    for step in steps[1:]:
        outputs = step(outputs)
    return outputs


def named_outputs(keys: Sequence[str], outputs: Any, who: str) -> Values:
    """The outputs of a step or method, by its keys.

    Raises:
        ArgumentError: the outputs do not match the keys.
    """
    if isinstance(outputs, Mapping) and set(outputs) == set(keys):
        return {key: outputs[key] for key in keys}
    if isinstance(outputs, (list, tuple)) and len(outputs) == len(keys):
        return dict(zip(keys, outputs, strict=True))
    if len(keys) == 1 and not isinstance(outputs, (Mapping, list, tuple)):
        return {keys[0]: outputs}
    raise ArgumentError(
        f"{who} does not return the values of its output_keys",
        found=f"a mapping with the keys {list(outputs)}" if isinstance(outputs, Mapping) else describe_type(outputs),
        expected=f"a mapping with the keys {list(keys)}, or {len(keys)} values in this order",
        do=f"return {{{', '.join(f'{key!r}: ...' for key in keys)}}}",
    )


def _input_keys(signature: Sequence[Any]) -> tuple[str, ...]:
    """The keys of one mapping of specs, or the names of several specs."""
    if len(signature) == 1 and isinstance(signature[0], Mapping):
        names: list[Any] = list(signature[0])
    else:
        names = [getattr(getattr(entry, "tensor_spec", entry), "name", None) for entry in signature]
    if len(set(names)) != len(names) or not all(isinstance(name, str) and name for name in names):
        raise ArgumentError(
            "the inputs of a pipeline need names",
            found=f"input_signature={list(signature)!r}",
            expected="one dictionary of specs, or specs with different names",
            do="input_signature=[{'text': tf.TensorSpec((None,), tf.string)}]",
        )
    return tuple(names)


def named_by_key(signature: Sequence[Any]) -> list[Any]:
    """The signature, with the key as the name of each unnamed spec; otherwise TensorFlow would number them."""
    if len(signature) != 1 or not isinstance(signature[0], Mapping):
        return list(signature)
    return [{key: _named(spec, key) for key, spec in signature[0].items()}]


def _named(spec: Any, key: str) -> Any:
    if isinstance(spec, TensorSpecWithDefault):
        return dataclasses.replace(spec, tensor_spec=_named(spec.tensor_spec, key))
    if getattr(spec, "name", None) or not (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        return spec
    return type(spec)(spec.shape, spec.dtype, name=key)


def _in_order(steps: Sequence[DataProcessor], givers: dict[str, str]) -> tuple[DataProcessor, ...]:
    """The steps, each after those whose values it uses, and otherwise in the given order; ``givers`` is extended by
    them."""
    known = set(givers)
    for step in steps:
        _give(step.output_keys, repr(step.name), givers)
    for step in steps:
        _need(step.input_keys, repr(step.name), givers)
    waiting, ordered = list(steps), []
    while waiting:
        ready = next((step for step in waiting if known.issuperset(step.input_keys)), None)
        if ready is None:
            raise ArgumentError(
                "the processors depend on each other in a cycle",
                found="; ".join(
                    f"{step.name!r} needs {', '.join(repr(key) for key in step.input_keys if key not in known)}"
                    for step in waiting
                ),
                expected="an order in which each processor comes after those whose values it uses",
                do="break the cycle: give one of the values a different key",
            )
        waiting.remove(ready)
        ordered.append(ready)
        known.update(ready.output_keys)
    return tuple(ordered)


def _give(keys: Sequence[str], who: str, givers: dict[str, str]) -> None:
    pairs = [*((giver, key) for key, giver in givers.items()), *((who, key) for key in keys)]
    check_different(
        "two values of a pipeline have the same key", pairs, f"rename the output of {who} in its output_keys"
    )
    givers.update(dict.fromkeys(keys, who))


def _need(keys: Sequence[str], who: str, givers: Collection[str]) -> None:
    advice = "add it to the input signature, or to the output_keys of an earlier step"
    check_known(f"{who} takes an unknown value", keys, givers, advice)
