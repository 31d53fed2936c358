"""A model's structure as JSON, and back.

The configuration of a module is its graphdef, with shape and dtype of each leaf: types and functions by name, static
values as JSON. It contains no values and no code, and reading it runs no code, because names are looked up only in
modules that the program has already imported.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..core.graph import graphdef as graphs
from ..core.graph.graphdef import GraphDef, LeafDef, NodeDef, NodeRef, StaticAttribute, VariableDef
from ..core.graph.unflatten import Builder
from ..core.graph.walks import find_walk
from ..core.objects.cells import PLAIN_METADATA, PLAIN_METADATA_KEY
from ..core.objects.named import find_named, name_of
from ..core.objects.node_predicates import is_node_type
from ..core.objects.nodes import GenericPytree, check_node
from ..core.objects.statics import HashableMapping
from ..core.objects.variables import Variable
from ..errors import ConfigError
from ..ground.paths import Path, describe_path
from ..ground.words import describe_type

FORMAT = "plait-config-1"


def to_config(node: Any, /) -> dict[str, Any]:
    """The structure of a graph as a dict for ``json.dumps``.

    Args:
        node: a module, or any graph.

    Raises:
        ConfigError: a static value has no name or JSON form, such as a lambda; the message names its path.

    Example:
        >>> import json
        >>> model = plait.Linear(2, 3, rngs=plait.Rngs(0))
        >>> again = plait.from_config(json.loads(json.dumps(plait.to_config(model))))
        >>> plait.graphdef(again) == plait.graphdef(model), again.kernel.shape
        (True, (2, 3))
    """
    check_node(node, "to_config")
    walk = find_walk((node,))
    values = iter(walk.raw_values())
    return {"format": FORMAT, "graph": _encode(walk.graphdefs[0], values, ())}


def from_config(config: dict[str, Any], /) -> Any:
    """Build the graph of a configuration. Its leaves are ``jax.ShapeDtypeStruct``, to be filled by ``update`` or a
    checkpoint.

    Raises:
        ConfigError: it is not a configuration, or refers to a name that the program has not imported.
    """
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ConfigError(
            "this is not a plait configuration",
            found=f"format {config.get('format')!r}" if isinstance(config, dict) else describe_type(config),
            expected=f"a dict with format {FORMAT!r}",
            do="create one with plait.to_config(model)",
        )
    leaves: list[Any] = []
    graphdef = _decode(config["graph"], leaves, ())
    return Builder().build(graphdef, leaves)


def _encode(part: GraphDef | StaticAttribute, values: Any, path: Path) -> dict[str, Any]:
    if isinstance(part, StaticAttribute):
        return {"static": _encode_static(part.value, path)}
    if isinstance(part, NodeRef):
        return {"shared": part.index, "type": _name_of(part.type, path)}
    if isinstance(part, LeafDef):
        return {"array": _encode_leaf(next(values), path)}
    if isinstance(part, VariableDef):
        given = {} if part.metadata == PLAIN_METADATA_KEY else part.metadata
        return {
            "variable": _name_of(part.type, path),
            "index": part.index,
            "metadata": {name: _encode_static(value, path) for name, value in given.items()},
            "value": _encode_leaf(next(values), path),
        }
    assert isinstance(part, NodeDef)
    if part.type is GenericPytree:
        if part.attributes:
            raise _cannot("a container that is registered only with JAX", path)
        return {"value": _encode_static(Builder().build(part, []), path)}  # it has no leaves: it is a static value
    entries = [(entry.key, entry if isinstance(entry, StaticAttribute) else entry.value) for entry in part.attributes]
    attributes = [[key, _encode(child, values, (*path, key))] for key, child in entries]
    node: dict[str, Any] = {"node": _name_of(part.type, path), "attributes": attributes}
    if part.index is not None:
        node["index"] = part.index
    if part.metadata is not None:
        node["metadata"] = _encode_static(part.metadata, path)
    return node


def _encode_leaf(value: Any, path: Path) -> Any:
    if isinstance(value, dict):
        return {"dict": [[key, _encode_leaf(item, path)] for key, item in value.items()]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encode_leaf(item, path) for item in value]}
    if isinstance(value, (bool, int, float)):
        return {"number": value}
    if not hasattr(value, "shape"):
        raise _cannot(f"a value of type {type(value).__name__}", path)
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        impl = str(jax.random.key_impl(value)) if isinstance(value, jax.Array) else str(value.dtype)[4:-1]
        return {"shape": list(value.shape), "key": impl}
    return {"shape": list(value.shape), "dtype": str(value.dtype)}


def _encode_static(value: Any, path: Path) -> Any:
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else {"float": str(value)}
    if isinstance(value, enum.Enum):
        return {"enum": [_name_of(type(value), path), value.name]}
    if isinstance(value, PartitionSpec):
        return {"spec": [_encode_static(item, path) for item in value]}
    if type(value) in (tuple, list):
        return {type(value).__name__: [_encode_static(item, path) for item in value]}
    if isinstance(value, Mapping) and type(value) is not dict:
        items = [[_encode_static(k, path), _encode_static(v, path)] for k, v in value.items()]
        return {"mapping": _name_of(type(value), path), "items": items}
    if type(value) is dict:
        return {"dict": [[_encode_static(k, path), _encode_static(v, path)] for k, v in value.items()]}
    if isinstance(value, np.dtype):
        return {"dtype": str(value)}
    if value is ...:
        return {"ellipsis": True}
    if isinstance(value, functools.partial):
        return {
            "partial": _encode_static(value.func, path),
            "args": [_encode_static(item, path) for item in value.args],
            "keywords": {name: _encode_static(item, path) for name, item in value.keywords.items()},
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [[field.name, getattr(value, field.name)] for field in dataclasses.fields(value) if field.init]
        return {
            "dataclass": _name_of(type(value), path),
            "fields": [[name, _encode_static(item, path)] for name, item in fields],
        }
    return {"name": _name_of(value, path)}


def _name_of(value: Any, path: Path) -> str:
    """``module:qualified.name``, if that name refers to the value."""
    name = name_of(value)
    if name is None:
        raise _cannot(f"{value!r:.60} of type {type(value).__name__}, which has no importable name", path)
    return name


def _cannot(what: str, path: Path) -> ConfigError:
    return ConfigError(
        "this structure cannot be stored as a configuration",
        at=describe_path(path),
        found=what,
        expected="types and functions defined at the top level of a Python module, and values that JSON can represent",
        do="define the function at the top level of a Python module, not inside another function or as a lambda",
    )


def _resolve(name: Any, path: Path) -> Any:
    found = find_named(str(name))
    if found is None:
        raise ConfigError(
            "a configuration refers to a name that this program has not imported",
            at=describe_path(path),
            found=f"the name {name!r}",
            expected="a type or function of an imported Python module",
            do=f"import {str(name).partition(':')[0]} first; reading a configuration imports nothing by itself",
        )
    return found


def _decode(data: Any, leaves: list[Any], path: Path) -> Any:
    try:
        if "shared" in data:
            return graphs.node_ref(_resolve(data["type"], path), data["shared"])
        if "value" in data and "variable" not in data:
            return find_walk((_decode_value(data["value"], path),)).graphdefs[0]
        if "array" in data:
            leaves.append(_decode_value(data["array"], path))
            return graphs.leaf_def()
        if "variable" in data:
            cls = _class(data["variable"], path, "variable class", lambda cls: issubclass(cls, Variable))
            metadata = {name: _decode_value(value, path) for name, value in data["metadata"].items()}
            leaves.append(_decode_value(data["value"], path))
            key = HashableMapping({**PLAIN_METADATA, **metadata}) if metadata else PLAIN_METADATA_KEY
            return graphs.variable_def(cls, data["index"], key)
        entries: list[Any] = []
        for key, child in [(_key(key), child) for key, child in data["attributes"]]:
            if "static" in child:
                entries.append(graphs.static_attribute(key, _decode_value(child["static"], (*path, key))))
                continue
            part = _decode(child, leaves, (*path, key))
            is_leaf = part.type is None or issubclass(part.type, Variable)
            entries.append((graphs.leaf_attribute if is_leaf else graphs.sub_graph_attribute)(key, part))
        metadata = _decode_value(data["metadata"], path) if "metadata" in data else None
        cls = _class(data["node"], path, "node class", is_node_type)
        return graphs.node_def(cls, data.get("index"), tuple(entries), metadata)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            "a configuration is damaged",
            at=describe_path(path),
            found=f"{type(error).__name__}: {error}",
            expected="the unmodified result of plait.to_config",
            do="create it again with plait.to_config",
        ) from error


def _class(name: str, path: Path, kind: str, is_kind: Callable[[type], bool]) -> type:
    cls = _resolve(name, path)
    if not (isinstance(cls, type) and is_kind(cls)):
        raise TypeError(f"{name} is not a {kind}")
    return cls


def _key(key: Any) -> Any:
    """The original key: JSON turns tuples into lists, and a list cannot be a key."""
    return tuple(map(_key, key)) if isinstance(key, list) else key


def _decode_value(data: Any, path: Path) -> Any:
    if not isinstance(data, dict):
        return data
    # The entry with the kind of the value, in any order.
    kind = min(data, key=lambda name: name not in ("shape", "partial", "dataclass", "mapping"))
    value = data[kind]
    if kind == "shape":
        dtype = jax.random.key(0, impl=data["key"]).dtype if "key" in data else jnp.dtype(data["dtype"])
        return jax.ShapeDtypeStruct(tuple(value), dtype)
    if kind == "number":
        return value
    if kind == "float":
        return float(value)
    if kind == "enum":
        return _resolve(value[0], path)[value[1]]
    if kind == "spec":
        return PartitionSpec(*(_decode_value(item, path) for item in value))
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(_decode_value(item, path) for item in value)
    if kind == "dict":
        return _decode_items(value, path)
    if kind == "mapping":
        cls: Any = _class(value, path, "mapping class", lambda cls: issubclass(cls, Mapping))
        return cls(_decode_items(data["items"], path))
    if kind == "dtype":
        return jnp.dtype(value)
    if kind == "ellipsis":
        return ...
    if kind == "partial":
        args = [_decode_value(item, path) for item in data["args"]]
        keywords = {name: _decode_value(item, path) for name, item in data["keywords"].items()}
        return functools.partial(_decode_value(value, path), *args, **keywords)
    if kind == "dataclass":
        cls = _class(value, path, "dataclass", dataclasses.is_dataclass)
        return cls(**{name: _decode_value(item, path) for name, item in data["fields"]})
    if kind == "name":
        return _resolve(value, path)
    raise TypeError(f"unknown kind of static value {kind!r}")


def _decode_items(items: Any, path: Path) -> dict[Any, Any]:
    return {_key(_decode_value(k, path)): _decode_value(v, path) for k, v in items}
