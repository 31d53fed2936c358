"""A short text for modules: what differs from the defaults of their constructors, equal neighbours once, one screen.

First the objects become a tree of texts, then the tree is laid out. If it is longer than a screen, what is deep in it
is left out, layer by layer; long texts are cut. An object can always be printed: a value whose own repr raises is named
by its type. In the long form, ``plait.inspect.long_repr``, each module is laid out by ``repr_fields``. (rule G66)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax

from ..core.nodes.nodes import iter_variables
from ..core.nodes.pytree import Pytree
from ..core.settings import Restoring
from ..core.states.state import FlatState, State
from ..core.variables.cells import ARRAYS
from ..core.variables.variables import Variable
from ..errors import GraphError
from ..util.repr import render_object, repr_fields, repr_leaf, repr_name, repr_number, size_comment, unprintable
from ..util.sentinels import NOTHING
from ..util.static_values import same_static

WIDTH, SCREEN = 120, 50  # columns, lines
_DEEPEST = 60  # levels; each takes two columns or more, so none that is deeper fits on a screen
_LONGEST, _MOST_LINES = 400, 8  # characters and lines of the text of one value


@dataclasses.dataclass
class Shown:
    """An object as text, or as a name with fields.

    Attributes:
        text: of a value without fields; of others their name.
        same: what is compared with neighbours, which leaves out the values of numbers.
        fields: label and value of each; ``None`` for a value without.
        brackets: open and close the fields.
        comment: text after the opening bracket.
        is_variable: of a variable.
    """

    text: str
    same: Any
    fields: list[tuple[str, Shown]] | None = None
    brackets: tuple[str, str] = ("(", ")")
    comment: str = ""
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
        opening, closing = self.brackets
        return f"{self.text}{opening}{', '.join(label + each.line for label, each in _folded(self.fields))}{closing}"


class _Printing(threading.local):
    """The state of this thread: the objects that the outermost running ``repr`` has met, its depth and its form."""

    met: Any = None
    depth = 0
    is_long = False


_printing = _Printing()


def long_form() -> Restoring:
    """Inside the block modules show all their attributes."""
    return Restoring(_printing, is_long=True)


def module_repr(self: Any) -> str:
    """``__repr__`` of classes with ``_pytree__fields()``: pairs of labels and values, with no label for elements."""
    is_outermost = _printing.met is None
    with Restoring(_printing, met={} if is_outermost else _printing.met):
        if _printing.is_long:
            return _long_repr(self)
        tree = _shown(self)
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


def _long_repr(node: Any) -> str:
    name = type(node).__name__
    if id(node) in _printing.met:
        return f"{name}(...)"
    _printing.met[id(node)] = node
    return repr_fields(name, node._pytree__fields(), comment=variables_comment(node))


def variables_comment(node: Any) -> str:
    """The numbers of elements and bytes below a module, per kind of variable and in total."""
    by_kind: dict[str, list[Any]] = {}
    with contextlib.suppress(GraphError):  # parts that cannot be walked are not counted
        for _, variable in [*iter_variables(node)]:
            by_kind.setdefault(_shown_kind(variable), []).extend(jax.tree.leaves(variable.get_raw_value()))
    texts = {kind: text for kind in sorted(by_kind) if (text := size_comment(by_kind[kind]))}
    if len(texts) > 1:
        texts["Total"] = size_comment(itertools.chain.from_iterable(by_kind.values()))
    return ", ".join(f"{kind}: {text}" for kind, text in texts.items())


def _shown_kind(variable: Variable[Any]) -> str:
    kind = type(variable)
    return "RngState" if any(cls.__name__ == "RngState" for cls in kind.__mro__) else kind.__name__


# The tree -------------------------------------------------------------------------------------------------------------


def _shown(value: Any) -> Shown:
    _printing.depth += 1
    try:
        return _tree_of(value)
    except Exception as error:  # of a user's class
        text = unprintable(value, error)
        return Shown(text, text)
    finally:
        _printing.depth -= 1


def _tree_of(value: Any) -> Shown:
    name, met = type(value).__name__, _printing.met
    if isinstance(value, Variable):
        return _shown_variable(value)
    if _is_module(value):
        if id(value) in met:
            return Shown(f"{name}(...)", f"{name}(...)")
        fields = [(label and repr_name(label), each) for label, each in _differing(value)]
        if _printing.depth <= _DEEPEST:
            met[id(value)] = value
        return _with_fields(name, fields, comment=variables_comment(value))
    if isinstance(value, State | FlatState):
        return _with_keys(name, [*(value.items() if isinstance(value, State) else value)], ("({", "})"))
    if isinstance(value, dict | list | tuple) and _holds_objects(value):
        if isinstance(value, dict):
            return _with_keys("", value.items(), ("{", "}"))
        names = getattr(value, "_fields", None)
        if names is not None:
            return _with_fields(name, [*zip(names, value, strict=True)])
        return _with_fields("", [("", each) for each in value], ("[", "]") if isinstance(value, list) else ("(", ")"))
    text = _cut(repr_leaf(value))
    return Shown(text, text)


def _is_module(value: Any) -> bool:
    """Whether a value has the short form; a class of a user's with a ``__repr__`` of its own keeps that."""
    return type(value).__repr__ is module_repr


def _with_keys(name: str, items: Collection[tuple[Any, Any]], brackets: tuple[str, str]) -> Shown:
    return _with_fields(name, [(f"{key!r}", each) for key, each in items], brackets, separator=": ")


def _with_fields(
    name: str,
    fields: Collection[tuple[str, Any]],
    brackets: tuple[str, str] = ("(", ")"),
    comment: str = "",
    separator: str = "=",
) -> Shown:
    if _printing.depth > _DEEPEST:  # equal to no other, since nobody looked inside
        return Shown(f"{name}{brackets[0]}... {len(fields)} more{brackets[1]}", object())
    shown = [(label and f"{label}{separator}", _shown(each)) for label, each in fields]
    same = (name, tuple((label, each.same) for label, each in shown))
    return Shown(name, same, shown, brackets, comment)


def _cut(text: str) -> str:
    """The text of a value, without what is beyond some lines and columns."""
    lines = text.split("\n")
    kept = [line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..." for line in lines[:_MOST_LINES]]
    return "\n".join([*kept, f"... {len(lines) - _MOST_LINES:,} more lines"] if len(lines) > _MOST_LINES else kept)


def _holds_objects(value: Any) -> bool:
    """Whether there are modules, variables or states in a plain container, which may hold itself."""
    found: list[Any] = [value]
    known = {id(value)}
    for container in found:
        for each in container.values() if isinstance(container, dict) else container:
            if isinstance(each, Variable | State) or _is_module(each):
                return True
            if isinstance(each, dict | list | tuple) and id(each) not in known:
                known.add(id(each))
                found.append(each)
    return False


def _shown_variable(variable: Variable[Any]) -> Shown:
    (_, value), *metadata = variable._pytree__fields()
    name = type(variable).__name__
    rest = "".join(f", {key}={repr_leaf(each)}" for key, each in metadata)
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        text = repr(variable) if isinstance(value, Mapping | list | tuple) else f"{name}({repr_leaf(value)}{rest})"
        return Shown(_cut(text), text, is_variable=True)
    shape = f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    text = (repr_number(value) if isinstance(value, ARRAYS) and value.shape == () else None) or shape
    return Shown(_cut(f"{name}({text}{rest})"), f"{name}({shape}{rest})", is_variable=True)


# What differs from the defaults ---------------------------------------------------------------------------------------


def _differing(node: Any) -> list[tuple[str, Any]]:
    """The fields of a module, without attributes that its constructor would give it by itself."""
    defaults, cls = _defaults(type(node)), type(node)
    places = {name: place for place, name in enumerate(defaults)}
    found = [
        (name, value)
        for name, value in node._pytree__fields()
        if not name or not _is_usual(value, defaults.get(name, _of_class(cls, name)))
    ]
    # What was given to the constructor comes first, as it was given; merging puts attributes in order of their names.
    return sorted(found, key=lambda pair: len(places) if _is_object(pair[1]) else places.get(pair[0], len(places)))


def _is_object(value: Any) -> bool:
    return isinstance(value, Variable) or _is_module(value) or hasattr(value, "shape")


_NO_DEFAULT: Any = inspect.Parameter.empty
_OF_REST = {inspect.Parameter.VAR_POSITIONAL: (), inspect.Parameter.VAR_KEYWORD: {}}


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
            found.setdefault(parameter.name, _OF_REST.get(parameter.kind, parameter.default))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return {**found, "rngs": None}  # ``None`` in a layer that needs no more random numbers


def _of_class(cls: type, name: str) -> Any:
    try:
        return getattr(cls, name, NOTHING)
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
    if default is NOTHING:  # a function, or nothing, that the constructor chose
        return value is None or inspect.isroutine(value)
    if same_static(value, default, exact=False):
        return True
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1:  # an axis as a tuple of one
        return same_static(value[0], default, exact=False)
    is_no_mapping = default is None or (isinstance(default, Mapping) and not default)
    return is_no_mapping and isinstance(value, Mapping) and not value


# The layout -----------------------------------------------------------------------------------------------------------


def _folded(fields: list[tuple[str, Shown]]) -> list[tuple[str, Shown]]:
    """The fields, with equal neighbours as one: their number is its label."""
    found = []
    for _, run in itertools.groupby(fields, _what_is_equal):
        (label, first), *others = run
        if others:
            label, first = f"{len(others) + 1} × ", _without_numbers(first) if first.fields else first
        found.append((label, first))
    return found


def _what_is_equal(field: tuple[str, Shown]) -> Any:
    """The key by which neighbours are folded: modules without their numbers, variables as text."""
    label, value = field
    if label or (value.fields is None and not value.is_variable):
        return object()  # equal to no other
    return value.text if value.fields is None else value.same


def _without_numbers(value: Shown) -> Shown:
    """A key with shapes in place of numbers, which may differ between neighbours."""
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
    opening, closing = value.brackets
    fields = _folded(value.fields)
    if depth == 0:
        plain = [f"{label}{each.line}" for label, each in fields if not each.fields]
        rest = len(fields) - len(plain)
        line = f"{before}{value.text}{opening}{', '.join([*plain, f'... {rest} more'] if rest else plain)}{closing}"
        if len(line) + indent > WIDTH:
            line = f"{before}{value.text}{opening}... {len(fields)} more{closing}"
        return [line]
    lines = [f"{before}{value.text}{opening}" + (f" # {value.comment}" if value.comment else "")]
    most = SCREEN - 10
    after_plain = False
    for number, (label, each) in enumerate(fields[:most]):
        inner = _lines(each, label, indent + 2, depth - 1)
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


def treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    comment = variables_comment(self)
    return render_object(type(self), self._pytree__fields(), path, subtree_renderer, comment=comment)


Pytree.__repr__ = module_repr
Pytree.__treescope_repr__ = treescope_repr  # type: ignore[attr-defined]
