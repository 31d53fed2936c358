"""A short text for modules: what differs from the defaults of their constructors, equal neighbours once, one screen.

First the objects become a tree of texts, then the tree is laid out. If it is longer than a screen, what is deep in it
is left out, layer by layer; long texts are cut. An object can always be printed: a value whose own repr raises is named
by its type. (rule G66; the long form is ``plait.inspect.long_repr``)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..._compat import Tracer
from .repr import repr_leaf, repr_name, unprintable
from .state import FlatState, State
from .statics import same_static
from .variables import Variable

WIDTH, SCREEN = 120, 50  # columns, lines
_DEEPEST = 60  # levels; each takes two columns or more, so none that is deeper fits on a screen
_LONGEST, _MOST_LINES = 400, 8  # characters and lines of the text of one value


@dataclasses.dataclass
class Shown:
    """An object as text, or as a name with fields.

    Attributes:
        text: of a value without fields; of others their name.
        same: what is compared with neighbours, which leaves out the values of numbers.
        is_variable: of a variable.
        fields: label and value of each; ``None`` for a value without.
        brackets: open and close the fields.
        comment: text after the opening bracket.
        separator: text between a label and its value.
    """

    text: str
    same: Any
    fields: list[tuple[str, Shown]] | None = None
    brackets: str = "()"
    comment: str = ""
    separator: str = "="
    is_variable: bool = False

    @functools.cached_property
    def is_deep(self) -> bool:
        """Whether modules or containers are below it."""
        return any(value.fields is not None for _, value in self.fields or ())

    @functools.cached_property
    def line(self) -> str:
        """All of it on one line."""
        if self.fields is None:
            return self.text
        opening, closing = self.ends
        parts = [
            f"{f'{count} × ' if count > 1 else ''}{label}{self.separator if label else ''}{each.line}"
            for count, label, each in _folded(self.fields)
        ]
        return f"{self.text}{opening}{', '.join(parts)}{closing}"

    @property
    def ends(self) -> tuple[str, str]:
        """The brackets."""
        half = len(self.brackets) // 2
        return self.brackets[:half], self.brackets[half:]


class _Printing(threading.local):
    """Of this thread: the objects that the outermost ``repr`` has met, if one runs; how deep it is; its form."""

    met: dict[int, Any] | None = None
    depth = 0
    is_long = False


_printing = _Printing()


def is_long_form() -> bool:
    """Whether modules show all their attributes."""
    return _printing.is_long


@contextlib.contextmanager
def long_form() -> Iterator[None]:
    """Inside the block modules show all their attributes."""
    before, _printing.is_long = _printing.is_long, True
    try:
        yield
    finally:
        _printing.is_long = before


def module_repr(node: Any, comment_of: Callable[[Any], str]) -> str:
    """The text of a module.

    Args:
        node: has ``_repr_fields()``: pairs of labels and values, with no label for elements.
        comment_of: what is said about the sizes of a module.
    """
    is_outermost = _printing.met is None
    if is_outermost:
        _printing.met = {}
    try:
        tree = _shown(node, comment_of)
    finally:
        if is_outermost:
            _printing.met = None
    if tree.comment and not _is_multiline(tree, 0) and is_outermost:
        return f"{tree.line}  # {tree.comment}"
    depth = 1
    lines = _lines(tree, "", 0, depth)
    while _is_cut(tree, depth):
        more = _lines(tree, "", 0, depth + 1)
        if len(more) > SCREEN:
            break
        lines, depth = more, depth + 1
    return "\n".join(lines)


# The tree -------------------------------------------------------------------------------------------------------------


def _shown(value: Any, comment_of: Callable[[Any], str]) -> Shown:
    _printing.depth += 1
    try:
        return _tree_of(value, comment_of)
    except Exception as error:  # of a user's class
        text = unprintable(value, error)
        return Shown(text, text)
    finally:
        _printing.depth -= 1


def _tree_of(value: Any, comment_of: Callable[[Any], str]) -> Shown:
    met = _printing.met
    assert met is not None
    if isinstance(value, Variable):
        return _shown_variable(value)
    if type(value).__repr__ in _short_forms:
        name = type(value).__name__
        if id(value) in met:
            return Shown(f"{name}(...)", f"{name}(...)")
        pairs = _differing(value)
        if _printing.depth > _DEEPEST:
            return _left_out(name, pairs, "()")
        met[id(value)] = value
        fields = [(label and repr_name(label), _shown(each, comment_of)) for label, each in pairs]
        return _with_fields(name, fields, comment=comment_of(value))
    if isinstance(value, State | FlatState):
        pairs = value.items() if isinstance(value, State) else [(path, leaf) for path, leaf in value]
        fields = [(repr(key), _shown(each, comment_of)) for key, each in pairs]
        return _with_fields(type(value).__name__, fields, brackets="({})", separator=": ")
    if isinstance(value, dict | list | tuple) and _holds_objects(value):
        return _shown_container(value, comment_of)
    text = _cut(repr_leaf(value))
    return Shown(text, text)


def _left_out(name: str, inside: Any, brackets: str) -> Shown:
    """What is deeper than any screen; equal to no other, since nobody looked inside."""
    return Shown(f"{name}{brackets[0]}... {len(inside)} more{brackets[1]}", object())


def _cut(text: str) -> str:
    """The text of a value, without what is beyond some lines and columns."""
    lines = text.split("\n")
    kept = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..." for line in lines[:_MOST_LINES]]
    return "\n".join([*kept, f"... {len(lines) - _MOST_LINES:,} more lines"] if len(lines) > _MOST_LINES else kept)


def _with_fields(name: str, fields: list[tuple[str, Shown]], **options: Any) -> Shown:
    same = (name, tuple((label, each.same) for label, each in fields))
    return Shown(name, same, fields, **options)


def _shown_container(value: Any, comment_of: Callable[[Any], str]) -> Shown:
    if _printing.depth > _DEEPEST:
        return _left_out("", value, "{}" if isinstance(value, dict) else "[]" if isinstance(value, list) else "()")
    if isinstance(value, dict):
        fields = [(repr(key), _shown(each, comment_of)) for key, each in value.items()]
        return _with_fields("", fields, brackets="{}", separator=": ")
    names = getattr(value, "_fields", None) or [""] * len(value)
    fields = [(name, _shown(each, comment_of)) for name, each in zip(names, value, strict=True)]
    name = type(value).__name__ if hasattr(value, "_fields") else ""
    return _with_fields(name, fields, brackets="[]" if isinstance(value, list) else "()")


def _holds_objects(value: Any) -> bool:
    """Whether there are modules, variables or states in a plain container, which may hold itself."""
    found: list[Any] = [value]
    known = {id(value)}
    for container in found:
        for each in container.values() if isinstance(container, dict) else container:
            if isinstance(each, Variable | State) or type(each).__repr__ in _short_forms:
                return True
            if isinstance(each, dict | list | tuple) and id(each) not in known:
                known.add(id(each))
                found.append(each)
    return False


def _shown_variable(variable: Variable[Any]) -> Shown:
    (_, value), *metadata = variable._repr_fields()
    name = type(variable).__name__
    rest = "".join(f", {key}={repr_leaf(each)}" for key, each in metadata)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        text = repr(variable) if isinstance(value, Mapping | list | tuple) else f"{name}({repr_leaf(value)}{rest})"
        return Shown(_cut(text), text, is_variable=True)
    shape = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    text = repr_number(value) or shape
    return Shown(_cut(f"{name}({text}{rest})"), f"{name}({shape}{rest})", is_variable=True)


def repr_number(value: Any) -> str | None:
    """The number that an array holds; ``None`` for larger arrays, shapes, traced values and keys."""
    is_number = isinstance(value, jax.Array | np.ndarray) and value.shape == () and not isinstance(value, Tracer)
    if not is_number or (isinstance(value, jax.Array) and value.is_deleted()):
        return None
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return None
    return repr(np.asarray(value).tolist())


# The repr methods that give the short form. A class of a user's with a repr of its own keeps that.
_short_forms: set[Any] = set()


def gives_short_form(method: Any) -> Any:
    """Mark a ``__repr__`` that is ``module_repr``."""
    _short_forms.add(method)
    return method


# What differs from the defaults ---------------------------------------------------------------------------------------


def _differing(node: Any) -> list[tuple[str, Any]]:
    """The fields of a module, without attributes that its constructor would give it by itself."""
    defaults, cls = _defaults(type(node)), type(node)
    places = {name: place for place, name in enumerate(defaults)}
    found = [
        (name, value)
        for name, value in node._repr_fields()
        if not name or not _is_usual(value, defaults.get(name, _of_class(cls, name)))
    ]
    # What was given to the constructor comes first, as it was given; merging puts attributes in order of their names.
    return sorted(found, key=lambda pair: len(places) if _is_object(pair[1]) else places.get(pair[0], len(places)))


def _is_object(value: Any) -> bool:
    return isinstance(value, Variable) or type(value).__repr__ in _short_forms or hasattr(value, "shape")


_NO_DEFAULT: Any = object()
_DERIVED: Any = object()


@functools.cache
def _defaults(cls: type) -> dict[str, Any]:
    """The parameters of a constructor, with those that it takes as ``**kwargs`` for the constructors of its bases.

    JAX keeps each class of modules for ever, and so may this.
    """
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        try:
            parameters = inspect.signature(base.__init__).parameters.values()
        except (TypeError, ValueError):
            break
        for parameter in parameters:
            found.setdefault(parameter.name, _default_of(parameter))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return {**found, "rngs": None}  # a layer that needs no more random numbers has none


def _default_of(parameter: inspect.Parameter) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return ()
    if parameter.kind is parameter.VAR_KEYWORD:
        return {}
    return _NO_DEFAULT if parameter.default is inspect.Parameter.empty else parameter.default


def _of_class(cls: type, name: str) -> Any:
    try:
        return getattr(cls, name, _DERIVED)
    except Exception:  # of a user's descriptor
        return _NO_DEFAULT


def _is_usual(value: Any, default: Any) -> bool:
    """Whether an attribute is as the constructor makes it by itself; what cannot be compared is not."""
    try:
        return _is_like(value, default)
    except Exception:  # of a user's class
        return False


def _is_like(value: Any, default: Any) -> bool:
    if default is _NO_DEFAULT:
        return False
    if default is _DERIVED:  # a function, or nothing, that the constructor chose
        return value is None or inspect.isroutine(value)
    if value is default or same_static(value, default):
        return True
    if default is None and isinstance(value, Mapping) and not value:
        return True
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:  # an axis as a tuple of one
        return same_static(value[0], default)
    return isinstance(value, Mapping) and isinstance(default, Mapping) and not value and not default


# The layout -----------------------------------------------------------------------------------------------------------


def _folded(fields: list[tuple[str, Shown]]) -> list[tuple[int, str, Shown]]:
    """The fields with equal neighbours without labels as one, and how many they are."""
    found: list[tuple[int, str, Shown]] = []
    for label, value in fields:
        if found and not label and not found[-1][1] and _are_alike(found[-1][2], value):
            count, _, first = found[-1]
            found[-1] = (count + 1, "", _without_numbers(first) if count == 1 and first.fields else first)
        else:
            found.append((1, label, value))
    return found


def _are_alike(first: Shown, second: Shown) -> bool:
    """Whether two neighbours are shown as one: modules whatever their numbers are, variables if they look the same."""
    if first.fields is None:
        return first.is_variable and second.is_variable and first.text == second.text
    return second.fields is not None and first.same == second.same


def _without_numbers(value: Shown) -> Shown:
    """With shapes in place of numbers, which may differ between neighbours."""
    if value.fields is None:
        return Shown(_cut(value.same), value.same)
    return dataclasses.replace(value, fields=[(label, _without_numbers(each)) for label, each in value.fields])


def _is_multiline(value: Shown, indent: int) -> bool:
    if value.fields is None:
        return "\n" in value.text
    if any(each.comment and each.is_deep for _, each in value.fields):
        return True
    return "\n" in value.line or len(value.line) + indent > WIDTH


def _lines(value: Shown, before: str, indent: int, depth: int) -> list[str]:
    """The lines of a value; fields that are deeper than ``depth`` are left out."""
    if not _is_multiline(value, indent + len(before)):
        return [before + value.line]
    if value.fields is None:
        return (before + value.text).split("\n")
    opening, closing = value.ends
    fields = _folded(value.fields)
    if depth == 0:
        plain = [
            f"{label}{value.separator if label else ''}{each.line}" for _, label, each in fields if not each.fields
        ]
        rest = len(fields) - len(plain)
        line = f"{before}{value.text}{opening}{', '.join([*plain, f'... {rest} more'] if rest else plain)}{closing}"
        if len(line) + indent > WIDTH:
            line = f"{before}{value.text}{opening}... {len(fields)} more{closing}"
        return [line]
    lines = [f"{before}{value.text}{opening}" + (f" # {value.comment}" if value.comment else "")]
    most = SCREEN - 10
    after_plain = False
    for number, (count, label, each) in enumerate(fields[:most]):
        start = f"{label}{value.separator if label else ''}{f'{count} × ' if count > 1 else ''}"
        inner = _lines(each, start, indent + 2, depth - 1)
        inner[-1] += "," if number < len(fields) - 1 else ""
        is_plain = each.fields is None and len(inner) == 1
        if is_plain and after_plain and indent + len(lines[-1]) + len(inner[0]) < WIDTH:
            lines[-1] += f" {inner[0]}"  # values without fields share lines
        else:
            lines += [f"  {line}" for line in inner]
        after_plain = is_plain
    if len(fields) > most:
        lines.append(f"  ... {len(fields) - most:,} more")
    return [*lines, closing]


def _is_cut(value: Shown, depth: int) -> bool:
    """Whether something below is deeper than ``depth``."""
    if not value.fields:
        return False
    return depth == 0 or any(_is_cut(each, depth - 1) for _, each in value.fields)
