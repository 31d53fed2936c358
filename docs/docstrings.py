"""How mkdocstrings shows a docstring of plait: its sections as Markdown, and signatures with what wrappers add."""

import importlib
import inspect
import re
import textwrap
from typing import Any

import griffe

SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$")
ITEM = re.compile(r"^(\*{0,2}\w[\w.*, ]*): (.*)$")


class Docstrings(griffe.Extension):
    """Runs while the source is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(inspect.cleandoc(obj.docstring.value))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The public form of a function differs from its definition by a few keywords: it has ``graph=``."""
        package = importlib.import_module(pkg.path)
        for name in dir(package):
            value = getattr(package, name)
            original = inspect.unwrap(value) if callable(value) else value
            if "__signature__" not in getattr(value, "__dict__", {}) or original is value:
                continue
            function = pkg.modules_collection[f"{original.__module__}.{original.__qualname__}"]
            written = {parameter.name for parameter in function.parameters}
            public = inspect.signature(value).parameters
            for hidden in written - set(public):
                del function.parameters[hidden]
            for parameter in public.values():
                if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in written:
                    added = griffe.Parameter(
                        parameter.name,
                        annotation=str(parameter.annotation),
                        default=repr(parameter.default),
                        kind=griffe.ParameterKind.keyword_only,
                    )
                    function.parameters.add(added)


def to_markdown(docstring: str) -> str:
    """A docstring as Markdown: headings in bold, their items as lists, examples and literal text as blocks."""
    paragraphs: list[str] = []
    literal = False
    for paragraph in re.split(r"\n\s*\n", docstring):
        if literal and paragraph.startswith("    "):
            paragraphs.append(f"```text\n{textwrap.dedent(paragraph).replace('``', '`')}\n```")
            continue
        literal = paragraph.endswith("::")
        lines = paragraph.removesuffix(":" if literal else "").splitlines()
        heading = SECTION.match(lines[0])
        if heading and len(lines) > 1 and lines[1].startswith("    "):
            paragraphs.append(f"**{heading[1]}**")
            lines = textwrap.dedent("\n".join(lines[1:])).splitlines()
            listed = not lines[0].startswith(">>>")
        else:
            listed = False
        paragraphs.append(body(lines, listed=listed))
    return "\n\n".join(paragraphs)


def body(lines: list[str], *, listed: bool) -> str:
    text = textwrap.dedent("\n".join(lines))
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    text = text.replace("``", "`")
    if not listed:
        return text
    items = []
    for line in text.splitlines():
        item = ITEM.match(line)
        if item:
            items.append(f"- `{item[1]}`: {item[2]}")
        elif items:
            items.append(f"  {line.strip()}")
        else:
            items.append(line)
    return "\n".join(items)
