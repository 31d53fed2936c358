"""The calls of one run of a model: the inputs and outputs of each module."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import Any

import jax
import numpy as np

from ...core.variables.variables import Variable
from ...util.dtypes import is_number_dtype
from ...util.jax_versions import Tracer
from ...util.paths import Path, format_path


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One call of a method of a module.

    Args:
        path: the path of the module; the first one if it is shared.
        aliases: all paths of the module, the first included.
        method: the name of the method; empty for the one that calling the module runs.
        kind: the name of the module's class.
        module: the module.
        inputs: the arrays that were passed, by argument.
        statics: the numbers, strings and ``None`` that were passed, by argument.
        outputs: the arrays that it returned, by key, field and index; an array by itself has an empty name.
        enter, exit: the positions of its start and end among all starts and ends of the run.
    """

    path: Path
    aliases: tuple[Path, ...]
    method: str
    kind: str
    module: Any
    inputs: dict[str, np.ndarray]
    statics: dict[str, Any]
    outputs: dict[str, np.ndarray]
    enter: int
    exit: int

    @property
    def place(self) -> str:
        """The path and the method as text, such as ``embed.attend``; empty for the model itself."""
        return format_path((*self.path, self.method) if self.method else self.path)

    def encloses(self, other: Call) -> bool:
        """Whether the other call ran inside this one."""
        return self.enter < other.enter and other.exit < self.exit


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A whole run.

    Args:
        library: ``"plait"``, ``"flax.nnx"``, ``"linen"`` or ``"torch"``.
        calls: in the order in which they ended; the last is that of the model itself, with an empty path.
        unseen: path of each module whose calls could not be recorded → the transform that prevented it.
    """

    library: str
    calls: tuple[Call, ...]
    unseen: Mapping[Path, str] = dataclasses.field(default_factory=dict)

    @property
    def root(self) -> Call:
        return self.calls[-1]


Begun = tuple[int, dict[str, np.ndarray], dict[str, Any]]  # the position of its start; its arrays and static values


class Recorder:
    """Numbers starts and ends while a model runs, and collects the calls. ``arrays`` makes NumPy arrays."""

    def __init__(self, arrays: Callable[[Any], np.ndarray | None]) -> None:
        self.arrays = arrays
        self.calls: list[Call] = []
        self._clock = 0

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    def inputs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays and the static values of some arguments. Call it before the method runs."""
        arrays, statics = {}, {}
        for name, leaf in leaves_of(arguments(args, kwargs)):
            if is_static(leaf):
                statics[name] = leaf
            elif (array := self.arrays(leaf)) is not None:
                arrays[name] = array
        return arrays, statics

    def outputs(self, value: Any) -> dict[str, np.ndarray]:
        found = ((name, self.arrays(leaf)) for name, leaf in leaves_of(value) if not is_static(leaf))
        return {name: array for name, array in found if array is not None}

    def around(
        self, run: Callable[[], Any], paths: tuple[Path, ...], method: str, module: Any, args: Any, kwargs: Any
    ) -> Any:
        """Run a call and record it; calls that return no concrete arrays are omitted."""
        begun = self.begin(args, kwargs)
        output = run()
        self.end(begun, output, paths, method, module)
        return output

    def begin(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Begun:
        """The record of a call before it runs."""
        return self.tick(), *self.inputs(args, kwargs)

    def end(self, begun: Begun, output: Any, paths: tuple[Path, ...], method: str, module: Any) -> None:
        """Record a call that has returned."""
        enter, arrays, statics = begun
        outputs = self.outputs(output)
        kind = type(module).__name__
        call = Call(paths[0], paths, method, kind, module, arrays, statics, outputs, enter, self.tick())
        if outputs or not paths[0]:
            self.calls.append(call)

    def run(self, library: str) -> Run:
        return Run(library, tuple(self.calls))


def owner_of(model: Any) -> Any:
    """The model itself, if one of its methods was passed."""
    return model.__self__ if isinstance(model, MethodType) else model


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Positional and keyword arguments in one mapping."""
    return {**{str(index): value for index, value in enumerate(args)}, **kwargs}


def leaves_of(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested sequences, mappings and dataclasses, with dotted names."""
    if isinstance(value, Variable):
        yield from leaves_of(value.get_value(), name)
        return
    children: Iterable[tuple[Any, Any]]
    if isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, (tuple, list)):
        children = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "__jax_array__"):
        children = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    else:
        yield name, value
        return
    for key, child in children:
        yield from leaves_of(child, f"{name}.{key}" if name else str(key))


def is_static(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (bool, int, float, complex, str))


def is_array_of_numbers(leaf: Any) -> bool:
    """Whether this is a JAX or NumPy array of numbers or booleans, traced or not."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and is_number_dtype(leaf.dtype)


def numpy_of(leaf: Any) -> np.ndarray | None:
    """A JAX or NumPy array as a NumPy array; ``None`` for everything else, traced arrays included."""
    convert = getattr(leaf, "__jax_array__", None)  # None in a tracer
    leaf = convert() if convert else leaf
    return np.asarray(leaf) if is_array_of_numbers(leaf) and not isinstance(leaf, Tracer) else None
