"""Ahead-of-time stages of a jitted function: trace, lower, compile, callable with modules. (rule X10)

Each stage wraps JAX's own stage of the same name and delegates everything to it. In addition, the compiled stage
accepts modules and writes to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ...errors import ArgumentError, ArgumentTypeError
from ...ground.words import first_few
from ..call.gather import Gathered, Structure, gather
from ..call.refused import explain
from .compiled import Compiled


class _Stage:
    """Delegates unknown attributes to JAX's stage."""

    def __init__(self, stage: Any, compiled: Compiled, structure: Structure, prepare: Callable[..., Any]) -> None:
        self._stage = stage
        self._compiled = compiled
        self._structure = structure
        self._prepare = prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def __repr__(self) -> str:
        return f"plait {type(self).__name__} of {self._stage!r}"


class Traced(_Stage):
    """A function traced for given arguments; ``lower()`` is the next stage."""

    def lower(self, **options: Any) -> Lowered:
        """The program in StableHLO."""
        return Lowered(self._stage.lower(**options), self._compiled, self._structure, self._prepare)


class Lowered(_Stage):
    """A lowered program; ``as_text()``, ``cost_analysis()`` and others as in JAX; ``compile()`` is the next stage."""

    def compile(self, **options: Any) -> CompiledStage:
        """The executable."""
        return CompiledStage(self._stage.compile(**options), self._compiled, self._structure, self._prepare)


class CompiledStage(_Stage):
    """An executable that accepts the same kinds of arguments as the original function, including modules."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._prepare(args, kwargs)
        gathered = gather((args, kwargs), self._compiled.f)
        if gathered.structure != self._structure:
            raise ArgumentError(
                "a compiled function was called with arguments of a different structure",
                found="modules or containers that differ from those that it was compiled for",
                expected="the same structure: types, static values and sharing",
                do="compare with plait.diff(plait.graphdef(before), plait.graphdef(now)), or lower again",
            )
        positional, named = self._compiled.arguments(gathered, args, kwargs)
        try:
            returned = self._stage(*positional, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            explain("jit", self._compiled.f, gathered, error)
            self._explain_types(gathered, error)
            raise
        return self._compiled.finish(gathered, returned)

    def _explain_types(self, gathered: Gathered, error: Exception) -> None:
        """Raise an error that names the values whose types differ from those that it was compiled for."""
        roots, plain = gathered.structure.labels(self._compiled.f)
        values = zip(gathered.structure.value_labels(roots), gathered.values(), strict=True)
        labelled = [(label, leaf) for label, value in values for leaf in jax.tree.leaves(value)]
        labelled += zip(plain, gathered.plain, strict=True)
        expected = jax.tree.leaves(self._stage.in_avals)
        differ = [
            (label, f"{jax.typeof(leaf).str_short()} where it was {aval.str_short()}")
            for (label, leaf), aval in zip(labelled, expected, strict=True)
            if (jax.typeof(leaf).shape, jax.typeof(leaf).dtype) != (aval.shape, aval.dtype)
        ]
        if differ:
            raise ArgumentTypeError(
                "a compiled function was called with arrays of different shapes or dtypes",
                at=first_few([label for label, _ in differ]),
                found=first_few([found for _, found in differ]),
                expected="the shapes and dtypes that it was lowered for",
                do="lower and compile once more for these, or call the jitted function, which does so by itself",
            ) from error
