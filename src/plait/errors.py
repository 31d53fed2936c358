"""Every exception that plait raises on purpose.

Each answers four questions, in this order: where, what was found, what was expected, what to do. Each is also the
builtin exception that a user would catch::

    PlaitError
    ├── TraceContextError            (RuntimeError)   a write from another trace than the object's own
    ├── GraphError                   (ValueError)     a graph that cannot be flattened, merged, updated or popped
    │   ├── SharingError                              one variable asked to be treated in two ways
    │   └── AttributeStatusError                      data under a static attribute, or the reverse
    ├── GraphTypeError               (TypeError)      not a node, not a graphdef, not a state
    ├── RegistryError                (RuntimeError)   a node type that no registry knows, or a broken registration
    ├── FilterError                  (ValueError)     filters that do not cover, or come in an impossible order
    ├── FilterTypeError              (TypeError)      an object that is no filter
    ├── StaticValueError             (TypeError)      a static value that cannot be hashed
    ├── MetadataError                (ValueError)     variable metadata that contradicts itself
    ├── MetadataKeyError             (KeyError)       a metadata name that is not there
    ├── VariableAttributeError       (AttributeError) an attribute that a variable does not have
    ├── ArgumentError                (ValueError)     an argument of the right type and a wrong value
    │   └── DonatedArrayError        (RuntimeError)   an array that is gone: an earlier call took over its buffer
    ├── ArgumentTypeError            (TypeError)      an argument of the wrong type
    ├── ShapeError                   (ValueError)     an array whose shape, rank or dtype a layer does not take
    ├── NonFiniteError               (FloatingPointError)  a NaN or an infinity, found by ``plait.debug_nans``
    ├── StreamError                  (ValueError)     a source of random keys that is missing, or cannot be drawn from
    │   ├── StreamAttributeError     (AttributeError)
    │   └── StreamKeyError           (KeyError)
    ├── OptimizerError               (ValueError)     gradients that do not fit the optimizer
    │   └── OptimizerAttributeError  (AttributeError)
    ├── ConfigError                  (ValueError)     a structure that has no JSON form, or a damaged configuration
    ├── CheckpointError              (ValueError)     a folder that is no whole checkpoint, or one of another model
    │   └── ConversionError                           a foreign checkpoint whose leaves are not those of the model
    ├── ProcessError                 (RuntimeError)   processes that cannot be connected, or one that was lost
    ├── DataError                    (RuntimeError)   data of a training run that did not come in time
    ├── ExportError                  (RuntimeError)   an export that cannot be written, loaded or validated
    ├── MissingDependencyError       (ImportError)    an optional package that is not installed
    ├── AlreadyImportedError         (ImportError)    ``flax.nnx`` was imported before ``plait.as_flax``
    ├── RetraceError                 (RuntimeError)   a jitted function was traced more often than allowed
    ├── InternalError                (RuntimeError)   something that plait itself got wrong
    ├── DispatchError                (AssertionError) the fast path disagreed with a fresh walk (checking mode)
    ├── PartitioningUnspecifiedError (ValueError)     an axis operation without the name of the axis
    ├── AxisNameMismatchError        (ValueError, AssertionError)
    ├── ScopeParamShapeError         (ValueError)
    └── CollectionTypeError          (ValueError, AssertionError)  a box of another kind than its collection

Warnings stand beside them: ``CapturedModelWarning``, for a model that a jitted function captures,
``LostUpdateWarning``, for a change that reaches no one, ``LostSharingWarning``, for a shared part of which JAX makes
copies, ``ReplacedVariableWarning``, for an array that takes the place of a variable, ``SingleValueWarning``,
for statistics of one value, ``NothingSelectedWarning``, for a filter or a tag that matches nothing,
``UnevenLayoutWarning``, for a dimension that a mesh cannot divide, and ``LoggerWarning``, for a logger that failed.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AlreadyImportedError",
    "ArgumentError",
    "ArgumentTypeError",
    "AttributeStatusError",
    "AxisNameMismatchError",
    "CapturedModelWarning",
    "CheckpointError",
    "CollectionTypeError",
    "ConfigError",
    "ConversionError",
    "DataError",
    "DispatchError",
    "DonatedArrayError",
    "ExportError",
    "FilterError",
    "FilterTypeError",
    "GraphError",
    "GraphTypeError",
    "InternalError",
    "LoggerWarning",
    "LostSharingWarning",
    "LostUpdateWarning",
    "MetadataError",
    "MetadataKeyError",
    "MissingDependencyError",
    "NonFiniteError",
    "NothingSelectedWarning",
    "OptimizerAttributeError",
    "OptimizerError",
    "PartitioningUnspecifiedError",
    "PlaitError",
    "ProcessError",
    "RegistryError",
    "ReplacedVariableWarning",
    "RetraceError",
    "ScopeParamShapeError",
    "ShapeError",
    "SharingError",
    "SingleValueWarning",
    "StaticValueError",
    "StreamAttributeError",
    "StreamError",
    "StreamKeyError",
    "TraceContextError",
    "UnevenLayoutWarning",
    "VariableAttributeError",
]


class PlaitError(Exception):
    """Base of every exception that plait raises on purpose.

    Args:
        message: one line that says what went wrong.
        at: the path of the variable or module.
        found: what was there.
        expected: what plait takes.
        do: what the user can do about it, as code where that is possible.
    """

    def __init__(
        self,
        message: str,
        *,
        at: str | None = None,
        found: str | None = None,
        expected: str | None = None,
        do: str | None = None,
    ) -> None:
        parts = {"at": at, "found": found, "expected": expected, "do": do}
        self.message = message
        self.parts = {name: text for name, text in parts.items() if text is not None}
        super().__init__(message)

    def __str__(self) -> str:
        lines = [self.message, *(f"  {name:<9} {text}" for name, text in self.parts.items())]
        return "\n".join(lines)

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.parts)


def _rebuild(kind: type[PlaitError], message: str, parts: dict[str, str]) -> PlaitError:
    return kind(message, **parts)


class TraceContextError(PlaitError, RuntimeError):
    """An object was changed from another JAX trace than the one it belongs to."""


class GraphError(PlaitError, ValueError):
    """A graph and a state, or a graph and a request, do not fit each other."""


class SharingError(GraphError):
    """One variable is reached in two ways that ask for different treatment."""


class AttributeStatusError(GraphError):
    """An attribute marked static holds data, or a mark contradicts an earlier one."""


class GraphTypeError(PlaitError, TypeError):
    """Something that is no node, graphdef or state was given where one belongs."""


class RegistryError(PlaitError, RuntimeError):
    """A node is of a type that plait cannot walk."""


class FilterError(PlaitError, ValueError):
    """Filters leave something over, or come in an order in which one can never match."""


class FilterTypeError(PlaitError, TypeError):
    """An object that cannot be read as a filter."""


class StaticValueError(PlaitError, TypeError):
    """A static attribute whose value cannot be hashed was used as part of a compile key."""


class MetadataError(PlaitError, ValueError):
    """Variable metadata contradicts itself, or a fixed entry was changed."""


class MetadataKeyError(PlaitError, KeyError):
    """A variable has no metadata of that name."""


class VariableAttributeError(PlaitError, AttributeError):
    """A variable has no such attribute, or it cannot be assigned."""


class ArgumentError(PlaitError, ValueError):
    """An argument has a value that the function cannot take."""


class DonatedArrayError(ArgumentError, RuntimeError):
    """An array was to be used that is gone, because an earlier call took over its buffer."""


class ArgumentTypeError(PlaitError, TypeError):
    """An argument has a type that the function cannot take."""


class ShapeError(PlaitError, ValueError):
    """An array has a shape, rank or dtype that the layer does not take."""


class NonFiniteError(PlaitError, FloatingPointError):
    """An operation returned a NaN or an infinity while ``plait.debug_nans`` looked."""


class StreamError(PlaitError, ValueError):
    """There is no stream to draw a random key from, or it holds many keys where one is needed."""


class StreamAttributeError(StreamError, AttributeError):
    """An ``Rngs`` has neither the stream asked for as an attribute nor a default stream."""


class StreamKeyError(StreamError, KeyError):
    """An ``Rngs`` has neither the stream asked for by name nor a default stream."""


class OptimizerError(PlaitError, ValueError):
    """Gradients do not have the structure or shapes that the optimizer was made for."""


class ConfigError(PlaitError, ValueError):
    """A structure cannot be written as a configuration, or a configuration cannot be read."""


class OptimizerAttributeError(OptimizerError, AttributeError):
    """An optimizer, which does not keep the model, or a ``TrainState`` has no such attribute."""


class CheckpointError(PlaitError, ValueError):
    """A folder is not a whole checkpoint, or belongs to another model."""


class ConversionError(CheckpointError):
    """A checkpoint of another library lacks leaves, has others, or has some that do not fit; ``report`` lists all."""

    report: Any = None


class ProcessError(PlaitError, RuntimeError):
    """The processes of a run cannot be connected, or one of them was lost."""


class DataError(PlaitError, RuntimeError):
    """The data of a training run did not come in time."""


class ExportError(PlaitError, RuntimeError):
    """An artifact cannot be written, loaded or validated."""


class MissingDependencyError(PlaitError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class AlreadyImportedError(PlaitError, ImportError):
    """``flax.nnx`` was imported before ``plait.as_flax``, which can then not stand in for it."""


class RetraceError(PlaitError, RuntimeError):
    """A jitted function was traced more often than ``explain_retraces(max_traces=...)`` allows."""


class InternalError(PlaitError, RuntimeError):
    """Something that plait itself got wrong; please report it with the message."""


class DispatchError(PlaitError, AssertionError):
    """The checking mode found a cached walk that differs from a fresh one. This is a bug in plait."""


class PartitioningUnspecifiedError(PlaitError, ValueError):
    """An axis was added to or removed from metadata without saying its name."""


class AxisNameMismatchError(PlaitError, ValueError, AssertionError):
    """The axis name found where one was to be removed is another one."""


class ScopeParamShapeError(PlaitError, ValueError):
    """A stored parameter has another shape than the one asked for."""


class CollectionTypeError(PlaitError, ValueError, AssertionError):
    """A box holds another kind of variable than the collection that it stands in."""


class CapturedModelWarning(UserWarning):
    """A jitted function captures a model from outside, which makes its values constants of the program."""


class LostUpdateWarning(UserWarning):
    """A change is lost: of a variable inside a transform, or of a state that was split from a model and not used."""


class LostSharingWarning(UserWarning):
    """JAX takes a model for a tree, and makes a copy of what is shared for each place."""


class ReplacedVariableWarning(UserWarning):
    """An array was assigned to an attribute that held a variable: it is part of no filter by kind any more."""


class SingleValueWarning(UserWarning):
    """A layer was to take the statistics of one value for each feature: the variance is 0 and the result constant."""


class NothingSelectedWarning(UserWarning):
    """What was to be differentiated, updated or reseeded is not there: a filter or a tag matches nothing."""


class LoggerWarning(UserWarning):
    """A logger of a training run raised an error, and gets no more numbers. Training goes on."""


class UnevenLayoutWarning(UserWarning):
    """Axis names ask to shard a dimension whose length the mesh does not divide: it is replicated instead."""
