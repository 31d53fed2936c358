"""Compiled programs in files: ``jitted.lower(...).compile().save(path)``, and ``plait.load_compiled(path)``. (rule X10)

A file holds JAX's serialized executable, what a call does to its arguments, and what the program was compiled for.
Nothing is known of its sources: who names a file answers for what is in it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import serialize_executable

from ...core.graph.graphdef import LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef
from ...errors import ArgumentError, ExportError
from ...util.jax_versions import jax_version, jaxlib_version
from ...util.whole_writes import written_whole
from ...util.words import first_few
from ..call.arguments import joined
from ..call.gather import Structure
from .compiled import Compiled

_PARTS = "f", "first", "donated", "layout"  # of a ``Compiled``: what a call needs


def save(stage: Any, compiled: Compiled, structure: Structure, path: str | os.PathLike[str]) -> None:
    """Write JAX's executable for arguments of this structure; see ``CompiledStage.save``."""
    if compiled.shardings is not None:
        raise _not_saved(path, "in_shardings or out_shardings", "leave them out: the arrays' own shardings count")
    if "Static(" in str(structure.treedef):
        raise _not_saved(path, "static arguments", "bind them: plait.jit(functools.partial(function, flag=True))")
    try:
        devices = [device.id for device in stage.runtime_executable().local_devices()]
        program = *serialize_executable.serialize(stage), devices
        _loaded(*program)
    except Exception as error:
        do = "callbacks into Python, such as jax.debug.print, have to go"
        raise _not_saved(path, f"JAX cannot serialize the program: {error}", do) from error
    parts = {name: getattr(compiled, name) for name in _PARTS} | {"f": _Named(compiled.f)}
    try:
        rest = pickle.dumps((program, described(structure, compiled.f), parts))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        do = "use functions of a module, where a call changes the structure of its arguments or returns objects"
        raise _not_saved(path, f"a static value that cannot be pickled: {error}", do) from error
    with written_whole(Path(path)) as draft:
        draft.write_bytes(pickle.dumps(_here()) + rest)


def read(path: str | os.PathLike[str]) -> tuple[Any, Compiled, dict[str, str]]:
    """JAX's executable in a file, what a call needs besides it, and the description of its arguments.

    Raises:
        ExportError: it was compiled for something else.
    """
    with open(path, "rb") as file:
        before, here = pickle.load(file), _here()
        for name, value in here.items():
            if before.get(name) != value:
                raise ExportError(
                    f"the program was compiled for another {name}",
                    at=str(path),
                    found=f"{before.get(name)}",
                    expected=f"{value}, as here",
                    do="compile and save it again",
                )
        program, description, parts = pickle.load(file)
    compiled = Compiled.__new__(Compiled)
    for name, value in {**parts, "shardings": None}.items():
        setattr(compiled, name, value)
    return _loaded(*program), compiled, description


def _loaded(program: bytes, in_tree: Any, out_tree: Any, devices: list[int]) -> Any:
    by_id = {device.id: device for device in jax.devices()}
    execution_devices = [by_id[number] for number in devices]
    return serialize_executable.deserialize_and_load(program, in_tree, out_tree, execution_devices=execution_devices)


def check_structure(structure: Structure, f: Any, expected: dict[str, str]) -> None:
    """Raise if the structure of a call is not the one of a description.

    Raises:
        ArgumentError: names the places that differ.
    """
    found = described(structure, f)
    differ = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if differ:
        raise ArgumentError(
            "a compiled function was called with arguments of a different structure",
            at=first_few(differ),
            found=first_few([found.get(name, "nothing") for name in differ]),
            expected=first_few([expected.get(name, "nothing") for name in differ]),
            do="pass what it was compiled for, or compile and save it again",
        )


def described(structure: Structure, f: Any) -> dict[str, str]:
    """What is at each place of the arguments, except for arrays, as text that is the same in every process."""
    roots, _ = structure.labels(f)
    found = {"the arguments": str(structure.treedef)}
    for number, path, part in structure.part_paths():
        found[joined(roots[number], path)] = _part(part)
    return found


def _part(part: Any) -> str:
    if isinstance(part, StaticAttribute):
        return _text(part.value)
    if isinstance(part, NodeDef):
        return f"{_text(part.type)}, object {part.index}"
    if isinstance(part, VariableDef):
        return f"{_text(part.type)}, object {part.index}, {_text(dict(part.metadata))}"
    assert isinstance(part, (LeafDef, NodeRef))
    return f"{'an array' if isinstance(part, LeafDef) else 'object'} {part.index}"


def _text(value: Any) -> str:
    """A text by which static values are compared: classes and functions by name, containers by what is in them.

    Raises:
        PicklingError: the value has no such text; also ``AttributeError``, ``TypeError``.
    """
    if isinstance(getattr(value, "__qualname__", None), str):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, functools.partial):
        return f"partial({_text((value.func, value.args, value.keywords))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, (tuple, list, set, frozenset)):
        texts = map(_text, value)
        return f"{type(value).__name__}({', '.join(sorted(texts) if isinstance(value, (set, frozenset)) else texts)})"
    if isinstance(value, (str, bytes, int, float, complex, type(None), type(...))):
        return repr(value)
    return f"{_text(type(value))} {hashlib.sha256(pickle.dumps(value)).hexdigest()[:16]}"


class _Named:
    """Stands for the function of a program: its name, and the names of its parameters for errors."""

    def __init__(self, f: Any) -> None:
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        try:
            parameters = inspect.signature(f).parameters.values()
            self.__signature__ = inspect.Signature([inspect.Parameter(each.name, each.kind) for each in parameters])
        except (TypeError, ValueError):
            pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def _here() -> dict[str, str]:
    devices = jax.devices()
    return {
        "version of jax": jax_version,
        "version of jaxlib": jaxlib_version(),
        "version of plait": sys.modules[__name__.partition(".")[0]].__version__,
        "platform": f"{devices[0].platform} ({devices[0].device_kind}), {devices[0].client.platform_version}",
        "number of devices": f"{len(devices)}, of {jax.process_count()} processes",
    }


def _not_saved(path: Any, found: str, do: str) -> ExportError:
    return ExportError(
        "the compiled program cannot be saved", at=str(path), found=found, expected="a program that JAX can load", do=do
    )
