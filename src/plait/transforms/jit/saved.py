"""Compiled programs in files: ``jitted.lower(...).compile().save(path)``, and ``plait.load_compiled(path)``. (rule X10)

A file is a line of magic, a line of JSON that says what the program was compiled for, and a pickle: JAX's serialized
executable, the structure of its arguments, and what a call does to them. A call compares the structure as it does in
the process that compiled it, so a structure is only written if it equals what is read again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import io
import json
import marshal
import os
import pickle
import platform
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import jax
from jax.experimental import serialize_executable

from ...core.nodes.nodes import Static
from ...errors import ExportError
from ...typing import Tree, TreeDef, Value
from ...util.files import given_path, open_file
from ...util.jax_versions import jax_version, jaxlib_version
from ...util.named import NamedFunction, from_named, to_named
from ...util.repr import repr_leaf
from ...util.schemas import SchemaError, parse_json
from ...util.whole_writes import check_own_file, written_whole
from ...util.words import first_few, text_of
from ..call.arguments import Structure
from .compiled import Compiled

_MAGIC = b"plait compiled program\n"
_MOST_HEADER = 2**16  # bytes
_PARTS = "first_outcome", "donated", "layout"  # of a ``Compiled``: what a call needs besides its function


def save(stage: Any, compiled: Compiled, structure: Structure, path: str | os.PathLike[str]) -> None:
    """Write JAX's executable for arguments of this structure; see ``CompiledStage.save``."""
    if compiled.shardings is not None:
        raise _error("saved", path, "in_shardings or out_shardings", "leave them out: the arrays' own shardings count")
    place = given_path(path, ExportError)
    arguments = (argument for group in structure.treedef.children() for argument in group.children())
    if any((argument.node_data() or [None])[0] is Static for argument in arguments):
        raise _error("saved", path, "static arguments", "bind them: plait.jit(functools.partial(function, flag=True))")
    try:
        devices = [device.id for device in stage.runtime_executable().local_devices()]
        program = *serialize_executable.serialize(stage), devices
        _loaded(*program)
    except Exception as error:
        do = "callbacks into Python, such as jax.debug.print, have to go"
        raise _error("saved", path, f"JAX cannot serialize the program: {error}", do) from error
    parts = {name: getattr(compiled, name) for name in _PARTS}
    rest, reason = _pickled((program, structure, parts, _name_and_signature(compiled.f)))
    if reason:
        places = structure.definitions(compiled.f).items()
        found = {place: why for place, part in places if (why := _pickled(part)[1])}
        why = first_few({*found.values()} or [reason])
        do = "keep it out of the arguments, or use functions of modules, and classes with =="
        raise _error("saved", first_few(found) or "what it returns", f"no equal value after pickling: {why}", do)
    header = {**_here(), "sha256": hashlib.sha256(rest).hexdigest()}
    check = functools.partial(check_own_file, place, _MAGIC, "the compiled program", ExportError)
    with written_whole(place, "the compiled program", ExportError, check) as draft:
        draft.write_bytes(_MAGIC + json.dumps(header).encode() + b"\n" + rest)


def read(path: str | os.PathLike[str]) -> tuple[Any, Compiled, Structure]:
    """JAX's executable in a file, what a call needs besides it, and the structure of its arguments.

    Raises:
        ExportError: it was compiled for something else, or the file is damaged.
    """
    place = given_path(path, ExportError)
    try:
        with open_file(place) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise _error("loaded", path, "a file of another kind")
            header = parse_json(file.readline(_MOST_HEADER), {str: str})
            rest = file.read()
    except OSError as error:
        raise _error("loaded", path, error.strerror or str(error), "check the path and its permissions") from error
    except SchemaError as error:
        raise _error("loaded", path, "a damaged header") from error
    for name, value in _here().items():
        if header.get(name) != value:
            raise ExportError(
                f"the program was compiled for another {name}",
                at=str(path),
                found=f"{header.get(name)}",
                expected=f"{value}, as here",
                do="compile and save it again",
            )
    if header.get("sha256") != hashlib.sha256(rest).hexdigest():
        raise _error("loaded", path, "a damaged file: its checksum differs")
    try:
        program, structure, parts, named = pickle.loads(rest)
        stage = _loaded(*program)
    except Exception as error:  # of a user's module or class
        raise _error("loaded", path, f"what cannot be read here: {type(error).__name__}: {text_of(error)}") from error
    compiled = Compiled.__new__(Compiled)
    for name, value in {**parts, "f": _Named(*named), "shardings": None}.items():
        setattr(compiled, name, value)
    return stage, compiled, structure


def _loaded(program: bytes, in_tree: TreeDef, out_tree: TreeDef, devices: list[int]) -> Any:
    by_id = {device.id: device for device in jax.devices()}
    execution_devices = [by_id[number] for number in devices]
    return serialize_executable.deserialize_and_load(program, in_tree, out_tree, execution_devices=execution_devices)


def _pickled(value: Value) -> tuple[bytes, str]:
    """The pickle of a value, and why it cannot be used, if what is read from it does not equal the value."""
    try:
        file = io.BytesIO()
        _Pickler(file).dump(value)
        again = pickle.loads(file.getvalue())
        return file.getvalue(), "" if again == value else repr_leaf(value)
    except Exception as error:  # of a user's class
        return b"", f"{type(error).__name__}: {text_of(error)}"


class _Pickler(pickle.Pickler):
    """Also pickles functions of JAX, by their public names, and functions made inside functions, by what they are
    compared by: their code, and the values that they close over. (``util/static_values.py``)"""

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, FunctionType) and (value.__closure__ or "<locals>" in value.__qualname__):
            closure = tuple([cell.cell_contents for cell in value.__closure__ or ()])
            given = closure, value.__defaults__, value.__kwdefaults__, value.__dict__
            return _function, (value.__globals__["__name__"], marshal.dumps(value.__code__), value.__qualname__, *given)
        if isinstance(named := to_named(value), NamedFunction):
            return _function_of, (named.name,)
        return NotImplemented


def _function(
    module: str, code: bytes, name: str, closure: Any, defaults: Any, kwdefaults: Any, attributes: dict[str, object]
) -> FunctionType:
    namespace, cells = vars(importlib.import_module(module)), tuple(map(CellType, closure))
    function = FunctionType(marshal.loads(code), namespace, None, defaults, cells)
    function.__qualname__, function.__kwdefaults__ = name, kwdefaults
    function.__dict__.update(attributes)
    return function


def _function_of(name: str) -> Any:
    importlib.import_module(name.partition(":")[0])
    return from_named(NamedFunction(name))


class _Named:
    """Stands for the function of a program: its name, and the names of its parameters for errors."""

    def __init__(self, name: str, signature: inspect.Signature | None) -> None:
        self.__name__, self.__signature__ = name, signature

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        raise NotImplementedError


def _name_and_signature(f: Callable[..., Tree]) -> tuple[str, inspect.Signature | None]:
    try:
        parameters = inspect.signature(f).parameters.values()
        signature = inspect.Signature([inspect.Parameter(each.name, each.kind) for each in parameters])
    except (TypeError, ValueError):
        signature = None
    return getattr(f, "__name__", type(f).__name__), signature


def _here() -> dict[str, str]:
    devices = jax.devices()
    return {
        "version of Python": platform.python_version(),
        "version of jax": jax_version,
        "version of jaxlib": jaxlib_version(),
        "version of plait": sys.modules[__name__.partition(".")[0]].__version__,
        "platform": f"{devices[0].platform} ({devices[0].device_kind}), {devices[0].client.platform_version}",
        "number of devices": f"{len(devices)}, of {jax.process_count()} processes",
    }


def _error(what: str, at: object, found: str, do: str = "compile and save it again") -> ExportError:
    return ExportError(f"the compiled program cannot be {what}", at=str(at), found=found, do=do)
