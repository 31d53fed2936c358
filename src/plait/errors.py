"""Every exception that plait raises.

Each answers four questions, in this order: where, what was found, what was expected, what to do. Each also derives from
the builtin exception that a user would catch::

    PlaitError
    ├── TraceContextError (RuntimeError): a write in a different trace than the object's
    ├── GraphError (ValueError): a graph that cannot be flattened, merged, updated or popped
    │   ├── SharingError: one variable under two different settings
    │   └── AttributeStatusError: data under a static attribute, or the reverse
    ├── GraphTypeError (TypeError): not a node, not a graphdef, not a state
    ├── RegistryError (RuntimeError): an unknown node type, or a broken registration
    ├── FilterError (ValueError): filters that do not cover all leaves, or out of order
    ├── FilterTypeError (TypeError): an object that is not a filter
    ├── StaticValueError (TypeError): a static value that cannot be hashed
    ├── MetadataError (ValueError): variable metadata that contradicts itself
    ├── MetadataKeyError (KeyError): a missing metadata entry
    ├── VariableAttributeError (AttributeError): an attribute that a variable does not have
    ├── ArgumentError (ValueError): an argument with the right type but an invalid value
    │   └── DonatedArrayError (RuntimeError): an array that an earlier call donated
    ├── ArgumentTypeError (TypeError): an argument of the wrong type
    ├── ShapeError (ValueError): an array whose shape, rank or dtype a layer rejects
    ├── NonFiniteError (FloatingPointError): a value that ``plait.debug_nans`` found
    ├── StreamError (ValueError): a missing random stream, or one that cannot give a key
    │   ├── StreamAttributeError (AttributeError)
    │   └── StreamKeyError (KeyError)
    ├── OptimizerError (ValueError): gradients that do not match the optimizer
    │   └── OptimizerAttributeError (AttributeError)
    ├── CheckpointError (ValueError): a folder that is no intact checkpoint of the model
    │   └── ConversionError: another library's checkpoint that does not match the model
    ├── ProcessError (RuntimeError): processes that cannot connect, or one that was lost
    ├── DataError (RuntimeError): training data that did not arrive in time
    ├── ExportError (RuntimeError): an export that cannot be written, loaded or validated
    ├── MissingDependencyError (ImportError): an optional package that is not installed
    ├── AlreadyImportedError (ImportError): ``flax.nnx`` was imported before ``plait.as_flax``
    ├── ProgramCacheError (RuntimeError): a folder of compiled programs that is not safe
    ├── RetraceError (RuntimeError): a jitted function was traced more often than allowed
    ├── DispatchError (AssertionError): fast path and fresh walk disagree (checking mode)
    ├── PartitioningUnspecifiedError (ValueError): an axis operation without an axis name
    ├── AxisNameMismatchError (ValueError, AssertionError)
    ├── ScopeParamShapeError (ValueError)
    └── CollectionTypeError (ValueError, AssertionError): a box of a wrong type

Warnings: ``CapturedModelWarning``, for a model that a jitted function captures, ``LostUpdateWarning``, for a lost
change, ``LostSharingWarning``, for a shared part that JAX copies, ``ReplacedVariableWarning``, for an array that
replaces a variable, ``SingleValueWarning``, for statistics of one value, ``NothingSelectedWarning``, for a filter or
tag that matches nothing, ``UntrainedPartWarning``, for arrays that nothing trains, ``UnusedArgumentWarning``, for a
keyword that no layer takes, ``UnevenLayoutWarning``, for a dimension that a mesh cannot divide, ``LoggerWarning``, for
a logger that failed, ``CheckpointWarning``, for a checkpoint that was moved aside, not removed, or does not fit, and
``ProcessWarning``, for a process that waits for one that does not come.
"""

from __future__ import annotations

from typing import Any


class PlaitError(Exception):
    """Base class of every exception that plait raises.

    Args:
        message: one line that says what went wrong.
        at: the path of the variable or module.
        found: what was found.
        expected: what was expected.
        do: how to fix it, as code if possible.
    """

    heard: Any = None  # what another process told about it, if that one raised it

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
        # Names in files, and of files, may have surrogates, which cannot be printed.
        return "\n".join(lines).encode("utf-8", "backslashreplace").decode()

    def __reduce__(self):
        return _rebuild, (type(self), self.message, self.parts)


def _rebuild(kind: type[PlaitError], message: str, parts: dict[str, str]) -> PlaitError:
    return kind(message, **parts)


class TraceContextError(PlaitError, RuntimeError):
    """An object was changed in a different JAX trace than the one it belongs to."""


class GraphError(PlaitError, ValueError):
    """A graph and a state, or a graph and a request, do not match."""


class SharingError(GraphError):
    """One variable is reached by two paths with different settings, or a layer of a stack is in a graph twice."""


class AttributeStatusError(GraphError):
    """An attribute marked static holds data, or a mark contradicts an earlier one."""


class GraphTypeError(PlaitError, TypeError):
    """A value is not a node, graphdef or state where one is required."""


class RegistryError(PlaitError, RuntimeError):
    """A node has a type that plait cannot flatten."""


class FilterError(PlaitError, ValueError):
    """Filters do not cover all leaves, or are in an order in which one can never match."""


class FilterTypeError(PlaitError, TypeError):
    """An object is not a filter."""


class StaticValueError(PlaitError, TypeError):
    """A static attribute has an unhashable value where a hash is needed, such as for the cache of ``jit``."""


class MetadataError(PlaitError, ValueError):
    """Variable metadata contradicts itself, or a fixed entry was changed."""


class MetadataKeyError(PlaitError, KeyError):
    """A variable has no metadata with that name."""


class VariableAttributeError(PlaitError, AttributeError):
    """A variable has no such attribute, or it cannot be assigned."""


class ArgumentError(PlaitError, ValueError):
    """An argument has a value that the function does not accept."""


class DonatedArrayError(ArgumentError, RuntimeError):
    """An array was used after an earlier call donated its buffer."""


class ArgumentTypeError(PlaitError, TypeError):
    """An argument has a type that the function does not accept."""


class ShapeError(PlaitError, ValueError):
    """An array has a shape, rank or dtype that the layer does not accept."""


class NonFiniteError(PlaitError, FloatingPointError):
    """An operation returned a NaN or an infinity under ``plait.debug_nans``."""


class StreamError(PlaitError, ValueError):
    """There is no stream to draw a random key from, or it has several keys where one is needed."""


class StreamAttributeError(StreamError, AttributeError):
    """An ``Rngs`` has neither the stream accessed as an attribute nor a default stream."""


class StreamKeyError(StreamError, KeyError):
    """An ``Rngs`` has neither the stream accessed by name nor a default stream."""


class OptimizerError(PlaitError, ValueError):
    """Gradients do not match the structure or shapes that the optimizer was created with."""


class OptimizerAttributeError(OptimizerError, AttributeError):
    """An optimizer, which does not store the model, or a ``TrainState`` has no such attribute."""


class CheckpointError(PlaitError, ValueError):
    """A folder is not an intact checkpoint, or the checkpoint is of another model."""


class ConversionError(CheckpointError):
    """Another library's checkpoint has missing, unexpected or mismatched leaves; ``report`` lists all."""

    report: Any = None


class ProcessError(PlaitError, RuntimeError):
    """The processes of a run cannot connect, or one of them was lost."""


class DataError(PlaitError, RuntimeError):
    """The data of a training run did not arrive in time."""


class ExportError(PlaitError, RuntimeError):
    """An artifact cannot be written, loaded or validated."""


class MissingDependencyError(PlaitError, ImportError):
    """An optional package is not installed; the message names the extra that installs it."""


class AlreadyImportedError(PlaitError, ImportError):
    """``flax.nnx`` was imported before ``plait.as_flax``, which then cannot replace it."""


class RetraceError(PlaitError, RuntimeError):
    """A jitted function was traced more often than ``explain_retraces(max_traces=...)`` allows."""


class DispatchError(PlaitError, AssertionError):
    """The checking mode found a cached walk that differs from a fresh one. This is a bug in plait."""


class ProgramCacheError(PlaitError, RuntimeError):
    """A folder for compiled programs that cannot be made, or that others can enter."""


class PartitioningUnspecifiedError(PlaitError, ValueError):
    """An axis was added to or removed from metadata without its name."""


class AxisNameMismatchError(PlaitError, ValueError, AssertionError):
    """The axis to remove from metadata has a different name."""


class ScopeParamShapeError(PlaitError, ValueError):
    """A stored parameter does not have the requested shape."""


class CollectionTypeError(PlaitError, ValueError, AssertionError):
    """The variable type of a box differs from that of its collection."""


class CapturedModelWarning(UserWarning):
    """A jitted function captures a model, so the model's values become constants of the program."""


class LostUpdateWarning(UserWarning):
    """A change is lost: to a variable inside a transform, or to a state that was split off and never used."""


class LostSharingWarning(UserWarning):
    """JAX treats a model as a tree, and copies shared parts for each path."""


class ReplacedVariableWarning(UserWarning):
    """An array was assigned to an attribute that held a variable: filters by variable type no longer match it."""


class SingleValueWarning(UserWarning):
    """A layer computes statistics of one value per feature: the variance is 0 and the result constant."""


class NothingSelectedWarning(UserWarning):
    """A filter or tag matches nothing, so nothing is differentiated, updated or reseeded."""


class UntrainedPartWarning(UserWarning):
    """A part of a model that is differentiated or optimized holds arrays that are not variables of plait."""


class UnusedArgumentWarning(UserWarning):
    """No layer that is called takes a keyword argument of the call."""


class LoggerWarning(UserWarning):
    """A logger of a training run raised an error, and is disabled. Training continues."""


class CheckpointWarning(UserWarning):
    """A checkpoint was moved aside or not removed, or does not fit the model; or a run may not resume as this one."""


class ProcessWarning(UserWarning):
    """A process of several waits for one that does not come to what all do together: a save, a restore, a run."""


class UnevenLayoutWarning(UserWarning):
    """Axis names shard a dimension whose length the mesh does not divide: it is replicated instead."""


_CLASSES = [name for name, value in globals().items() if isinstance(value, type) and value.__module__ == __name__]
__all__ = sorted(_CLASSES)  # pyright: ignore[reportUnsupportedDunderAll]
__dir__ = __all__.copy
