"""Ahead-of-time stages of a jitted function: trace, lower, compile, callable with modules. (rule X10)

Each stage wraps JAX's own stage of the same name and delegates everything to it. In addition, the compiled stage
accepts modules and writes to them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from ...core.graph.graphdef import NodeDef, StaticAttribute, VariableDef
from ...errors import ArgumentError, ArgumentTypeError, ExportError
from ...typing import Tree
from ...util.jax_versions import compiled_by_xla
from ...util.repr import repr_leaf
from ...util.words import first_few
from ..call.arguments import Gathered, Structure, gather
from ..call.errors import explain
from .compiled import Compiled
from .shardings import JIT


class _Stage:
    """Delegates unknown attributes to JAX's stage."""

    def __init__(self, stage: Any, compiled: Compiled, structure: Structure, prepare: Callable[..., Tree]) -> None:
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
        stage = CompiledStage(self._stage.compile(**options), self._compiled, self._structure, self._prepare)
        stage._compile_again = functools.partial(_compile_again, self._stage, **options)
        return stage


def _compile_again(lowered: Any, compiler_options: Any = None, **options: Any) -> Any:
    """The executable, compiled by XLA: on a CPU, one that JAX read from its cache on disk lacks its machine code."""
    with compiled_by_xla():  # with an option, JAX does not return the executable that it has
        return lowered.compile(
            compiler_options={"xla_embed_ir_in_executable": False, **(compiler_options or {})}, **options
        )


class CompiledStage(_Stage):
    """An executable that accepts the same kinds of arguments as the original function, including modules."""

    _compile_again: Callable[[], Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        args, kwargs = self._prepare(args, kwargs)
        gathered = gather((args, kwargs), self._compiled.f)
        if gathered.structure != self._structure:
            self._refuse(gathered.structure)
        positional, named = self._compiled.arguments(gathered, args, kwargs)
        try:
            returned = self._stage(*positional, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            explain(JIT, self._compiled.f, gathered, error)
            self._explain_types(gathered, error)
            raise
        return self._compiled.finish(gathered, returned)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the executable to a file that ``plait.load_compiled`` reads in another process, without a trace.

        XLA compiles it once more for this, since what JAX reads from its cache on disk cannot be written again.

        Args:
            path: the file; an earlier one of this kind is replaced.

        Raises:
            ExportError: JAX cannot serialize the program, the function has static arguments or options for shardings,
                or a static value, which the error names, is not equal again after pickling: a bound method, an object
                without ``==``, a lambda of a module, or, in a class of yours or a ``TrainState``, a function made
                inside a function. Those of a ``plait.Optimizer`` are found again.
        """
        from . import saved

        saved.save(self._compile_again(), self._compiled, self._structure, path)

    def _refuse(self, structure: Structure) -> NoReturn:
        """Raise an error that names the places where the structure differs from the one that it was compiled for."""
        found, expected = structure.definitions(self._compiled.f), self._structure.definitions(self._compiled.f)
        both, differ = found.keys() & expected.keys(), []
        for place in {**expected, **found}:
            is_below = place.startswith(tuple(f"{above}{sign}" for above in differ for sign in ".["))
            if not is_below and (place not in both or found[place] != expected[place]):
                differ.append(place)
        raise ArgumentError(
            "a compiled function was called with arguments of a different structure",
            at=first_few(differ) or "the order or the sharing of the arguments",
            found=first_few([_shown(found.get(place)) for place in differ]),
            expected=first_few([_shown(expected.get(place)) for place in differ]) or "the same structure",
            do="pass what it was compiled for, or lower and compile again",
        )

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


class LoadedStage(CompiledStage):
    """An executable from a file; it is called as the one that was saved."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises ``ExportError``: the file has it already."""
        raise ExportError("a program that was loaded is not saved again", at=str(path), do="copy the file")


def _shown(part: object) -> str:
    if isinstance(part, StaticAttribute):
        return repr_leaf(part.value)
    if isinstance(part, (NodeDef, VariableDef)):
        metadata = dict(part.metadata) if isinstance(part, VariableDef) else part.metadata
        text = f"{part.type.__module__}.{part.type.__qualname__}, object {part.index}"
        return f"{text}, {repr_leaf(metadata)}" if metadata else text
    return "nothing" if part is None else " ".join(repr(part).split())


def load_compiled(path: str | os.PathLike[str]) -> LoadedStage:
    """An executable that ``plait.jit(function).lower(...).compile().save(path)`` wrote; nothing is traced or compiled.

    It is called with arguments of the same structure, shapes and dtypes, and updates their variables as ``function``
    does. Structures are compared exactly, as in the process that saved it: static values by ``==``; functions made
    inside functions, such as those of an Optax optimizer, by their code and what they close over, so another learning
    rate is refused. Functions and classes of modules are the same if their names lead to them: **their source is not
    looked at**, nor is that of ``function``. Whether the file is still that of your program is for you to know.

    **Loading a file runs code from it**: it is a pickle with machine code. Load only files that you wrote yourself.

    Args:
        path: the file.

    Raises:
        ExportError: the versions of Python, JAX, jaxlib or plait, the platform, or the number of devices differ; or the
            file is damaged, or is no such file; or a class or function that it needs is not found.

    Example:
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> compiled = plait.jit(lambda model, x: model(x)).lower(model, jnp.ones((1, 2))).compile()
        >>> compiled.save("forward.bin")
        >>> plait.load_compiled("forward.bin")(model, jnp.ones((1, 2))).shape
        (1, 3)
    """
    from . import saved

    return LoadedStage(*saved.read(path), lambda args, kwargs: (args, kwargs))
