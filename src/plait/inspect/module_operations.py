"""The operations of a traced program, with the module that each comes from.

Modules are found in the name stacks of the program's equations (``inspect/observe/module_names.py``), which have the
path of a module relative to the one around it. The name of an equation inside another begins where the outer one is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import jaxprs_in_params

from ..util.jax_versions import scopes_of
from ..util.paths import Path
from .observe.module_names import name_of_key

Names = tuple[str, ...]
"""The keys of a path, as in names of scopes."""

_COMBINING = ("scatter", "reduce", "select_and_scatter")  # the program inside combines two numbers


class Operation(NamedTuple):
    """One equation of a program.

    Attributes:
        eqn: the equation; it has no program inside.
        path: the path of its module; empty for the outermost one, and for what belongs to none.
        times: how often it runs: the product of the lengths of the scans around it. The length of a ``while_loop`` is
            not known, and counts as 1.
    """

    eqn: Any
    path: Path
    times: int


class _Place(NamedTuple):
    """A path inside a function.

    Attributes:
        keys: the path, relative to the arguments of the function.
        known: the paths of its arguments in the program, by name; ``None`` if ``keys`` is a path in the program.
        caller: the path in the program of what has no known one.
    """

    keys: Names = ()
    known: Mapping[str, Names | None] | None = None
    caller: Names = ()

    def in_program(self, keys: Names) -> Names | None:
        """A path in the function as one in the program."""
        if self.known is None or not keys:
            return keys if self.known is None else self.caller
        start = self.known.get(keys[0])
        return None if start is None else (*start, *keys[1:])

    def of_argument(self, path: str) -> Names | None:
        """The path in the program of an argument of a function that is called here, as its scope says it."""
        if path == "?":
            return None
        keys = self.keys
        for step in filter(None, path.split("|")):
            keys = keys[:-1] if step == ".." else (*keys, step)
        return self.in_program(keys)


class ModuleOperations:
    """Finds the operations of modules.

    Args:
        paths: the paths of the modules that a program may name.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths: dict[Names, Path] = {(): (), **{tuple(map(name_of_key, path)): path for path in paths}}
        self._steps = {names[:end] for names in self._paths for end in range(len(names) + 1)}

    def of(self, jaxpr: Any, choose: Callable[[Sequence[Any]], Sequence[Any]]) -> Iterator[Operation]:
        """The operations of a program.

        Args:
            jaxpr: the program.
            choose: which branches of a ``cond`` count.
        """
        return self._of(jaxpr, _Place(), 1, choose)

    def _of(self, jaxpr: Any, around: _Place, times: int, choose: Any) -> Iterator[Operation]:
        for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
            here = self._entered(around, _steps_of(scopes_of(eqn)))
            inner = () if eqn.primitive.name.startswith(_COMBINING) else (*jaxprs_in_params(eqn.params),)
            if not inner:
                yield Operation(eqn, self._module_at(here), times)
            again = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            for each in choose(inner) if eqn.primitive.name == "cond" else inner:
                yield from self._of(each, here, times * again, choose)

    def _entered(self, here: _Place, steps: Iterable[str]) -> _Place:
        for step in steps:
            if step.startswith("{") and "=" in step:  # where the arguments of a function come from
                pairs = (pair.partition("=") for pair in step[1:-1].split(","))
                known = {name: here.of_argument(path) for name, _, path in pairs}
                here = _Place(("",) if "" in known else (), known, self._known_part(here))
            elif step == "..":
                here = here._replace(keys=here.keys[:-1])
            elif self._is_step(here, step):
                here = here._replace(keys=(*here.keys, step))
        return here

    def _is_step(self, here: _Place, step: str) -> bool:
        """Whether a scope is a key of a path; others are JAX's or the user's."""
        if here.known is not None and not here.keys:
            return step in here.known
        path = here.in_program((*here.keys, step))
        return path is None or path in self._steps

    def _known_part(self, here: _Place) -> Names:
        path = here.in_program(here.keys)
        return here.caller if path is None else path

    def _module_at(self, here: _Place) -> Path:
        names = self._known_part(here)
        while names not in self._paths:
            names = names[:-1]
        return self._paths[names]


def _steps_of(scopes: Sequence[tuple[str, bool]]) -> list[str]:
    """The steps of scopes. What is computed again for a derivative has the path of its module twice."""
    parts: list[list[str]] = [[]]
    for name, is_transform in scopes:
        if not is_transform:
            parts[-1] += name.split("/")
        elif name == "jvp":
            parts.append([])
    kept = [part for part, after in zip(parts, [*parts[1:], []], strict=True) if after[: len(part)] != part]
    return [step for part in kept for step in part]
