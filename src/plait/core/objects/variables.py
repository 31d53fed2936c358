"""Variables: the only mutable cells of a model, each a typed box around a value and its metadata.

A variable owns one ``Cell``, for life. The cell holds the raw value, the metadata, the trace that the variable belongs
to and the version of its structure (its metadata). Crossings read and write cells, so nothing that they remember refers
to a variable or to what its metadata refers to.
"""

from __future__ import annotations

import collections
import copy
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from ..._compat import ArrayImpl, current_trace, is_mutable_array, new_ref, top_level_trace, trace_state
from ...errors import ArgumentTypeError, LostUpdateWarning, MetadataError, MetadataKeyError, VariableAttributeError
from ...words import describe_type, name_of_class, with_article
from .clock import Stamp, mark_changed
from .operators import VariableOperators
from .repr import render_tree, repr_fields, size_comment
from .settings import defaults
from .statics import HashableMapping
from .trace_guard import raise_foreign_trace
from .variable_metadata import HOOKS, VariableMetadata, hook_tuple

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

REQUIRED_METADATA = frozenset({"hijax", "ref", "eager_sharding"})
_HOOK_NAMES = frozenset(HOOKS)
_OLD_SHARDING_NAMES = ("sharding", "sharding_names")
_ARRAYS = (jax.Array, np.ndarray)
_SCALARS = (bool, int, float, complex)
_MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "<missing>"})()

# The metadata of a variable that was given none: one dict for all of them, replaced (never edited) when one changes.
PLAIN_METADATA: dict[str, Any] = {"hijax": False, "ref": False, "eager_sharding": True}
PLAIN_METADATA_KEY: HashableMapping[str, Any] = HashableMapping(PLAIN_METADATA)

# Runs an iterator to its end at the speed of C, and keeps nothing of what it gives.
run_through: Callable[[Iterable[Any]], None] = collections.deque[Any](maxlen=0).extend


class Cell(Stamp):
    """What a variable holds; the only part of it that crossings keep."""

    __slots__ = ("metadata", "raw", "trace")

    # Made by the million: whoever makes a cell sets all of it, the version too, and Python runs no constructor.
    __init__ = object.__init__


class _VariableType(type):
    """Gives every kind of variable empty slots, and registers it as a pytree."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        namespace.setdefault("__slots__", ())
        return super().__new__(mcs, name, bases, namespace, **options)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)
        if name == "Variable" or issubclass(cls, Variable):
            kind: Any = cls
            kind._class_hooks = tuple(hook for hook in HOOKS if hasattr(cls, hook))
            jax.tree_util.register_pytree_with_keys(kind, _flatten_with_keys, _unflattener(kind), _flatten_without_keys)

    _class_hooks: tuple[str, ...]


_VALUE_KEY = GetAttrKey("value")


class _LatestFlatten(threading.local):
    """The trace, other than the top level, in which JAX last took a variable apart in this thread."""

    trace: Any = None


_latest_flatten = _LatestFlatten()


class LentCell(Cell):
    """The cell of a variable that one of JAX's own transforms rebuilt inside a trace.

    What is written to it reaches the caller only if the variable is returned. A value that was changed, never flattened
    again and never walked by plait is lost when the cell dies, and the cell says so. A copy that the user makes inside
    the trace, with ``jax.tree.map``, is no such variable: it is taken apart in the trace in which it is rebuilt, while
    the arguments of a transform are taken apart outside of it.
    """

    __slots__ = ("carried", "kind")

    def __init__(self, cell: Cell, kind: type) -> None:
        self.version = 0
        self.raw = self.carried = cell.raw
        self.metadata = cell.metadata
        self.trace = cell.trace
        self.kind = kind.__name__

    def __del__(self) -> None:
        if self.raw is not self.carried and not self.version:
            what = f"{with_article(self.kind)} of shape {getattr(self.raw, 'shape', None)}"
            warnings.warn(
                f"{what} was changed inside one of JAX's own transforms, which works on a copy, and the change is "
                "lost. Return the module from the function, or use plait's transform of the same name, which carries "
                "changes out.",
                LostUpdateWarning,
                stacklevel=1,
            )


def metadata_key(cell: Cell) -> HashableMapping[str, Any]:
    """The metadata of a cell as a static value."""
    metadata = cell.metadata
    return PLAIN_METADATA_KEY if metadata is PLAIN_METADATA else HashableMapping(metadata)


def _flatten_with_keys(variable: Variable[Any]) -> Any:
    children, metadata = _flatten_without_keys(variable)
    return ((_VALUE_KEY, children[0]),), metadata


def _flatten_without_keys(variable: Variable[Any]) -> Any:
    cell = variable._cell
    if type(cell) is LentCell:
        cell.carried = cell.raw
    trace = trace_state.value
    if trace is not top_level_trace:
        _latest_flatten.trace = trace
    metadata = cell.metadata
    return (cell.raw,), PLAIN_METADATA_KEY if metadata is PLAIN_METADATA else HashableMapping(metadata)


def _unflattener(cls: type[Variable[Any]]) -> Callable[[Any, Any], Variable[Any]]:
    def unflatten(metadata: HashableMapping[str, Any], children: Any) -> Variable[Any]:
        trace = trace_state.value
        cell = Cell()
        cell.version = 0
        cell.raw = children[0]
        cell.metadata = PLAIN_METADATA if metadata is PLAIN_METADATA_KEY else dict(metadata)
        cell.trace = trace
        variable = _new(cls)
        if trace is not top_level_trace and trace is not _latest_flatten.trace:
            cell = LentCell(cell, cls)
        _set_cell(variable, cell)
        return variable

    return unflatten


def dict_of(metadata: HashableMapping[str, Any]) -> dict[str, Any]:
    """The metadata dict for a new variable; plain metadata stays the one shared dict."""
    return PLAIN_METADATA if metadata is PLAIN_METADATA_KEY else dict(metadata)


def make_variable(cls: type[Any], raw: Any, metadata: dict[str, Any], trace: Any) -> Any:
    """A variable around a raw value, without hooks, sharding or copies."""
    cell = Cell()
    cell.version = 0
    cell.raw = raw
    cell.metadata = metadata
    cell.trace = trace
    variable = _new(cls)
    _set_cell(variable, cell)
    return variable


def copied_cells(kinds: Iterable[type[Any]], cells: Iterable[Cell]) -> list[Any]:
    """What ``Variable.copy`` makes, for many at once: new variables of these classes around what the cells hold."""
    trace, plain = trace_state.value, PLAIN_METADATA
    variables = [*map(_new, kinds)]
    for variable, source in zip(variables, cells, strict=True):
        cell = Cell()
        cell.version = 0
        raw = source.raw
        cell.metadata = metadata = source.metadata
        if metadata is not plain and (type(raw) is not ArrayImpl or metadata["ref"]):
            raw = _fitting(raw, metadata)
        cell.raw = raw
        cell.trace = trace
        _set_cell(variable, cell)
    return variables


class Variable(VariableOperators, Generic[A], metaclass=_VariableType):
    """A mutable box around a value, usually an array, that has a kind (its class) and metadata.

    Reading and writing looks like using the array: ``v[...]`` and ``v.value`` read, ``v[...] = x`` and ``v.value = x``
    write, and every ``jax.numpy`` function and operator takes the variable itself. Subclasses give filters something
    to select; no registration is needed.

    Args:
        value: an array, a pytree, any Python object, or a ``VariableMetadata``.
        hijax: not offered by plait.
        ref: keep the value in a JAX reference cell.
        eager_sharding: place the value on devices as ``out_sharding`` says.
        **metadata: any entries; part of the structure of a graph, so they must compare, and hash under ``jit``.

    Raises:
        MetadataError: a JAX reference was given as the value, or a flag is given twice with different values.

    Example:
        >>> v = plait.Param(jnp.arange(3.0), note="demo")
        >>> v[...] = v + 1
        >>> v[0].item(), v.sum().item(), v.note
        (1.0, 6.0, 'demo')
    """

    __slots__ = ("__weakref__", "_cell", "_walks")

    required_metadata = REQUIRED_METADATA

    _cell: Cell

    def __init__(
        self,
        value: A | VariableMetadata[A],
        *,
        ref: bool | None = None,
        eager_sharding: bool | None = None,
        hijax: bool | None = None,
        **metadata: Any,
    ) -> None:
        given = {"hijax": hijax, "ref": ref, "eager_sharding": eager_sharding}
        entries = metadata
        if isinstance(value, VariableMetadata):
            entries = _joined_with_box(type(self), value, given, metadata)
            value = value.raw_value
        _refuse_references(value, type(self))
        flags = {name: getattr(defaults, name) if flag is None else flag for name, flag in given.items()}
        _refuse_hijax(type(self), flags)
        if entries:
            entries = _tidied(entries, stacklevel=2)
        for name in self._class_hooks:
            if not entries.get(name):
                entries[name] = (getattr(type(self), name),)
        cell = Cell()
        cell.version = 0
        cell.raw = None
        cell.trace = trace_state.value
        cell.metadata = {**flags, **entries} if entries or flags != PLAIN_METADATA else PLAIN_METADATA
        _set_cell(self, cell)
        for hook in entries.get("on_create_value", ()):
            value = hook(self, value)
        value = self.create_value(value)  # type: ignore[arg-type]
        if flags["eager_sharding"] and entries.get("out_sharding"):
            for place in eager_sharding_hooks:
                value = place(self, value)
        cell.raw = new_ref(jnp.asarray(value)) if flags["ref"] else value  # type: ignore[arg-type]

    def create_value(self, value: A) -> A:
        """What the constructor stores for ``value``; override it to change values on creation."""
        return value

    @classmethod
    def from_metadata(cls, value: A, metadata: Mapping[str, Any]) -> Variable[A]:
        """A variable of this class around ``value``, without hooks, ``create_value``, sharding or copies."""
        entries = {**PLAIN_METADATA, **_tidied(metadata, stacklevel=2)}
        _refuse_hijax(cls, entries)
        return make_variable(cls, value, PLAIN_METADATA if entries == PLAIN_METADATA else entries, current_trace())

    # Values -----------------------------------------------------------------------------------------------------------

    def get_raw_value(self) -> A:
        """The stored value, without hooks."""
        return self._cell.raw

    def set_raw_value(self, value: A) -> None:
        """Store a value, without hooks; with ``ref=True`` it is written through the reference.

        Raises:
            TraceContextError: the variable belongs to another trace, and has no reference to write through.
        """
        cell = self._cell
        if cell.metadata is not PLAIN_METADATA and _has_ref(cell) and not is_mutable_array(value):
            cell.raw[...] = value
            return
        if cell.trace is not trace_state.value:
            raise_foreign_trace(cell.trace, self, "change the value of")
        cell.raw = value

    raw_value = property(get_raw_value, set_raw_value)

    def get_value(self, *, index: Any = _MISSING) -> Any:
        """The value, after the get hooks.

        Args:
            index: read only this part: an array index, or the key of a dict, list or tuple value; ``...`` is all.
        """
        cell = self._cell
        value = cell.raw
        if cell.metadata is not PLAIN_METADATA and _has_ref(cell):
            value = value[... if index is _MISSING else index]
        elif index is not _MISSING and index is not ...:
            value = value[index]
        elif not isinstance(value, _ARRAYS):
            value = _copy_containers(value)
        if cell.metadata is not PLAIN_METADATA:
            for hook in cell.metadata.get("on_get_value", ()):
                value = hook(self, value)
        return value

    def set_value(self, value: Any, *, index: Any = _MISSING) -> None:
        """Store a value, after the set hooks.

        Without ``index`` shape, dtype and type may change. With it, arrays keep theirs: the new value is broadcast and
        cast into the part that the index names.

        Raises:
            TraceContextError: the variable belongs to another trace, and has no reference to write through.
        """
        cell = self._cell
        plain = cell.metadata is PLAIN_METADATA
        # JAX itself carries a write through a reference out of the trace it is made in.
        through_reference = not plain and _has_ref(cell)
        if cell.trace is not trace_state.value and not through_reference:
            raise_foreign_trace(cell.trace, self, "change the value of")
        if isinstance(value, Variable):
            value = value.get_value()
        if not plain:
            for hook in cell.metadata.get("on_set_value", ()):
                value = hook(self, value)
        if through_reference:
            cell.raw[... if index is _MISSING else index] = value
        elif index is not _MISSING:
            _store_part(cell, index, value)
        elif isinstance(value, _ARRAYS):
            cell.raw = value  # type: ignore[assignment]
        else:
            cell.raw = _copy_containers(value)

    @property
    def value(self) -> Any:
        """The value; the same as ``get_value()`` and ``set_value(x)``."""
        return self.get_value()

    @value.setter
    def value(self, value: Any) -> None:
        self.set_value(value)

    def __getitem__(self, index: Any) -> Any:
        return self.get_value(index=index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.set_value(value, index=index)

    def __delitem__(self, index: Any) -> None:
        value = self.get_value()
        del value[index]
        self.set_value(value)

    def __len__(self) -> int:
        return len(self.get_value())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get_value())

    def __contains__(self, item: Any) -> bool:
        return item in self.get_value()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.get_value()(*args, **kwargs)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.get_value())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.get_value(), dtype=dtype, copy=copy)

    # Attributes -------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_cell", "_walks"):
            raise AttributeError(name)
        cell = self._cell
        if name in cell.metadata:
            return cell.metadata[name]
        if name == "sharding_names" and "out_sharding" in cell.metadata:
            warnings.warn("sharding_names is now called out_sharding", DeprecationWarning, stacklevel=2)
            return cell.metadata["out_sharding"]
        try:
            return getattr(cell.raw, name)
        except AttributeError:
            if _has_ref(cell):
                return getattr(cell.raw[...], name)
            raise VariableAttributeError(
                f"{describe_type(self)} has no attribute {name!r}",
                found=f"no metadata of that name, and a value of type {type(cell.raw).__name__} without it",
                expected=f"an attribute of the value, or one of the metadata {sorted(cell.metadata)}",
                do=f"to add metadata of this name: variable.set_metadata({name}=value)",
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        descriptor = getattr(type(self), name, None)
        if (isinstance(descriptor, property) and descriptor.fset) or name == "_walks":
            object.__setattr__(self, name, value)
            return
        raise VariableAttributeError(
            f"cannot assign the attribute {name!r} of {describe_type(self)}",
            found="an assignment to an attribute",
            expected="`.value` and `[...]` are the only things that can be assigned",
            do=f"for the value write variable.value = value, for metadata variable.set_metadata({name}=value)",
        )

    def __delattr__(self, name: str) -> None:
        raise VariableAttributeError(
            f"cannot delete the attribute {name!r} of {describe_type(self)}",
            found="a deletion of an attribute",
            expected="only metadata can be deleted",
            do=f"to delete metadata: variable.del_metadata({name!r})",
        )

    @property
    def type(self) -> type[Variable[Any]]:
        """The class of the variable."""
        return self.__class__

    @property
    def var_type(self) -> type[Variable[Any]]:  # type: ignore[valid-type]
        """The class of the variable; the older name of ``type``."""
        return self.__class__

    # Metadata ---------------------------------------------------------------------------------------------------------

    def get_metadata(self, name: str = _MISSING, default: Any = _MISSING, *, exclude_required: bool = False) -> Any:
        """The metadata: all of it as a new dict, or the entry of a name.

        Args:
            name: the entry to return.
            default: what to return when there is none of that name.
            exclude_required: leave out the three flags that every variable has.

        Raises:
            MetadataKeyError: no entry of that name, and no default.
        """
        metadata = self._cell.metadata
        if name is _MISSING:
            if default is not _MISSING:
                raise ArgumentTypeError(
                    "get_metadata was given a default and no name",
                    found=f"default={default!r}",
                    expected="get_metadata(), get_metadata(name) or get_metadata(name, default)",
                    do="name the entry that the default is for: variable.get_metadata(name, default)",
                )
            return {key: metadata[key] for key in metadata if not (exclude_required and key in REQUIRED_METADATA)}
        if exclude_required:
            raise ArgumentTypeError(
                "get_metadata was given both a name and exclude_required",
                found=f"name={name!r}, exclude_required=True",
                expected="one of the two",
                do="drop exclude_required: variable.get_metadata(name)",
            )
        if name in metadata:
            return metadata[name]
        if name in _OLD_SHARDING_NAMES and "out_sharding" in metadata:
            warnings.warn(f"{name} is now called out_sharding", DeprecationWarning, stacklevel=2)
            return metadata["out_sharding"]
        if default is not _MISSING:
            return default
        raise MetadataKeyError(
            f"{describe_type(self)} has no metadata {name!r}",
            found=f"the entries {sorted(metadata)}",
            expected=f"an entry {name!r}",
            do=f"set it: variable.set_metadata({name}=value); or pass a default: variable.get_metadata({name!r}, None)",
        )

    def has_metadata(self, name: str) -> bool:
        """Whether there is a metadata entry of that name."""
        metadata = self._cell.metadata
        return name in metadata or (name in _OLD_SHARDING_NAMES and "out_sharding" in metadata)

    def set_metadata(self, *args: Any, **entries: Any) -> None:
        """Change the metadata: ``set_metadata(dict)`` replaces all of it, ``set_metadata(name, value)`` and
        ``set_metadata(**entries)`` change entries.

        Raises:
            MetadataError: one of the three flags would change.
            TraceContextError: the variable belongs to another trace.
        """
        metadata = kept = self._cell.metadata
        if len(args) == 1 and not entries and isinstance(args[0], Mapping):
            new, kept = args[0], {name: metadata[name] for name in PLAIN_METADATA}
        elif len(args) == 2 and not entries and isinstance(args[0], str):
            new = {args[0]: args[1]}
        elif not args and entries:
            new = entries
        else:
            raise ArgumentTypeError(
                "set_metadata was called in a form that it does not have",
                found=f"{len(args)} positional arguments and the keywords {sorted(entries)}",
                expected="set_metadata(dict), set_metadata(name, value) or set_metadata(name=value, ...)",
                do="for example variable.set_metadata(name=value)",
            )
        for name in REQUIRED_METADATA & new.keys():
            if new[name] != metadata[name]:
                raise _fixed_flag(self, name, metadata[name], new[name])
        self._replace_metadata({**kept, **_tidied(new, stacklevel=2)})

    def del_metadata(self, name: str) -> None:
        """Delete a metadata entry.

        Raises:
            MetadataKeyError: there is none of that name.
            MetadataError: the entry is one of the three flags.
        """
        metadata = self._cell.metadata
        if name in REQUIRED_METADATA:
            raise _fixed_flag(self, name, metadata[name], "deleted")
        self.get_metadata(name)
        name = "out_sharding" if name in _OLD_SHARDING_NAMES else name
        self._replace_metadata({key: value for key, value in metadata.items() if key != name})

    def _replace_metadata(self, metadata: dict[str, Any]) -> None:
        cell = self._cell
        if cell.trace is not trace_state.value:
            raise_foreign_trace(cell.trace, self, "change the metadata of")
        cell.metadata = PLAIN_METADATA if metadata == PLAIN_METADATA else metadata
        mark_changed(cell)

    def add_axis(self, axis_index: int, axis_name: Any) -> None:
        """Run the ``on_add_axis`` hooks."""
        for hook in self._cell.metadata.get("on_add_axis", ()):
            hook(self, axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: Any) -> None:
        """Run the ``on_remove_axis`` hooks."""
        for hook in self._cell.metadata.get("on_remove_axis", ()):
            hook(self, axis_index, axis_name)

    # Copies -----------------------------------------------------------------------------------------------------------

    def copy(self, value: Any = _MISSING, **updates: Any) -> Variable[A]:
        """A new variable of the same class, with another value and changed metadata where given; hooks do not run."""
        cell = self._cell
        metadata = cell.metadata
        if updates:
            metadata = {**metadata, **_tidied(updates, stacklevel=2)}
            _refuse_hijax(type(self), metadata)
        if metadata is PLAIN_METADATA:
            raw = cell.raw if value is _MISSING else value
        elif value is _MISSING:
            raw = _fitting(_read(cell.raw), metadata)
        else:
            raw = value if metadata["ref"] and is_mutable_array(value) else _fitting(value, metadata)
        return make_variable(type(self), raw, metadata, trace_state.value)

    replace = copy

    def to_variable(self) -> Variable[A]:
        """A fresh variable with the same value and metadata."""
        return self.copy()

    def to_state(self) -> Variable[A]:
        """A fresh detached variable with the same value and metadata."""
        return self.copy()

    def copy_from(self, other: Variable[A]) -> None:
        """Take value and metadata from a variable of exactly the same class.

        Raises:
            MetadataError: the classes differ.
            TraceContextError: this variable belongs to another trace.
        """
        if type(self) is not type(other):
            raise MetadataError(
                "copy_from takes a variable of the same class",
                found=describe_type(other),
                expected=describe_type(self),
                do="take the value alone: variable.set_value(other.get_value())",
            )
        cell = self._cell
        if cell.trace is not trace_state.value:
            raise_foreign_trace(cell.trace, self, "change")
        self.update_from_state(other)

    def update_from_state(self, leaf: Variable[A]) -> None:
        """Take the raw value and, where they differ, the metadata of a state leaf; the three flags are kept."""
        cell, source = self._cell, leaf._cell
        raw = source.raw if source.metadata is PLAIN_METADATA else _read(source.raw)
        if cell.metadata is not PLAIN_METADATA and _has_ref(cell):
            cell.raw[...] = raw
        else:
            cell.raw = raw
        if cell.metadata is not source.metadata:
            flags = {name: cell.metadata[name] for name in REQUIRED_METADATA}
            merged = {**source.metadata, **flags}
            if HashableMapping(merged) != HashableMapping(cell.metadata):
                cell.metadata = PLAIN_METADATA if merged == PLAIN_METADATA else merged
                mark_changed(cell)

    def __copy__(self) -> Variable[A]:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Variable[A]:
        cell = self._cell
        raw = jax.tree.map(
            lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf, memo), _read(cell.raw)
        )
        metadata = PLAIN_METADATA if cell.metadata is PLAIN_METADATA else copy.deepcopy(cell.metadata, memo)
        result = memo[id(self)] = make_variable(type(self), _fitting(raw, metadata), metadata, trace_state.value)
        return result

    def __reduce__(self) -> Any:
        cell = self._cell
        raw = _read(cell.raw)
        metadata = None if cell.metadata is PLAIN_METADATA else cell.metadata
        return _unpickle, (type(self), jax.tree.map(_storable, raw), metadata)

    def __repr__(self) -> str:
        comment = size_comment(jax.tree.leaves(self._cell.raw))
        return repr_fields(type(self).__name__, self._repr_fields(), comment=comment)

    def _repr_fields(self) -> list[tuple[str, Any]]:
        cell = self._cell
        shown = [
            (name, value)
            for name, value in cell.metadata.items()
            if name not in REQUIRED_METADATA or value != PLAIN_METADATA[name]
        ]
        return [("value", cell.raw), *shown]

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        return render_tree(type(self), dict(self._repr_fields()), path, subtree_renderer)


_new: Callable[[Any], Any] = object.__new__
cell_of: Callable[[Any], Cell] = Variable.__dict__["_cell"].__get__
_set_cell: Callable[[Any, Cell], None] = Variable.__dict__["_cell"].__set__

# Filled by the partitioning folder: functions (variable, value) -> placed value.
eager_sharding_hooks: list[Callable[[Variable[Any], Any], Any]] = []


class _StoredKey:
    """A typed random key on its way through pickle, which JAX does not offer for them."""

    __slots__ = ("data", "impl")

    def __init__(self, data: np.ndarray, impl: str) -> None:
        self.data = data
        self.impl = impl

    def __reduce__(self) -> Any:
        return _StoredKey, (self.data, self.impl)


def _storable(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _StoredKey(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return leaf


def _unpickle(cls: type[Variable[Any]], raw: Any, metadata: dict[str, Any] | None) -> Variable[Any]:
    raw = jax.tree.map(
        lambda leaf: (
            jax.random.wrap_key_data(jnp.asarray(leaf.data), impl=leaf.impl) if isinstance(leaf, _StoredKey) else leaf
        ),
        raw,
        is_leaf=lambda leaf: isinstance(leaf, _StoredKey),
    )
    metadata = PLAIN_METADATA if metadata is None else metadata
    return make_variable(cls, _fitting(raw, metadata), metadata, trace_state.value)


def _has_ref(cell: Cell) -> bool:
    """Whether the value is kept in a JAX reference."""
    return cell.metadata["ref"] and is_mutable_array(cell.raw)


def _read(raw: Any) -> Any:
    """The value in a reference, or the value itself."""
    return raw[...] if is_mutable_array(raw) else raw


def _fitting(value: Any, metadata: dict[str, Any]) -> Any:
    """A value as metadata asks: in a new reference with ``ref=True``, by itself otherwise."""
    value = _read(value)
    return new_ref(jnp.asarray(value)) if metadata["ref"] and isinstance(value, (*_ARRAYS, *_SCALARS)) else value


def _copy_containers(value: Any) -> Any:
    if value is None or isinstance(value, (*_SCALARS, str)):
        return value
    return jax.tree.map(lambda leaf: leaf, value)


def _store_part(cell: Cell, index: Any, value: Any) -> None:
    raw = cell.raw
    if isinstance(raw, jax.Array):
        same = (
            index is ...
            and isinstance(value, jax.Array)
            and value.shape == raw.shape
            and value.dtype == raw.dtype
            and getattr(value, "sharding", None) == getattr(raw, "sharding", None)
        )
        cell.raw = value if same else raw.at[index].set(_cast(value, raw.dtype))
    elif isinstance(raw, np.ndarray):
        # A copy: detached state leaves and clones hold the same NumPy array.
        copied = raw.copy()
        copied[index] = value
        cell.raw = copied
    elif index is ...:
        cell.raw = value if isinstance(value, _ARRAYS) else _copy_containers(value)
    else:
        copied = _copy_containers(raw)
        copied[index] = value
        cell.raw = copied


def _cast(value: Any, dtype: Any) -> Any:
    if not isinstance(value, jax.Array):
        value = np.asarray(value)
    return value if value.dtype == dtype else jnp.asarray(value).astype(dtype)


def _joined_with_box(
    kind: type, box: VariableMetadata[Any], given: dict[str, bool | None], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Metadata from an initializer and from the constructor: its entries win, our hooks win, flags must agree."""
    entries = dict(box.metadata)
    for name in REQUIRED_METADATA & entries.keys():
        flag = entries.pop(name)
        if given[name] is not None and given[name] != flag:
            raise MetadataError(
                f"the flag {name!r} was given twice with different values",
                at=with_article(kind.__name__),
                found=f"{name}={given[name]} as a keyword, {flag} from the initializer's metadata",
                expected="one value",
                do=f"leave out one of the two, for example drop {name}= from the constructor",
            )
        given[name] = flag
    hooks = {name: hook for name, hook in keywords.items() if name in _HOOK_NAMES and hook}
    return {**keywords, **entries, **box.hooks(), **hooks}


def _refuse_hijax(kind: type, flags: Mapping[str, Any]) -> None:
    if flags["hijax"]:
        raise NotImplementedError(
            f"{kind.__name__}: hijax=True is not offered by plait; leave hijax out, the variable then works "
            "under every transform"
        )


def _tidied(entries: Mapping[str, Any], *, stacklevel: int) -> dict[str, Any]:
    """New metadata entries: hooks as tuples, old sharding names renamed. Warnings name the caller's caller."""
    tidy = dict(entries)
    for old in _OLD_SHARDING_NAMES:
        if old in tidy:
            warnings.warn(
                f"the metadata entry {old!r} is now called 'out_sharding'",
                DeprecationWarning,
                stacklevel=stacklevel + 1,
            )
            tidy["out_sharding"] = tidy.pop(old)
    for name in _HOOK_NAMES & tidy.keys():
        tidy[name] = hook_tuple(tidy[name])
        if tidy[name]:
            _warn_about_hooks(stacklevel + 1)
    return tidy


_hooks_warned: set[str] = set()


def _warn_about_hooks(stacklevel: int) -> None:
    """Once per process: methods say the same as hooks in metadata, and can be read in one place."""
    if not _hooks_warned:
        _hooks_warned.add("warned")
        warnings.warn(
            "hooks in the metadata of a variable work, and are clearer as methods: override get_value, set_value or "
            "create_value in a subclass of the variable",
            DeprecationWarning,
            stacklevel=stacklevel + 1,
        )


def _refuse_references(value: Any, kind: type) -> None:
    if isinstance(value, _ARRAYS) and not is_mutable_array(value):
        return
    if any(map(is_mutable_array, jax.tree.leaves(value))):
        raise MetadataError(
            f"a JAX Ref is not allowed as the value of {with_article(kind.__name__)}",
            found="a value that is, or contains, a JAX Ref",
            expected="arrays or other values",
            do=f"pass the array and let the variable make the reference: {name_of_class(kind)}(x, ref=True)",
        )


def _fixed_flag(variable: Variable[Any], name: str, old: Any, new: Any) -> MetadataError:
    return MetadataError(
        f"the flag {name!r} of {describe_type(variable)} cannot be changed",
        found=f"{new!r}",
        expected=f"{old!r}, as it was when the variable was made",
        do=f"make a new variable: {name_of_class(type(variable))}(value, {name}={not old})",
    )


class Param(Variable[A]):
    """A value that training learns.

    Example:
        >>> plait.state(plait.Linear(2, 3, rngs=plait.Rngs(0)), plait.Param)["bias"].shape
        (3,)
    """


class LoRAParam(Param[A]):
    """A value of a low-rank adapter; a kind of ``Param``.

    Example:
        >>> isinstance(plait.LoRAParam(jnp.zeros(2)), plait.Param)
        True
    """


class BatchStat(Variable[A]):
    """A running statistic that a layer updates itself.

    Example:
        >>> mean = plait.BatchStat(jnp.zeros(2))
        >>> mean.value = 0.9 * mean + 0.1 * jnp.ones(2)
        >>> mean[0].item()
        0.10000000149011612
    """


class Cache(Variable[A]):
    """Keys and values that autoregressive decoding keeps.

    Example:
        >>> cache = plait.Cache(jnp.zeros((4, 2)))
        >>> cache[1] = jnp.ones(2)
        >>> cache.sum().item()
        2.0
    """


class Intermediate(Variable[A]):
    """A value that a module sows while it runs.

    Example:
        >>> plait.Intermediate((jnp.ones(2),))[0].shape
        (2,)
    """


class Perturbation(Intermediate[A]):
    """A zero added to an intermediate value so that its gradient can be read.

    Example:
        >>> isinstance(plait.Perturbation(jnp.zeros(2)), plait.Intermediate)
        True
    """


class OptState(Variable[A]):
    """A value that an optimizer keeps between steps."""


class OptArray(OptState[A]):
    """An array of an optimizer's state that belongs to no variable of the model, such as a count of steps."""


class OptVariable(OptState[A]):
    """An array of an optimizer's state that mirrors a variable of the model, such as a momentum; has its metadata."""


class VariableState(Variable[A]):
    """Any leaf of a state: every variable is an instance.

    ``VariableState(type=Param, value=v, **metadata)`` makes a detached variable of the given kind.

    Raises:
        ArgumentTypeError: ``type`` is no variable class.

    Example:
        >>> leaf = plait.VariableState(plait.Param, jnp.zeros(2), note="demo")
        >>> leaf.type.__name__, leaf.note, isinstance(leaf, plait.VariableState)
        ('Param', 'demo', True)
    """


class _VariableStateType(_VariableType):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, Variable)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, Variable)

    def __call__(cls, type: Any, value: Any, **metadata: Any) -> Any:
        if not (isinstance(type, _VariableType) and issubclass(type, Variable)):
            raise ArgumentTypeError(
                "VariableState needs a variable class",
                found=f"type={type!r}",
                expected="a subclass of plait.Variable",
                do="for example plait.VariableState(plait.Param, value)",
            )
        return type.from_metadata(value, metadata)


VariableState.__class__ = _VariableStateType  # pyright: ignore[reportAttributeAccessIssue]  # known to Python only
