"""Trees, structures and outcomes as JSON, and back.

The outcome of a call is a static value (``Outcome``), which a later process needs without tracing. It is serialized by
kind: numbers, strings, containers, and classes and functions by name. A static value that also occurs in the arguments,
such as the optimizer's transformation or an activation, is stored as its number among theirs, and the later process
uses its own value. Nothing is pickled, and nothing is imported. (rule W6)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from .._compat import Executable, impl_of_keys, key_dtype, treedef_from
from ..core.graph import graphdef as graphs
from ..core.graph.graphdef import GraphDef, LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef, iter_places
from ..core.objects.named import find_named, name_of
from ..core.objects.nodes import Static
from ..core.objects.statics import HashableMapping
from ..ground.words import describe_type
from ..transforms.call.gather import Structure
from ..transforms.call.outcome import Address, Outcome


class NoForm(Exception):
    """A value cannot be serialized, or a serialized value does not exist in this process."""


class Forms:
    """Serializes and reads values, relative to the arguments of one call.

    Args:
        structures: the structures of the arguments, whose static values need not be stored.
        backend: the name of the backend that has the devices of shardings.
    """

    def __init__(self, structures: Sequence[Structure], backend: str | None = None) -> None:
        self.backend = backend
        self.known = [value for structure in structures for value in _statics(structure)]
        self.numbers = {id(value): number for number, value in reversed([*enumerate(self.known)])}

    def write(self, value: Any) -> Any:
        """A value as JSON.

        Raises:
            NoForm: it cannot be serialized.
        """
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if id(value) in self.numbers:
            return ["argument", self.numbers[id(value)]]
        if kind in _WRITERS:
            return [_NAMES.get(kind, kind.__name__), _WRITERS[kind](self, value)]
        if isinstance(value, GraphDef):
            return ["graphdef", self._part(value)]
        if isinstance(value, np.dtype):
            return ["dtype", value.name]
        name = name_of(value) if isinstance(value, type) or callable(value) else None
        if name is not None:
            return ["named", name]
        if isinstance(value, jax.sharding.Sharding):
            return ["sharding", write_sharding(value)]
        raise NoForm(f"{describe_type(value)} in what the function returns, or in the new structure of an argument")

    def read(self, form: Any) -> Any:
        """The inverse of ``write``.

        Raises:
            NoForm: a name does not exist in this process.
        """
        if not isinstance(form, list):
            return form
        kind, content = form
        if kind == "argument":
            return self.known[content]
        return _READERS[kind](self, content)

    # Graphdefs

    def _part(self, part: Any) -> Any:
        if isinstance(part, NodeDef):
            entries = [
                [self.write(entry.key), ["static", self.write(entry.value)]]
                if type(entry) is StaticAttribute
                else [self.write(entry.key), [_ENTRIES[type(entry)], self._part(entry.value)]]
                for entry in part.attributes
            ]
            rest = self.write(part.metadata), self.write(part.index_mapping)
            return ["node", self.write(part.type), part.index, entries, *rest]
        if isinstance(part, VariableDef):
            return ["variable", *map(self.write, (part.type, part.index, part.metadata, part.index_mapping))]
        if isinstance(part, NodeRef):
            return ["reference", self.write(part.type), part.index]
        return ["leaf", part.index]

    def _from_part(self, form: Any) -> Any:
        kind, *content = form
        if kind == "leaf":
            return graphs.leaf_def(*content)
        if kind == "reference":
            return graphs.node_ref(self.read(content[0]), content[1])
        if kind == "variable":
            type, index, metadata, mapping = map(self.read, content)
            return graphs.with_index_mapping(graphs.variable_def(type, index, metadata), mapping)
        type, index, entries, metadata, mapping = content
        made = tuple(
            _MAKERS[how](self.read(key), self.read(value) if how == "static" else self._from_part(value))
            for key, (how, value) in entries
        )
        plain = graphs.node_def(self.read(type), index, made, self.read(metadata))
        return graphs.with_index_mapping(plain, self.read(mapping))

    # Trees

    def _tree(self, treedef: Any) -> Any:
        node = treedef.node_data()
        if node is None:
            return "*"
        return [self.write(node[0]), self.write(node[1]), *map(self._tree, treedef.children())]

    def _from_tree(self, form: Any) -> Any:
        if form == "*":
            return treedef_from(None, ())
        kind, content, *children = form
        return treedef_from((self.read(kind), self.read(content)), [*map(self._from_tree, children)])


def _statics(structure: Structure) -> Iterator[Any]:
    """Every static value of a structure, in the same order for equal structures."""
    for root in structure.roots:
        for _, part in iter_places(root):
            if type(part) is StaticAttribute:
                yield part.value
            elif not isinstance(part, LeafDef):
                yield part.type
                if isinstance(part, VariableDef):
                    yield part.metadata
                    yield from part.metadata.values()
                elif isinstance(part, NodeDef):
                    yield part.metadata
    yield from _in_tree(structure.treedef)


def _in_tree(treedef: Any) -> Iterator[Any]:
    node = treedef.node_data()
    if node is not None:
        yield from node
        for child in treedef.children():
            yield from _in_tree(child)


def _written_mapping(forms: Forms, value: Any) -> Any:
    return [[forms.write(key), forms.write(item)] for key, item in value.items()]


def _read_mapping(forms: Forms, content: Any) -> dict[Any, Any]:
    return {forms.read(key): forms.read(item) for key, item in content}


def _written_items(forms: Forms, value: Any) -> Any:
    return [forms.write(item) for item in value]


def _written_fields(forms: Forms, value: Any) -> Any:
    return [forms.write(getattr(value, field.name)) for field in dataclasses.fields(value)]


def _read_name(_: Forms, name: str) -> Any:
    found = find_named(name)
    if found is None:
        raise NoForm(f"{name} is not imported here")
    return found


_ENTRIES = {graphs.SubGraphAttribute: "node", graphs.LeafAttribute: "leaf"}
_MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "node": graphs.sub_graph_attribute,
    "leaf": graphs.leaf_attribute,
    "static": graphs.static_attribute,
}

_KEYS: type = type(key_dtype("fry"))  # of the dtypes of random keys
_WRITERS: dict[type, Callable[[Forms, Any], Any]] = {
    float: lambda forms, value: value.hex(),
    complex: lambda forms, value: [value.real.hex(), value.imag.hex()],
    bytes: lambda forms, value: value.hex(),
    type(...): lambda forms, value: None,
    tuple: _written_items,
    list: _written_items,
    dict: _written_mapping,
    HashableMapping: _written_mapping,
    frozenset: lambda forms, value: _written_items(forms, sorted(value, key=repr)),
    Static: lambda forms, value: forms.write(value.value),
    jax.tree_util.PyTreeDef: Forms._tree,
    Structure: _written_fields,
    Address: _written_items,
    Outcome: _written_fields,
    Executable: _written_fields,
    _KEYS: lambda forms, value: impl_of_keys(value),
    PartitionSpec: lambda forms, value: write_spec(value),
}
_NAMES = {PartitionSpec: "PartitionSpec", _KEYS: "keys"}  # ``__name__`` differs between versions of JAX
_READERS: dict[str, Callable[[Forms, Any], Any]] = {
    "float": lambda forms, content: float.fromhex(content),
    "complex": lambda forms, content: complex(*map(float.fromhex, content)),
    "bytes": lambda forms, content: bytes.fromhex(content),
    "ellipsis": lambda forms, content: ...,
    "tuple": lambda forms, content: tuple(map(forms.read, content)),
    "list": lambda forms, content: [*map(forms.read, content)],
    "dict": _read_mapping,
    "HashableMapping": lambda forms, content: HashableMapping(_read_mapping(forms, content)),
    "frozenset": lambda forms, content: frozenset(map(forms.read, content)),
    "Static": lambda forms, content: Static(forms.read(content)),
    "PyTreeDef": Forms._from_tree,
    "Structure": lambda forms, content: Structure(*map(forms.read, content)),
    "Address": lambda forms, content: Address(*map(forms.read, content)),
    "Outcome": lambda forms, content: Outcome(*map(forms.read, content)),
    "Executable": lambda forms, content: Executable(*map(forms.read, content)),
    "keys": lambda forms, content: key_dtype(content),
    "PartitionSpec": lambda forms, content: read_spec(content),
    "graphdef": Forms._from_part,
    "dtype": lambda forms, content: jax.numpy.dtype(content),
    "named": _read_name,
    "sharding": lambda forms, content: read_sharding(content, forms.backend),
}


# Shardings ------------------------------------------------------------------------------------------------------------


def write_spec(spec: Any) -> Any:
    """A partition spec as JSON."""
    if spec != PartitionSpec(*spec) or any(entry is PartitionSpec.UNCONSTRAINED for entry in spec):
        raise NoForm(f"the partition spec {spec!r}")
    return [[*entry] if isinstance(entry, tuple) else entry for entry in spec]


def read_spec(form: Any) -> Any:
    """The inverse of ``write_spec``."""
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in form))


def write_sharding(sharding: Any) -> Any:
    """A sharding of an executable as JSON.

    Raises:
        NoForm: this kind of sharding cannot be serialized.
    """
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return {"device": device.id, "memory": sharding.memory_kind}
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        mesh = sharding.mesh
        return {
            "axes": [*mesh.axis_names],
            "types": [kind.name for kind in mesh.axis_types],
            "shape": [*mesh.devices.shape],
            "devices": [device.id for device in mesh.devices.flat],
            "spec": write_spec(sharding.spec),
            "memory": sharding.memory_kind,
        }
    raise NoForm(f"{sharding!r}, a kind that cannot be stored in a file")


def read_sharding(form: Any, backend: str | None) -> Any:
    """The inverse of ``write_sharding``."""
    by_id = {device.id: device for device in jax.devices(backend)}
    try:
        if "device" in form:
            return SingleDeviceSharding(by_id[form["device"]], memory_kind=form["memory"])
        devices = np.array([by_id[number] for number in form["devices"]], dtype=object).reshape(form["shape"])
    except KeyError as error:
        raise NoForm(f"this process has no device {error}") from None
    mesh = Mesh(devices, tuple(form["axes"]), axis_types=tuple(AxisType[name] for name in form["types"]))
    return NamedSharding(mesh, read_spec(form["spec"]), memory_kind=form["memory"])
