"""The metadata of a variable: reading and changing it, the rules for its entries, and a value that brings its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, TypeVar

from ...errors import ArgumentTypeError, MetadataError, MetadataKeyError
from ...typing import Metadata, Value
from ...util.notices import deprecated
from ...util.sentinels import NOTHING
from ...util.words import describe_type, name_of_class, with_article
from ..traces.guard import check_trace
from .cells import PLAIN_METADATA, REQUIRED_METADATA, Cell, mark_changed

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

HOOKS = ("on_create_value", "on_get_value", "on_set_value", "on_add_axis", "on_remove_axis")


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class VariableMetadata(Generic[A]):
    """A value together with the hooks and metadata for the variable that will hold it.

    Initializers wrapped by ``with_metadata`` return one; a variable's constructor unpacks it.

    Args:
        raw_value: the value.
        on_set_value: a callable or a sequence of callables, like the other hooks.
        metadata: entries of the variable's metadata.

    Example:
        >>> plait.Param(plait.VariableMetadata(jnp.zeros(2), metadata={"note": "demo"})).note
        'demo'
    """

    raw_value: A
    on_set_value: Any = ()
    on_get_value: Any = ()
    on_create_value: Any = ()
    on_add_axis: Any = ()
    on_remove_axis: Any = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in HOOKS:
            setattr(self, name, hook_tuple(getattr(self, name)))
        self.metadata = dict(self.metadata or {})

    def hooks(self) -> dict[str, tuple[Callable[..., Any], ...]]:
        """The hooks that are set, by name."""
        return {name: getattr(self, name) for name in HOOKS if getattr(self, name)}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VariableMetadata):
            return NotImplemented
        return self.raw_value is other.raw_value and self.hooks() == other.hooks() and self.metadata == other.metadata

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"VariableMetadata({self.raw_value!r}, metadata={self.metadata!r})"


def hook_tuple(hooks: Callable[..., Any] | Iterable[Callable[..., Any]]) -> tuple[Callable[..., Any], ...]:
    if hooks is None:
        return ()
    return (hooks,) if callable(hooks) else tuple(hooks)


class MetadataMethods:
    """The part of ``Variable`` that reads and changes metadata."""

    __slots__ = ()

    _cell: Cell

    def get_metadata(self, name: str = NOTHING, default: Any = NOTHING, *, exclude_required: bool | None = None) -> Any:
        """All metadata as a new dict, or a single entry.

        Args:
            name: the entry to return.
            default: the result if there is no entry of that name.
            exclude_required: whether to omit the three flags that every variable has.

        Raises:
            MetadataKeyError: there is no entry of that name and no default.
        """
        metadata = self._cell.metadata
        if (default is not NOTHING) if name is NOTHING else exclude_required:
            raise ArgumentTypeError(
                "get_metadata does not accept these arguments",
                found="a default without a name" if name is NOTHING else f"name={name!r}, exclude_required=True",
                expected="get_metadata(name), get_metadata(name, default) or get_metadata(exclude_required=...)",
                do="to read one entry, call variable.get_metadata(name, default)",
            )
        if name is NOTHING:
            return {key: metadata[key] for key in metadata if not (exclude_required and key in REQUIRED_METADATA)}
        if name in metadata:
            return metadata[name]
        if name in _OLD_SHARDING_NAMES and "out_sharding" in metadata:
            warn_old_sharding_name(name)
            return metadata["out_sharding"]
        if default is not NOTHING:
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
        """Change the metadata: ``set_metadata(dict)`` replaces all entries, ``set_metadata(name, value)`` and
        ``set_metadata(**entries)`` set single entries.

        Raises:
            MetadataError: the call would change one of the three flags.
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
                "set_metadata does not accept these arguments",
                found=f"{len(args)} positional arguments and the keywords {sorted(entries)}",
                expected="set_metadata(dict), set_metadata(name, value) or set_metadata(name=value, ...)",
                do="call, for example, variable.set_metadata(name=value)",
            )
        for name in REQUIRED_METADATA & new.keys():
            if new[name] != metadata[name]:
                raise _fixed_flag(self, name, metadata[name], new[name])
        self._replace_metadata({**kept, **tidied(new)})

    def del_metadata(self, name: str) -> None:
        """Delete a metadata entry.

        Raises:
            MetadataKeyError: there is no entry of that name.
            MetadataError: the entry is one of the three flags.
        """
        metadata = self._cell.metadata
        if name in REQUIRED_METADATA:
            raise _fixed_flag(self, name, metadata[name], "deleted")
        self.get_metadata(name)
        name = "out_sharding" if name in _OLD_SHARDING_NAMES else name
        self._replace_metadata({key: value for key, value in metadata.items() if key != name})

    def _replace_metadata(self, metadata: Metadata) -> None:
        cell = self._cell
        check_trace(cell.trace, self, "change the metadata of")
        cell.metadata = PLAIN_METADATA if metadata == PLAIN_METADATA else metadata
        mark_changed(cell)

    def add_axis(self, axis_index: int, axis_name: Hashable) -> None:
        """Run the ``on_add_axis`` hooks."""
        for hook in self._cell.metadata.get("on_add_axis", ()):
            hook(self, axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: Hashable) -> None:
        """Run the ``on_remove_axis`` hooks."""
        for hook in self._cell.metadata.get("on_remove_axis", ()):
            hook(self, axis_index, axis_name)


_HOOK_NAMES = frozenset(HOOKS)


_OLD_SHARDING_NAMES = ("sharding", "sharding_names")


def joined_with_box(
    kind: type, box: VariableMetadata[Value], given: dict[str, bool | None], keywords: Metadata
) -> Metadata:
    """Metadata from an initializer and the constructor: the initializer's entries and the constructor's hooks win;
    flags agree."""
    entries = dict(box.metadata)
    for name in REQUIRED_METADATA & entries.keys():
        flag = entries.pop(name)
        if given[name] is not None and given[name] != flag:
            raise MetadataError(
                f"the flag {name!r} was given twice with different values",
                at=with_article(kind.__name__),
                found=f"{name}={given[name]} as a keyword, {flag} from the initializer's metadata",
                expected="one value",
                do=f"remove one of the two, for example {name}= from the constructor",
            )
        given[name] = flag
    hooks = {name: hook for name, hook in keywords.items() if name in _HOOK_NAMES and hook}
    return {**keywords, **entries, **box.hooks(), **hooks}


def refuse_hijax(kind: type, flags: Mapping[str, object]) -> None:
    if flags["hijax"]:
        raise NotImplementedError(
            f"{kind.__name__}: hijax=True is not supported by plait; without it, the variable works under "
            "every transform"
        )


def tidied(entries: Mapping[str, Any]) -> Metadata:
    """New metadata entries: hooks as tuples, old sharding names renamed, with deprecation warnings."""
    tidy = dict(entries)
    for old in _OLD_SHARDING_NAMES:
        if old in tidy:
            warn_old_sharding_name(old)
            tidy["out_sharding"] = tidy.pop(old)
    for name in _HOOK_NAMES & tidy.keys():
        tidy[name] = hook_tuple(tidy[name])
        if tidy[name]:
            _warn_about_hooks()
    return tidy


def warn_old_sharding_name(name: str) -> None:
    deprecated(f"the metadata entry {name!r}", since="0.1", instead="'out_sharding', its new name", removed_in="2.0")


_hooks_warned: set[str] = set()


def _warn_about_hooks() -> None:
    """Warn once per process: methods do the same as hooks in metadata, and are defined in one place."""
    if not _hooks_warned:
        _hooks_warned.add("warned")
        deprecated(
            "hooks in the metadata of a variable",
            since="0.1",
            instead="a subclass of the variable that overrides get_value, set_value or create_value",
            removed_in="2.0",
        )


def _fixed_flag(variable: MetadataMethods, name: str, old: object, new: object) -> MetadataError:
    return MetadataError(
        f"the flag {name!r} of {describe_type(variable)} cannot be changed",
        found=f"{new!r}",
        expected=f"{old!r}, the value from the constructor of the variable",
        do=f"create a new variable: {name_of_class(type(variable))}(value, {name}={not old})",
    )
