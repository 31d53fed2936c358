"""``explore``: one self-contained page about a model or a file, or about two of them side by side."""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import os
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ...errors import ArgumentError
from ...util.files import given_path
from ...util.whole_writes import check_own_file, written_whole
from .calls import calls_of
from .costs import costs_of
from .description import description
from .graphs import outline_of_graph
from .outline import Outline, put_together
from .stored import outline_of_file

_MARK = '<meta name="generator" content="plait explore">'
_SCRIPTS = ("values", "model", "tree", "charts", "treemap", "details", "main")


def explore(
    model: Any,
    *inputs: Any,
    other: Any = None,
    to: str | os.PathLike[str] = "explore.html",
    **options: Any,
) -> Path:
    """Write a page that shows a model in a browser: one HTML file that loads nothing else.

    It shows the tree of modules with search, for each variable its statistics, histogram and sharding, shared objects
    and cycles as links, sizes and costs as a treemap, and, given ``other``, what differs between the two.

    Args:
        model: a model, a state or any object graph, with concrete or abstract values; or the path of a checkpoint, an
            export or a safetensors file, which is read without the model's class.
        *inputs: inputs of the model, arrays or shapes; with them the page shows what each module takes and returns.
            Nothing is computed.
        other: a second model or path to compare with the first.
        to: the file to write. An earlier page is replaced.
        **options: keyword arguments of the model.

    Returns:
        The path of the file.

    Raises:
        ArgumentError: ``to`` is some other file or cannot be written, or inputs are passed for a file.
        ArgumentTypeError: inputs are passed for an object that cannot be called.
        CheckpointError: there is no file of a known kind at the path, or it is incomplete or damaged.
        ExportError: the export at the path is incomplete or was changed.

    Example:
        >>> model = plait.Sequential(plait.Linear(4, 8, rngs=plait.Rngs(0)), plait.relu)
        >>> path = plait.explore(model, jnp.ones((2, 4)), to="model.html")
        >>> "layers" in path.read_text()
        True
    """
    target = given_path(to, ArgumentError)
    check = functools.partial(check_own_file, target, _MARK.encode(), "the page", ArgumentError)
    check()
    outlines = [_outline(model, inputs, options)]
    if other is not None:
        outlines.append(_outline(other, () if _is_path(other) else inputs, {} if _is_path(other) else options))
        _tell_apart(outlines)
        put_together(*outlines)
    text = page_of(outlines)
    with written_whole(target, "the page", ArgumentError, check) as draft:
        draft.write_bytes(text.encode("utf-8", "backslashreplace"))
    return target


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _outline(source: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Outline:
    if not _is_path(source):
        if not (inputs or options):
            return outline_of_graph(source, type(source).__name__, {}, {})
        calls = calls_of(source, inputs, options)
        costs = costs_of(source, inputs, options, calls)
        return outline_of_graph(source, type(source).__name__, calls, costs)
    if inputs or options:
        raise ArgumentError(
            "inputs are for a model, and this is a file",
            at=os.fspath(source),
            found=f"{len(inputs) + len(options)} inputs",
            expected="no inputs",
            do="plait.explore('runs/digits'), or restore the model and explore it with inputs",
        )
    return outline_of_file(source)


def _tell_apart(outlines: Sequence[Outline]) -> None:
    first, second = outlines
    if first.name == second.name:
        first.name, second.name = f"{first.name} (A)", f"{second.name} (B)"


def page_of(outlines: Sequence[Outline]) -> str:
    """The text of the page."""
    script = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)
    style = _asset("page.css")
    title = " and ".join(outline.name for outline in outlines)
    page = string.Template(_asset("page.html"))
    return page.substitute(
        mark=_MARK,
        title=html.escape(title),
        script=script,
        style=style,
        script_sum=_sum(script),
        style_sum=_sum(style),
        data=_embedded(description(outlines)),
    )


def _asset(name: str) -> str:
    return (resources.files(str(__package__)) / "assets" / name).read_text(encoding="utf-8")


def _sum(text: str) -> str:
    """The name of the one script, or style, that the page's own policy allows."""
    return base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _embedded(value: Any) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
