"""Variables: the mutable cells of a model, each a typed container of a value and its metadata.

A variable has one ``Cell`` for its whole life. The cell holds the raw value, the metadata, the trace that the variable
belongs to, and the version of its structure (its metadata). Transforms read and write cells, so their caches never
reference a variable or the objects in its metadata.

This file is long because ``Variable`` is one class, with the whole interface of a container of an array. Its operators
and its metadata methods are in separate files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import GetAttrKey

from ...errors import MetadataError, ShapeError, VariableAttributeError
from ...typing import DTypeLike, Metadata, Node, Tree, Value
from ...util.jax_versions import ArrayImpl, Trace, current_trace, is_mutable_array, top_level_trace, trace_state
from ...util.named import from_named, to_named
from ...util.repr import render_object, repr_fields, size_comment
from ...util.sentinels import NOTHING
from ...util.static_values import HashableMapping
from ...util.words import describe_type, name_of_class, with_article
from ..settings import defaults
from ..traces.guard import check_trace, known_path, raise_foreign_trace
from ..traces.lost_writes import LentCell, latest_flatten, note_write
from .cells import (
    ARRAYS,
    DETACHED,
    PLAIN_METADATA,
    PLAIN_METADATA_KEY,
    REQUIRED_METADATA,
    Cell,
    StoredKey,
    as_picklable,
    as_stored,
    contents_of,
    copy_containers,
    has_ref,
    mark_changed,
    note_foreign_read,
    note_foreign_reads,
    read,
)
from .operators import VariableOperators, usable, value_of
from .variable_metadata import HOOKS, MetadataMethods, VariableMetadata, joined_with_box, refuse_hijax, tidied

A = TypeVar("A")

if TYPE_CHECKING:  # a variable goes where an array may, and has its attributes
    _Array = jax.Array
else:
    _Array = object


class VariableType(type):
    """Metaclass that gives every variable class empty slots and registers it as a pytree."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, object], **options: Any) -> Any:
        namespace.setdefault("__slots__", ())
        return super().__new__(mcs, name, bases, namespace, **options)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **options: Any) -> None:
        super().__init__(name, bases, namespace, **options)
        if name == "Variable" or issubclass(cls, Variable):
            kind: Any = cls
            kind._class_hooks = tuple(hook for hook in HOOKS if hasattr(cls, hook))
            jax.tree_util.register_pytree_with_keys(kind, _flatten_with_keys, kind._unflatten, _flatten_without_keys)

    _class_hooks: tuple[str, ...]

    def _unflatten(cls, metadata: HashableMapping[str, object], children: Sequence[Value]) -> Variable[Value]:
        trace = trace_state.value
        cell = Cell()
        cell.version = 0
        cell.raw = children[0]
        cell.metadata = PLAIN_METADATA if metadata is PLAIN_METADATA_KEY else dict(metadata)
        cell.trace = trace
        variable = _new(cls)
        if trace is not top_level_trace and trace is not latest_flatten.trace:
            cell = LentCell(cell, cls)
        _set_cell(variable, cell)
        return variable


_VALUE_KEY = GetAttrKey("value")


def _flatten_with_keys(variable: Variable[Value]) -> Any:
    children, metadata = _flatten_without_keys(variable)
    return ((_VALUE_KEY, children[0]),), metadata


def _flatten_without_keys(variable: Variable[Value]) -> Any:
    cell = variable._cell
    if type(cell) is LentCell:
        cell.carried = cell.raw
    trace = trace_state.value
    if trace is not top_level_trace:
        latest_flatten.trace = trace
        note_foreign_read(cell)
    metadata = cell.metadata
    return (cell.raw,), PLAIN_METADATA_KEY if metadata is PLAIN_METADATA else HashableMapping(metadata)


def make_variable(cls: type[Any], raw: Value, metadata: Metadata, trace: Trace | None) -> Any:
    """A variable with a raw value, without hooks, sharding or copies."""
    cell = Cell()
    cell.version = 0
    cell.raw = raw
    cell.metadata = metadata
    cell.trace = trace
    variable = _new(cls)
    _set_cell(variable, cell)
    return variable


def make_variables(kinds: Iterable[type[Any]], raws: Iterable[Value], metadata: Iterable[Metadata]) -> list[Any]:
    """``make_variable`` in the current trace, for many at once; each variable gets its own metadata."""
    trace, plain = trace_state.value, PLAIN_METADATA
    variables = [*map(_new, kinds)]
    for variable, raw, given in zip(variables, raws, metadata, strict=True):
        cell = Cell()
        cell.version = 0
        cell.raw = raw
        cell.metadata = given if given is plain else {**given}
        cell.trace = trace
        _set_cell(variable, cell)
    return variables


def copied_cells(kinds: Iterable[type[Any]], cells: Iterable[Cell], version: int = 0) -> list[Any]:
    """``Variable.copy`` for many at once: new variables of these classes with the contents of the cells."""
    trace, plain = trace_state.value, PLAIN_METADATA
    if trace is not top_level_trace:
        note_foreign_reads(cells := [*cells])
    variables = [*map(_new, kinds)]
    for variable, source in zip(variables, cells, strict=True):
        cell = Cell()
        cell.version = version
        raw = source.raw
        cell.metadata = metadata = source.metadata
        if metadata is not plain and (type(raw) is not ArrayImpl or metadata["ref"]):
            raw = as_stored(raw, metadata)
        cell.raw = raw
        cell.trace = trace
        _set_cell(variable, cell)
    return variables


class Variable(VariableOperators, MetadataMethods, Generic[A], _Array, metaclass=VariableType):
    """A mutable container of a value, usually an array, with a kind (its class) and metadata.

    It is used like the array: ``v[...]`` and ``v.value`` read, ``v[...] = x`` and ``v.value = x`` write, and every
    ``jax.numpy`` function and operator accepts the variable itself. Filters select variables by class; subclasses need
    no registration.

    Args:
        value: an array, a pytree, any Python object, or a ``VariableMetadata``.
        hijax: not supported by plait.
        ref: whether to store the value in a JAX reference.
        eager_sharding: whether to place the value on devices according to ``out_sharding``.
        **metadata: any entries; they are part of the structure of a graph, so they need ``==``, and a hash under
            ``jit``.

    Raises:
        MetadataError: a JAX reference was given as the value, or a flag is given twice with different values.

    Example:
        >>> v = plait.Param(jnp.arange(3.0), note="demo")
        >>> v[...] = v + 1
        >>> v[0].item(), v.sum().item(), v.note
        (1.0, 6.0, 'demo')
    """

    __slots__ = ("__weakref__", "_cell", "_pytree__walks")

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
        if type(self).__dictoffset__:  # attributes that a subclass assigned before it called this constructor
            entries.update(vars(self))
            vars(self).clear()
        if isinstance(value, VariableMetadata):
            entries = joined_with_box(type(self), value, given, metadata)
            value = value.raw_value
        _refuse_references(value, type(self))
        flags = {name: getattr(defaults, name) if flag is None else flag for name, flag in given.items()}
        refuse_hijax(type(self), flags)
        if entries:
            entries = tidied(entries)
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
        is_abstract = isinstance(value, jax.ShapeDtypeStruct)
        cell.raw = jax.new_ref(jnp.asarray(value)) if flags["ref"] and not is_abstract else value  # type: ignore[arg-type]

    def create_value(self, value: A) -> A:
        """The value that the constructor stores for ``value``; override it to change values on creation."""
        return value

    @classmethod
    def from_metadata(cls, value: A, attributes: Mapping[str, object]) -> Self:
        """A variable of this class with ``value``, without hooks, ``create_value``, sharding or copies."""
        entries = {**PLAIN_METADATA, **tidied(attributes)}
        refuse_hijax(cls, entries)
        return make_variable(cls, value, PLAIN_METADATA if entries == PLAIN_METADATA else entries, current_trace())

    # Values -----------------------------------------------------------------------------------------------------------

    def get_raw_value(self) -> A:
        """The stored value, without hooks."""
        cell = self._cell
        note_foreign_read(cell)
        return cell.raw

    def set_raw_value(self, value: A) -> None:
        """Store a value, without hooks; with ``ref=True`` it is written through the reference.

        Raises:
            TraceContextError: the variable belongs to a different trace, and has no reference to write through.
        """
        cell = self._cell
        if has_ref(cell) and not is_mutable_array(value):
            cell.raw[...] = value
        else:
            check_trace(cell.trace, self, "change the value of")
            cell.raw = value

    raw_value = property(get_raw_value, set_raw_value)

    @overload
    def get_value(self) -> A: ...
    @overload
    def get_value(self, *, index: Any) -> Value: ...
    def get_value(self, *, index: Any = NOTHING) -> Value:
        """Read the value, with get hooks applied.

        Args:
            index: the part to read: an array index, or a key of a dict, list or tuple value; ``...`` means everything.

        Raises:
            DonatedArrayError, ArgumentError: a part of an array that was donated, or of a shape without values.
        """
        cell = self._cell
        note_foreign_read(cell)
        value = cell.raw
        if index is not NOTHING and index is not ...:
            value = usable(value, self)[index]
        elif type(value) is not ArrayImpl:
            value = contents_of(cell)
        for hook in cell.metadata.get("on_get_value", ()):
            value = hook(self, value)
        return value

    def set_value(self, value: Value, *, index: Any = NOTHING) -> None:
        """Store a value, with set hooks applied.

        Without ``index``, shape, dtype and type may change. With it, an array keeps its shape and dtype: the new value
        is broadcast and cast to the indexed part.

        Raises:
            TraceContextError: the variable belongs to a different trace, and has no reference to write through.
        """
        cell = self._cell
        in_reference = has_ref(cell)
        if cell.trace is not trace_state.value and not in_reference:  # through one, JAX itself writes out of its trace
            raise_foreign_trace(cell.trace, self, "change the value of")
        if isinstance(value, Variable):
            value = value.get_value()
        for hook in cell.metadata.get("on_set_value", ()):
            value = hook(self, value)
        if in_reference:
            reference: Any = cell.raw
            _check_integers(value, reference.dtype)
            reference[... if index is NOTHING else index] = value
        elif index is NOTHING:
            cell.raw = copy_containers(value)
        else:
            _store_part(self, index, value)
        if cell.version == DETACHED or type(cell) is LentCell:  # a copy
            note_write(self)

    @property
    def value(self) -> A:
        """The value; the same as ``get_value()`` and ``set_value(x)``."""
        return self.get_value()

    @value.setter
    def value(self, value: Value) -> None:
        self.set_value(value)

    @overload
    def __getitem__(self, index: EllipsisType) -> A: ...
    @overload
    def __getitem__(self: Variable[jax.Array], index: Any) -> jax.Array: ...
    @overload
    def __getitem__(self, index: Any) -> Value: ...
    def __getitem__(self, index: Any) -> Value:
        return self.get_value(index=index)

    def __setitem__(self, index: Any, value: Value) -> None:
        self.set_value(value, index=index)

    def __delitem__(self, index: Any) -> None:
        value: Value = self.get_value()
        del value[index]
        self.set_value(value)

    def __len__(self) -> int:
        value: Value = self.get_value()
        return len(value)

    def __iter__(self) -> Iterator[Value]:
        value: Value = self.get_value()
        return iter(value)

    def __contains__(self, item: Value) -> bool:
        return item in self.get_value()

    def __call__(self, *args: Any, **kwargs: Any) -> Tree:
        value: Value = self.get_value()
        return value(*args, **kwargs)

    def __jax_array__(self) -> Value:
        value = value_of(self)
        return value if isinstance(value, Mapping) else jnp.asarray(value)  # JAX says that a dict is no array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return np.array(value_of(self), dtype=dtype, copy=copy)

    # Attributes -------------------------------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_cell", "_pytree__walks"):
            raise AttributeError(name)
        cell = self._cell
        if name in cell.metadata:
            return cell.metadata[name]
        if name == "sharding_names" and "out_sharding" in cell.metadata:
            return self.get_metadata(name)
        note_foreign_read(cell)
        try:
            return getattr(cell.raw, name)
        except AttributeError:
            if has_ref(cell):
                return getattr(cell.raw[...], name)
            raise VariableAttributeError(
                f"{describe_type(self)} has no attribute {name!r}",
                found=f"neither metadata of that name nor an attribute of the value, of type {type(cell.raw).__name__}",
                expected=f"an attribute of the value, or one of the metadata entries {sorted(cell.metadata)}",
                do=f"to add metadata of this name, call variable.set_metadata({name}=value)",
            ) from None

    def __dir__(self) -> set[str]:
        cell = self._cell
        return {*super().__dir__(), *cell.metadata, *(name for name in dir(read(cell.raw)) if name[0] != "_")}

    def __setattr__(self, name: str, value: Value) -> None:
        descriptor = getattr(type(self), name, NOTHING)
        if (isinstance(descriptor, property) and descriptor.fset) or name == "_pytree__walks":
            object.__setattr__(self, name, value)
            return
        if descriptor is not NOTHING or not type(self).__dictoffset__:
            raise VariableAttributeError(
                f"Cannot set attribute {name!r} of {describe_type(self)}",
                found="an assignment to an attribute",
                expected="an assignment to `.value` or `[...]`",
                do=f"to set the value, write variable.value = value; for metadata, variable.set_metadata({name}=value)",
            )
        in_constructor = not hasattr(self, "_cell")  # of a subclass that has not called this one yet
        if in_constructor or name.startswith("__"):  # such as Python's ``__orig_class__``
            object.__setattr__(self, name, value)
        else:  # of a class whose mixin has attributes; as metadata, so that copies of the variable have them
            self.set_metadata(**{name: value})

    def __delattr__(self, name: str) -> None:
        raise VariableAttributeError(
            f"cannot delete the attribute {name!r} of {describe_type(self)}",
            found="a deletion of an attribute",
            expected="the deletion of metadata",
            do=f"to delete metadata, call variable.del_metadata({name!r})",
        )

    @property
    def type(self) -> type[Variable[Value]]:
        """The class of the variable."""
        return self.__class__

    var_type = type  # the older name

    # Copies -----------------------------------------------------------------------------------------------------------

    def copy(self, value: Value = NOTHING, **updates: Any) -> Self:
        """A new variable of the same class, optionally with a new value and changed metadata; hooks do not run."""
        cell = self._cell
        note_foreign_read(cell)
        metadata = cell.metadata
        if updates:
            metadata = {**metadata, **tidied(updates)}
            refuse_hijax(type(self), metadata)
        if metadata is PLAIN_METADATA:
            raw = cell.raw if value is NOTHING else value
        elif value is NOTHING:
            raw = as_stored(read(cell.raw), metadata)
        else:
            raw = value if metadata["ref"] and is_mutable_array(value) else as_stored(value, metadata)
        return make_variable(type(self), raw, metadata, trace_state.value)

    replace = to_state = copy

    def to_variable(self) -> Self:
        """A new variable with the same value and metadata."""
        return self.copy()

    def copy_from(self, other: Variable[A]) -> None:
        """Copy value and metadata from a variable of exactly the same class.

        Raises:
            MetadataError: the classes differ.
            TraceContextError: this variable belongs to a different trace.
        """
        if type(self) is not type(other):
            raise MetadataError(
                "Cannot copy from incompatible container: copy_from takes a variable of the same class",
                found=describe_type(other),
                expected=describe_type(self),
                do="copy only the value: variable.set_value(other.get_value())",
            )
        check_trace(self._cell.trace, self, "change")
        self.update_from_state(other)

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Copy the raw value and, if different, the metadata of a state leaf; the three flags are kept.

        Raises:
            TraceContextError: this variable belongs to a different trace, and has no reference to write through.
        """
        cell, source = self._cell, variable_state._cell
        note_foreign_read(source)
        if not has_ref(cell):
            check_trace(cell.trace, self, "change the value of")
        metadata = cell.metadata
        if metadata is not source.metadata:
            merged = {**source.metadata, **{name: metadata[name] for name in REQUIRED_METADATA}}
            if HashableMapping(merged) != HashableMapping(metadata):
                check_trace(cell.trace, self, "change the metadata of")
                metadata = PLAIN_METADATA if merged == PLAIN_METADATA else merged
        raw = source.raw if source.metadata is PLAIN_METADATA else read(source.raw)
        if has_ref(cell):
            cell.raw[...] = raw
        else:
            cell.raw = raw
        if metadata is not cell.metadata:
            cell.metadata = metadata
            mark_changed(cell)

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        cell = self._cell
        raw = jax.tree.map(
            lambda leaf: jnp.copy(leaf) if isinstance(leaf, jax.Array) else copy.deepcopy(leaf, memo),
            read(self.get_raw_value()),
        )
        plain = cell.metadata is PLAIN_METADATA
        metadata = PLAIN_METADATA if plain else from_named(copy.deepcopy(to_named(cell.metadata), memo))
        result = memo[id(self)] = make_variable(type(self), as_stored(raw, metadata), metadata, trace_state.value)
        return result

    def __reduce__(self) -> tuple[object, ...]:
        cell = self._cell
        raw = read(self.get_raw_value())
        metadata = None if cell.metadata is PLAIN_METADATA else to_named(cell.metadata)
        return _unpickle, (type(self), jax.tree.map(as_picklable, raw), metadata)

    def __repr__(self) -> str:
        return repr_fields(type(self).__name__, self._pytree__fields(), comment=self._size_comment())

    def _size_comment(self) -> str:
        return size_comment(jax.tree.leaves(self._cell.raw))

    def _pytree__fields(self) -> list[tuple[str, Value]]:
        cell = self._cell
        shown = [
            (name, value)
            for name, value in cell.metadata.items()
            if name not in REQUIRED_METADATA or value != PLAIN_METADATA[name]
        ]
        return [("value", cell.raw), *shown]

    def __treescope_repr__(self, path: str | None, subtree_renderer: Any) -> Any:
        comment = self._size_comment()
        return render_object(type(self), self._pytree__fields(), path, subtree_renderer, comment=comment)


_new: Callable[[type], Any] = object.__new__
cell_of: Callable[[Node], Cell] = Variable.__dict__["_cell"].__get__
_set_cell: Callable[[Node, Cell], None] = Variable.__dict__["_cell"].__set__

# Set by ``plait.partitioning``: functions (variable, value) -> placed value.
eager_sharding_hooks: list[Callable[[Variable[Value], Any], Any]] = []


def _unpickle(cls: type[Variable[Value]], raw: Value, metadata: Metadata | None) -> Variable[Value]:
    raw = jax.tree.map(
        lambda leaf: (
            jax.random.wrap_key_data(jnp.asarray(leaf.data), impl=leaf.impl) if isinstance(leaf, StoredKey) else leaf
        ),
        raw,
        is_leaf=lambda leaf: isinstance(leaf, StoredKey),
    )
    entries: Any = PLAIN_METADATA if metadata is None else from_named(metadata)
    return make_variable(cls, as_stored(raw, entries), entries, trace_state.value)


def _store_part(variable: Variable[Value], index: Any, value: Value) -> None:
    """Store a value at an index of an array or a container.

    Raises:
        ShapeError: it cannot be broadcast to that part of the array.
    """
    cell: Any = variable._cell
    raw = cell.raw
    if isinstance(raw, ARRAYS):
        _check_integers(value, raw.dtype)
    try:
        if isinstance(raw, jax.Array):
            same = (
                index is ...
                and isinstance(value, jax.Array)
                and value.shape == raw.shape
                and value.dtype == raw.dtype
                and getattr(value, "sharding", None) == getattr(raw, "sharding", None)
            )
            cell.raw = value if same else raw.at[index].set(_cast(value, raw.dtype))
        elif index is ... and not isinstance(raw, np.ndarray):
            cell.raw = copy_containers(value)
        else:
            # Copied, since detached state leaves and clones hold the same NumPy array or container.
            copied = raw.copy() if isinstance(raw, np.ndarray) else copy_containers(raw)
            copied[index] = value
            cell.raw = copied
    except ValueError as error:
        if not isinstance(raw, ARRAYS):
            raise
        place = "[...]" if index is ... else f"[{index!r:.40}]"
        raise ShapeError(
            "a value cannot be broadcast to the part of a variable that it is assigned to",
            at=(known_path(variable) or with_article(type(variable).__name__)) + place,
            found=f"an array of shape {np.shape(value)}: {str(error).splitlines()[0]}",
            expected=f"an array that broadcasts to that part of an array of shape {raw.shape}",
            do="to change the shape of the variable, write variable.value = value",
        ) from error


def _check_integers(value: Value, dtype: DTypeLike) -> None:
    """Raise if Python's integers do not fit into a dtype; arrays wrap around, as in JAX.

    Raises:
        OverflowError: names the first that does not.
    """
    if isinstance(value, int | list | tuple) and jnp.issubdtype(dtype, jnp.integer):
        given, bounds = np.asarray(value), jnp.iinfo(dtype)
        if given.dtype.kind in "iuO":  # O is of integers beyond 64 bits
            numbers = given[(given < int(bounds.min)) | (given > int(bounds.max))]
            if len(numbers):
                raise OverflowError(f"Python integer {numbers[0]} out of bounds for {dtype}")


def _cast(value: Value, dtype: DTypeLike) -> Value:
    if not isinstance(value, jax.Array):
        value = np.asarray(value, dtype if isinstance(value, int | list | tuple) else None)
    return value if value.dtype == dtype else jnp.asarray(value).astype(dtype)


def _refuse_references(value: Value, kind: type) -> None:
    if isinstance(value, ARRAYS) and not is_mutable_array(value):
        return
    if any(map(is_mutable_array, jax.tree.leaves(value))):
        raise MetadataError(
            f"Cannot pass a Ref directly: a JAX Ref is not allowed as the value of {with_article(kind.__name__)}",
            found="a value that is, or contains, a JAX Ref",
            expected="arrays or other values",
            do=f"pass the array, and let the variable create the reference: {name_of_class(kind)}(x, ref=True)",
        )
