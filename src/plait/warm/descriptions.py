"""Descriptions: a short text for a Python value, equal in all processes where the value leads to the same program.

A stored program is reused only if everything that it depends on has the same description as when it was traced. A
description depends on content: numbers on their bits, arrays on their bytes, functions on code, defaults and closure,
classes on their attributes and bases, other objects on class and attributes. Functions and classes of JAX, NumPy and
Python's standard library are described by name, because their versions are part of every key; so are those of installed
packages, whose code and files are compared (``reads.py``, ``sources.py``). A name counts only if it leads to the value.

Values without such a description raise ``Unrecordable``: a lock, an open file, a captured model. (rule W3)
"""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import hashlib
import io
import logging
import operator
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from .._compat import Tracer, parts_of_jit
from ..core.graph.graphdef import GraphDef, LeafDef, NodeDef, StaticAttribute, VariableDef, iter_places, path_of
from ..core.objects.named import Sentinel, name_of
from ..core.objects.nodes import Static
from ..core.objects.statics import HashableMapping
from ..ground.paths import format_path
from ..ground.words import describe_type
from ..transforms.call.arguments import is_graph_leaf
from .codes import EMPTY, cells_of, code_token, content_of, digest, inner_codes
from .origins import Origin, is_users, origin_of
from .values import HEAP, HOLDERS, ITEMS, held_by, is_plain, is_python, registered_with


class Unrecordable(Exception):
    """A program depends on a value without a description that another process could compare."""


# Modules whose functions return different results in each call, and builtins that can reach any object.
IMPURE = frozenset({"random", "_random", "time", "secrets", "uuid", "numpy.random", "socket", "subprocess"})
_IMPURE_BUILTINS = (open, input, eval, exec, globals, compile, __import__, breakpoint, sys._getframe)
_IMPURE_TYPES = frozenset({io.FileIO})

# Values ---------------------------------------------------------------------------------------------------------------


NUMBERS = (bool, int, float)
_SIMPLE = (type(None), bool, int, str, bytes, type(...), type(NotImplemented), range, slice)
_NO_CONTENT = frozenset({
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__parameters__",
    "__firstlineno__", "__static_attributes__", "__dataclass_params__", "__orig_bases__", "__type_params__",
    "__slotnames__",
})  # fmt: skip
_OF_MEMBERS = ("__objclass__", "_sort_order_")
_DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)  # fmt: skip
_OF_LOGGERS = frozenset(vars(logging.Logger("")) | {"parent": None})
_OWN = __name__.partition(".")[0]
_DISPATCHER = functools.singledispatch(lambda value: None).__code__  # type: ignore[attr-defined]
_ADDRESS = re.compile(" at 0x[0-9a-f]+")


class Describer:
    """Describes values, and records the code that the descriptions cover.

    Attributes:
        codes: all code that a description covers.
        functions: the user's functions that a description covers.
        kept: functions with cached results, whose code may be needed without being entered.
        packages: the installed packages that a description names.
        numbers: the variables of closures that hold a number, with the number.

    Args:
        earlier: the same of another describer: the numbers that count as those of these variables.
    """

    def __init__(self, earlier: Iterable[tuple[CellType, Any]] = ()) -> None:
        self.numbers: list[tuple[CellType, Any]] = []
        self._earlier = {id(cell): number for cell, number in earlier}
        self.codes: set[CodeType] = set()
        self.functions: list[FunctionType] = []
        self.packages: set[str] = set()
        self.kept: list[FunctionType] = []
        self._done: dict[int, tuple[Any, str]] = {}
        self._open: list[int] = []

    def token(self, value: Any, place: str) -> str:
        """The description of a value.

        Args:
            place: the location of the value in the user's words, for the error.

        Raises:
            Unrecordable: it has no description.
        """
        if type(value) in _SIMPLE:
            return f"{type(value).__name__}:{value!r}"
        if type(value) is float:
            return f"float:{np.float64(value).tobytes().hex()}"
        if isinstance(value, enum.Enum) and id(type(value)) not in self._open:
            number = value.value if isinstance(value.value, int) else ""  # several flags at once have no name
            return digest("enum", [self.token(type(value), place), str(value.name), str(number)])
        if id(value) in self._done:
            return self._done[id(value)][1]
        if id(value) in self._open:
            return f"above:{len(self._open) - self._open.index(id(value))}"
        self._open.append(id(value))
        try:
            token = self._described(value, place)
        except RecursionError:
            raise Unrecordable(f"{place}: objects nested too deeply") from None
        finally:
            self._open.pop()
        self._done[id(value)] = (value, token)
        return token

    def all(self, kind: str, values: Iterable[Any], place: str) -> str:
        """One description for several values."""
        return digest(kind, [self.token(value, place) for value in values])

    def _described(self, value: Any, place: str) -> str:
        kind = type(value)
        if is_graph_leaf(value):
            raise Unrecordable(f"{place}: a {kind.__name__} that is not an argument")
        if isinstance(value, Tracer):
            raise Unrecordable(f"{place}: a traced array")
        make = _MAKERS.get(kind) or next((_OF_BASES[base] for base in _OF_BASES if isinstance(value, base)), None)
        if make is not None:
            return make(self, value, place)
        if kind.__module__ == "absl.flags._flagvalues":
            return digest("flags", [self.token(sorted(value.flag_values_dict().items()), place)])
        if kind.__module__ in ("typing", "types") and not isinstance(value, (types.SimpleNamespace, types.CellType)):
            return self._typing(value, place)
        if getattr(value, "__module__", None) is not None:
            name = self.installed_name(value)
            if name is not None:
                return name
        parts = parts_of_jit(value)
        if parts is not None:
            return self.all("jit", parts, place)
        return self._object(value, place)

    def installed_name(self, value: Any) -> str | None:
        """The description of a value that an installed module defines under a name; ``None`` for others."""
        origin = origin_of(value.__module__)
        name = name_of(value) if origin is not Origin.USER else None
        if name is None:
            return None
        if origin is Origin.PACKAGE:
            self.packages.add(value.__module__.partition(".")[0])
        return f"named:{name}"

    def module(self, value: types.ModuleType) -> str:
        """The description of a module: its name. What is used of it is described by itself."""
        if origin_of(value.__name__) is Origin.PACKAGE:
            self.packages.add(value.__name__.partition(".")[0])
        return f"module:{value.__name__}"

    def _member(self, value: enum.Enum, place: str) -> str:
        """The description of a member inside that of its enumeration: its name and attributes."""
        own = {name: item for name, item in vars(value).items() if name not in _OF_MEMBERS}
        return digest("member", [f"{name}={self.token(item, f'{place}.{name}')}" for name, item in own.items()])

    def _typing(self, value: Any, place: str) -> str:
        """The description of an annotation such as ``list[Config]``, by its parts."""
        parts = [getattr(value, name, None) for name in ("__origin__", "__args__", "__metadata__")]
        if parts == [None, None, None]:
            return f"typing:{value!r}"
        return self.all(f"typing {type(value).__name__}", parts, place)

    # Functions and classes

    def function(self, f: FunctionType, place: str) -> str:
        """The description of a function, without what it reads while it runs (``reads.py``)."""
        name = None if is_users(f) else self.installed_name(f)
        if name is not None:
            return name
        if f.__code__ is _DISPATCHER:
            return digest("dispatcher", [self.token(f.registry, place)])  # type: ignore[attr-defined]
        if "jitted_fn" in f.__dict__:  # a jitted function: its function and options
            return self.token(f.__dict__["jitted_fn"], place)
        place = f"{place}, function {f.__qualname__!r}" if f.__qualname__ not in place else place
        self.codes.update(inner_codes(f.__code__))
        self.functions.append(f)
        cells = [self.cell(cell, f"{place}, its variable {name!r}") for name, cell in cells_of(f)]
        defaults = self.all("defaults", f.__defaults__ or (), f"{place}, a default")
        keywords = self.all("defaults", sorted((f.__kwdefaults__ or {}).items()), f"{place}, a default")
        rest = self.all("dict", f.__dict__.items(), f"{place}, an attribute")
        names = f"{f.__module__} {f.__name__} {f.__qualname__}"
        return digest("function", [names, code_token(f.__code__), *cells, defaults, keywords, rest])

    def cell(self, cell: Any, place: str) -> str:
        """The description of the value of a variable of an enclosing function."""
        content = self._earlier.get(id(cell), content_of(cell))
        if type(content) in NUMBERS:
            self.numbers.append((cell, content))
        return "empty" if content is EMPTY else self.token(content, place)

    def _class(self, cls: type, place: str) -> str:
        if cls in _IMPURE_TYPES:
            raise Unrecordable(f"{place}: {cls.__module__}.{cls.__qualname__}, which reads files")
        is_native = not cls.__flags__ & HEAP and origin_of(cls.__module__) is not Origin.USER
        name = f"class:{cls.__module__}:{cls.__qualname__}"
        if is_native:
            return name
        place = f"the class {cls.__qualname__}"
        if self.installed_name(cls) is not None:
            parts = [*self._assigned(cls, place)]
            return digest(name, parts) if parts else name
        bases = [self.token(base, place) for base in (type(cls), *cls.__bases__)]
        content = [
            f"{name}={self.token(value, f'{place}, its attribute {name!r}')}"
            for name, value in vars(cls).items()
            if name not in _NO_CONTENT
        ]
        return digest("class", [cls.__module__, cls.__qualname__, *bases, *content, *registered_with(cls)])

    def _assigned(self, cls: type, place: str) -> Iterator[str]:
        """The attributes of an installed class, also inherited ones, that a program can have set: functions of the
        user's, and plain values."""
        for base in cls.__mro__:
            origin = origin_of(base.__module__)
            for name, value in [*vars(base).items()] if origin is not Origin.USER and base.__flags__ & HEAP else ():
                is_flag = origin is Origin.PACKAGE and not name.startswith("__") and is_plain(value)
                if is_flag or any(map(is_users, held_by(value) or [value])):
                    yield f"{name}={self.token(value, f'{place}, its attribute {name!r}')}"

    # Objects

    def _object(self, value: Any, place: str) -> str:
        """An object described by its class and attributes, if it has no other state."""
        kind = type(value)
        described = getattr(kind, "described_by", None) if kind.__module__.startswith(f"{_OWN}.") else None
        if described is not None:
            return digest("object", [self.token(kind, place), self.token(described(value), place)])
        content: list[str] = []
        for base in kind.__mro__:
            if base in ITEMS:
                content.append(self.token(ITEMS[base](value), place))
            elif base is not object and not is_python(base):
                raise Unrecordable(f"{place}: {describe_type(value)}")
        slots = [
            name
            for base in kind.__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        ]
        if kind is object:
            return "sentinel"  # which only its place tells from others
        if not hasattr(value, "__dict__") and not slots and not content and "__slots__" not in vars(kind):
            raise Unrecordable(f"{place}: {describe_type(value)}")
        attributes = {name: getattr(value, name) for name in slots if hasattr(value, name)}
        attributes |= getattr(value, "__dict__", {})
        content += [
            f"{name}={self.token(item, f'{place}.{name}')}"
            for name, item in attributes.items()
            if (name != "_hash" or is_users(kind))
            and not isinstance(getattr(kind, name, None), functools.cached_property)
        ]
        return digest("object", [self.token(kind, place), *content])

    def _array(self, value: Any, place: str) -> str:
        if value.is_deleted() or not value.is_fully_addressable:
            raise Unrecordable(f"{place}: an array that is not fully in this process")
        with jax.ensure_compile_time_eval():
            raw = jax.random.key_data(value) if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key) else value
            sum = hashlib.sha256(np.ascontiguousarray(raw).tobytes()).hexdigest()
        return digest("array", [str(value.dtype), repr(value.shape), repr(raw.weak_type), sum])

    def sharding(self, value: Any, place: str) -> str:
        """The description of a sharding: its devices, and how it shards an array."""
        devices = [device_token(device) for device in getattr(value, "_device_assignment", None) or ()]
        return digest("sharding", [type(value).__name__, repr(value), repr(value.memory_kind), *devices])

    # Structures

    def graphdef(self, root: GraphDef, place: str) -> str:
        """The description of a structure: classes, static attributes by value, metadata, sharing."""
        parts: list[str] = []
        for link, part in iter_places(root):
            where = f"{place}{('.' + format_path(path_of(link)))}" if link is not None else place
            parts.append(self.token(link[1], where) if link is not None else "root")
            if type(part) is StaticAttribute:
                parts.append(self.token(part.value, where))
                continue
            parts.append(f"{type(part).__name__}:{part.index}")
            if isinstance(part, LeafDef):
                continue
            parts.append(self.token(part.type, where))
            if isinstance(part, (NodeDef, VariableDef)):
                parts.append(self.token(part.metadata, where))
                parts.append(self.token(part.index_mapping, where))
            if isinstance(part, NodeDef):
                parts.append(str(len(part.attributes)))
        return digest("graphdef", parts)

    def treedef(self, treedef: Any, place: str) -> str:
        """The description of the structure of a pytree."""
        node = treedef.node_data()
        if node is None:
            return "leaf"
        parts = [self.token(node[0], place), self.token(node[1], place)]
        return digest("tree", [*parts, *(self.treedef(child, place) for child in treedef.children())])


def device_token(device: Any) -> str:
    """The description of a device."""
    return f"device:{device.platform}:{device.device_kind}:{device.id}:{device.process_index}"


def _dict(self: Describer, value: Any, place: str) -> str:
    items = [(self.token(key, place), self.token(item, f"{place}[{key!r}]")) for key, item in value.items()]
    return digest(type(value).__name__, [text for item in items for text in item])


def _set(self: Describer, value: Any, place: str) -> str:
    known = len(self.numbers)
    tokens = sorted(self.token(item, place) for item in value)
    del self.numbers[known:]  # of no order that another process has too
    return digest(type(value).__name__, tokens)


def _sequence(self: Describer, value: Any, place: str) -> str:
    return self.all(type(value).__name__, value, place)


def _ndarray(self: Describer, value: np.ndarray, place: str) -> str:
    if value.dtype.hasobject:
        return digest("objects", [repr(value.shape), *(self.token(item, place) for item in value.flat)])
    sum = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return digest("ndarray", [repr(value.dtype.descr), str(value.dtype), repr(value.shape), sum])


def _module(self: Describer, value: Any, place: str) -> str:
    if origin_of(value.__name__) is Origin.USER or value is sys:
        raise Unrecordable(f"{place}: the module {value.__name__!r} itself, any part of which may be used")
    return self.module(value)


def _builtin(self: Describer, value: Any, place: str) -> str:
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        if value.__module__ in IMPURE or value in _IMPURE_BUILTINS:
            raise Unrecordable(f"{place}: {value.__module__}.{value.__qualname__}, whose result varies")
        return f"builtin:{value.__module__}:{value.__qualname__}"
    return digest("builtin", [value.__qualname__, self.token(owner, place)])


def _cached(self: Describer, value: Any, place: str) -> str:
    name = self.installed_name(value)
    if name is not None:
        return name
    if isinstance(value.__wrapped__, FunctionType):
        self.kept.append(value.__wrapped__)
    own = {key: item for key, item in vars(value).items() if key not in functools.WRAPPER_ASSIGNMENTS}
    return digest("cached", [self.token(own, place), str(value.cache_parameters()["typed"])])


def _field(self: Describer, value: Any, place: str) -> str:
    names = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only", "metadata")
    type = value.type if isinstance(value.type, str) else _ADDRESS.sub("", repr(value.type))
    return digest("field", [type, *(self.token(getattr(value, name), place) for name in names)])


def _by(*names: str) -> Callable[[Describer, Any, str], str]:
    """A description from some attributes."""

    def make(self: Describer, value: Any, place: str) -> str:
        return self.all(type(value).__name__, [getattr(value, name) for name in names], place)

    return make


def _logger(self: Describer, value: logging.Logger, place: str) -> str:
    own = sorted((name, item) for name, item in vars(value).items() if name not in _OF_LOGGERS)
    level = f"{value.getEffectiveLevel()} {value.disabled} {value.manager.disable}"
    return digest("logger", [value.name, str(value.level), level, self.token(own, place)])


def _reduced(self: Describer, value: Any, place: str) -> str:
    return self.all(type(value).__name__, value.__reduce__()[1], place)


_MAKERS: dict[Any, Callable[[Describer, Any, str], str]] = {
    dict: _dict,
    types.MappingProxyType: _dict,
    HashableMapping: lambda self, value, place: digest(
        "mapping", sorted(f"{self.token(k, place)}={self.token(v, f'{place}, {k}')}" for k, v in value.items())
    ),
    list: _sequence,
    tuple: _sequence,
    set: _set,
    frozenset: _set,
    complex: lambda self, value, place: f"complex:{np.complex128(value).tobytes().hex()}",
    bytearray: lambda self, value, place: f"bytearray:{bytes(value)!r}",
    np.ndarray: _ndarray,
    types.ModuleType: _module,
    FunctionType: Describer.function,
    types.BuiltinFunctionType: _builtin,
    types.MethodWrapperType: _builtin,
    types.MethodType: _by("__self__", "__func__"),
    types.CodeType: lambda self, value, place: code_token(value),
    types.CellType: Describer.cell,
    types.SimpleNamespace: lambda self, value, place: digest("namespace", [_dict(self, vars(value), place)]),
    collections.OrderedDict: _dict,
    collections.defaultdict: lambda self, value, place: digest(
        "defaultdict", [self.token(value.default_factory, place), _dict(self, value, place)]
    ),
    collections.deque: lambda self, value, place: digest("deque", [repr(value.maxlen), _sequence(self, value, place)]),
    array.array: lambda self, value, place: f"array:{value.typecode}:{value.tobytes().hex()}",
    decimal.Decimal: lambda self, value, place: f"decimal:{value}",
    **dict.fromkeys(
        (datetime.date, datetime.time, datetime.datetime, datetime.timedelta), lambda self, value, place: repr(value)
    ),
    **{kind: _by(*names) for kind, names in HOLDERS.items()},
    functools.partialmethod: _by("func", "args", "keywords"),
    type(functools.lru_cache(lambda: 0)): _cached,
    re.Pattern: _by("pattern", "flags"),
    type(collections.namedtuple("Pair", "first").first): _reduced,  # type: ignore[attr-defined]
    operator.itemgetter: _reduced,
    operator.attrgetter: _reduced,
    operator.methodcaller: _reduced,
    dataclasses.Field: _field,
    Static: _by("value"),
    jax.tree_util.PyTreeDef: Describer.treedef,
}
# The same for subclasses, in this order.
_OF_BASES: dict[Any, Callable[[Describer, Any, str], str]] = {
    GraphDef: Describer.graphdef,
    type: Describer._class,
    jax.Array: Describer._array,
    np.dtype: lambda self, value, place: f"dtype:{value!r}",
    np.generic: lambda self, value, place: digest("scalar", [str(value.dtype), value.tobytes().hex()]),
    enum.Enum: Describer._member,
    jax.sharding.PartitionSpec: lambda self, value, place: digest("spec", [repr(value), *map(repr, value)]),
    jax.sharding.Mesh: lambda self, value, place: digest("mesh", [repr(value), *map(device_token, value.devices.flat)]),
    jax.sharding.AbstractMesh: lambda self, value, place: digest("mesh", [repr(value)]),
    jax.sharding.Sharding: Describer.sharding,
    jax.Device: lambda self, value, place: device_token(value),
    Sentinel: lambda self, value, place: f"sentinel:{value.__module__}:{value.name}",
    functools.partial: lambda self, value, place: self.all(
        "partial", (type(value), value.func, value.args, value.keywords, vars(value)), place
    ),
    logging.Logger: _logger,
    pathlib.PurePath: lambda self, value, place: f"path:{value}",
    _DESCRIPTORS: lambda self, value, place: f"descriptor:{value.__objclass__.__module__}:{value.__qualname__}",
}
