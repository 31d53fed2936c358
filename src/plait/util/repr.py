"""Readable, constructor-like text for variables, modules, states and graphdefs.

This file handles names, comments and fields, not the objects they come from. Fields show the numbers of arrays as NumPy
does; everywhere else arrays with more than one element are ``Array(shape=(2, 3), dtype=float32)``. (rules G66, G68)
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np

from .jax_versions import Tracer

MAX_LINE = 88
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")


class Text(str):
    """Text that is shown verbatim."""

    def __repr__(self) -> str:
        return str(self)


def repr_leaf(value: Any) -> str:
    """The text of one value; large arrays by shape and dtype, objects without their addresses."""
    if isinstance(value, (jax.Array, np.ndarray)) and hasattr(value, "shape"):
        return f"Array({repr_number(value) or f'shape={tuple(value.shape)}'}, dtype={value.dtype})"
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"ShapeDtypeStruct(shape={tuple(value.shape)}, dtype={value.dtype})"
    try:
        if callable(value) and hasattr(value, "__name__") and not isinstance(value, type):
            return f"<function {value.__name__}>"
        return repr(value) if isinstance(value, str) else _ADDRESS.sub(">", repr(value))
    except Exception as error:  # of a user's class; the rest of the model can still be printed
        return unprintable(value, error)


def unprintable(value: Any, error: Exception) -> str:
    """The text for a value that raises when it is printed."""
    return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def repr_name(name: Any) -> str:
    """The name of a field: as it is, if it can be printed on one line."""
    return name if isinstance(name, str) and name.isprintable() else repr(name)


def repr_number(value: Any) -> str | None:
    """The number that an array holds; ``None`` for larger arrays, traced and deleted ones, and keys."""
    return repr(np.asarray(value).tolist()) if value.size <= 1 and _has_numbers(value) else None


def _has_numbers(value: Any) -> bool:
    """Whether the numbers of an array can be read: not if it is traced, deleted, on other machines, or of keys."""
    if isinstance(value, Tracer) or jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended):
        return False
    return not isinstance(value, jax.Array) or (not value.is_deleted() and value.is_fully_addressable)


def _repr_field(value: Any, prefix: str) -> str:
    """The text of a field after its label: small arrays with their numbers.

    NumPy shortens what has more than 1,000 elements. Such an array is not copied from an accelerator to be printed.
    """
    if not isinstance(value, (jax.Array, np.ndarray)) or value.size <= 1 or not _has_numbers(value):
        return prefix + repr_leaf(value)
    on_accelerator = isinstance(value, jax.Array) and any(device.platform != "cpu" for device in value.devices())
    if on_accelerator and value.size > np.get_printoptions()["threshold"]:
        return prefix + repr_leaf(value)
    opening = f"{prefix}Array("
    return f"{opening}{np.array2string(np.asarray(value), separator=', ', prefix=opening)}, dtype={value.dtype})"


def repr_fields(
    name: str,
    fields: Iterable[tuple[str, Any]],
    *,
    comment: str = "",
    brackets: str = "()",
    separator: str = "=",
    multiline: bool = False,
) -> str:
    """``Name(a=1, b=2)``, on several lines if it is long, has a comment, or if this is requested."""
    opening, closing = brackets[: len(brackets) // 2], brackets[len(brackets) // 2 :]
    texts = [_repr_field(value, f"{repr_name(label)}{separator}" if label else "") for label, value in fields]
    line = f"{name}{opening}{', '.join(texts)}{closing}"
    if not comment and not multiline and len(line) <= MAX_LINE and "\n" not in line:
        return line
    if not texts:
        return f"{name}{opening}{closing}" + (f"  # {comment}" if comment else "")
    head = f"{name}{opening}" + (f" # {comment}" if comment else "")
    body = ",\n".join("  " + text.replace("\n", "\n  ") for text in texts)
    return f"{head}\n{body}\n{closing}"


def size_comment(arrays: Iterable[Any]) -> str:
    """``1,234 (4.9 KB)``: the numbers of elements and bytes."""
    count = size = 0
    for array in arrays:
        if hasattr(array, "shape") and hasattr(array, "dtype"):
            elements = int(np.prod(array.shape))
            count += elements
            size += elements * getattr(array.dtype, "itemsize", 0)
    return f"{count:,} ({format_bytes(size)})" if count else ""


def format_bytes(size: int) -> str:
    """Bytes in the largest unit that keeps the number at 1 or above: ``4.9 KB``."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024:
            return f"{value:.1f} {unit}" if unit != "B" else f"{size} B"
        value /= 1024
    return f"{value:.1f} TB"


# These functions implement the hook ``__treescope_repr__``. Treescope calls it, so it is already imported. (rule G68)


def render_object(
    kind: type,
    fields: Iterable[tuple[str, Any]],
    path: str | None,
    subtree_renderer: Any,
    *,
    comment: str = "",
) -> Any:
    """A foldable object: ``Name(a=1, b=2)``; a value with an empty label is an element. The comment follows the opening
    bracket."""
    parts = sys.modules["treescope"].rendering_parts
    children = []
    for place, (label, value) in enumerate(fields):
        inner = None if path is None else _path_of_field(path, label, place)
        name = f"{repr_name(label)}=" if label else ""
        children.append(parts.siblings_with_annotations(name, subtree_renderer(value, path=inner)))
    return parts.build_foldable_tree_node_from_children(
        prefix=parts.siblings(parts.maybe_qualified_type_name(kind), "("),
        children=children,
        suffix=")",
        comma_separated=True,
        path=path,
        first_line_annotation=parts.comment_color(parts.text(f" # {comment}")) if comment else None,
    )


def _path_of_field(path: str, label: str, place: int) -> str:
    if not label:
        return f"{path}[{place}]"
    return f"{path}.{label}" if label.isidentifier() else f"getattr({path}, {label!r})"


def render_mapping(kind: type, mapping: Mapping[Any, Any], path: str | None, subtree_renderer: Any) -> Any:
    """A foldable mapping: ``Name({'a': 1})``."""
    return sys.modules["treescope"].repr_lib.render_dictionary_wrapper(
        object_type=kind, wrapped_dict=mapping, path=path, subtree_renderer=subtree_renderer
    )
