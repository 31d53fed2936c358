"""How mkdocstrings shows a docstring of plait: its sections as Markdown."""

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
