"""Write docs/reference from the public names and their docstrings: one page for each area of the library.

A public name is one of ``plait._public.PUBLIC``, or one of the ``__all__`` of a public module, such as ``export.save``.
Signatures are read from the source text, so they stand as their author wrote them and hold no addresses.
"""

import ast
import functools
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import plait
from plait._public import FOR_FLAX, OWN, PUBLIC

PAGES = Path(__file__).resolve().parent / "reference"
SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$")
ITEM = re.compile(r"^(\*{0,2}\w[\w.*, ]*): (.*)$")
# Where another library's object is looked for, so that its public name is shown instead of its private home.
FOREIGN_HOMES = ("jax", "jax.nn", "jax.nn.initializers", "jax.numpy", "jax.tree", "jax.sharding", "numpy")
ANGLED = re.compile(
    r"<(?:bound method|built-in function|PjitFunction of <function|function|class)? ?'?([\w.]+)[^<>]*>+"
)
FOLDERS = {
    "core": "Objects, state and the crossing",
    "transforms": "Transforms",
    "partitioning": "Axis names and sharding",
    "nn": "Layers",
    "checkpoint": "Checkpoints",
    "convert": "Checkpoints of other libraries",
    "bridge": "Linen interoperation",
    "export": "Export",
    "inspect": "Looking inside",
    "comparison": "Comparing implementations",
    "training": "Training",
    "compat": "Kept for Flax",
}
APART = "Names that programs written for Flax look for. A program written for plait does without them.\n\n"


def pages() -> dict[str, str]:
    """Text of each page, by file name."""
    names, described = public_names(), described_names()
    areas: dict[str, list[str]] = {}
    for name in sorted(set(described.values()), key=lambda name: (name.lower(), name)):
        areas.setdefault(area_of(name), []).append(name)
    places = {name: f"{area}.md#{slug}" for area, listed in areas.items() for name, slug in anchors(listed).items()}
    links = {name: places[there] for name, there in described.items()}
    texts = {f"{area}.md": page(area, {name: names[name] for name in listed}, links) for area, listed in areas.items()}
    texts["index.md"] = index(areas, links)
    return texts


@functools.cache
def public_names() -> dict[str, Any]:
    """Each public name and what it stands for; ``export.save`` is the ``save`` of the public module ``export``."""
    names = {name: getattr(plait, name) for name in (*OWN, *FOR_FLAX)}
    modules = [name for name, value in names.items() if inspect.ismodule(value)]
    seen = []
    for name in modules:  # grows: a public module may show others
        module = names[name]
        if module not in seen:
            seen.append(module)
            inside = {f"{name}.{member}": getattr(module, member) for member in getattr(module, "__all__", ())}
            modules += [each for each, value in inside.items() if inspect.ismodule(value)]
            names.update(inside)
    return names


@functools.cache
def described_names() -> dict[str, str]:
    """Public name → the name under which the reference describes it: another one where two names are one object."""
    first: dict[int, str] = {}
    described = {}
    for name, value in public_names().items():
        comparable = inspect.ismodule(value) or callable(value)  # two equal constants may be one object by chance
        there = first.setdefault(id(inspect.unwrap(value)), name) if comparable else name
        described[name] = name if name in PUBLIC else there
    return described


def anchors(names: list[str]) -> dict[str, str]:
    """Name → the anchor of its heading on a page of these names; ``Data`` and ``data`` differ by a number."""
    slugs = [name.lower().replace(".", "") for name in names]
    before = [slugs[:place].count(slug) for place, slug in enumerate(slugs)]
    return {name: f"{slug}-{n}" if n else slug for name, slug, n in zip(names, slugs, before, strict=True)}


def area_of(name: str) -> str:
    top = name.partition(".")[0]
    return "compat" if top in FOR_FLAX else home(top)


def home(name: str) -> str:
    """The area of a name; of one that the door makes (``compat/door.py``) the area of what is behind it."""
    if not PUBLIC[name].startswith("compat."):
        return PUBLIC[name].partition(".")[0]
    value = inspect.unwrap(getattr(plait, name))
    return "core" if inspect.ismodule(value) else getattr(value, "__module__", "plait.core").split(".")[1]


def index(areas: dict[str, list[str]], links: dict[str, str]) -> str:
    lines = ["# Reference", "", "Every public name, written by `make reference` from the docstrings.", ""]
    for area in [*(area for area in FOLDERS if area in areas), *sorted(set(areas) - set(FOLDERS))]:
        names = ", ".join(f"[`{name}`]({links[name]})" for name in areas[area])
        lines += [f"**[{title(area)}]({area}.md)**: {names}", ""]
    return "\n".join(lines)


def title(area: str) -> str:
    return FOLDERS.get(area, area.strip("_").capitalize())


def page(area: str, names: dict[str, Any], links: dict[str, str]) -> str:
    entries = [entry(name, value, links) for name, value in names.items()]
    return f"# {title(area)}\n\n{APART if area == 'compat' else ''}" + "\n".join(entries)


def entry(name: str, value: Any, links: dict[str, str]) -> str:
    parts = [f"## `{name}`", f"Defined in `{defining_module(name, value)}`."]
    elsewhere = foreign_name(value)
    if elsewhere:
        parts += [f"The same object as `{elsewhere}`."]
    elif inspect.ismodule(value):
        parts += [documentation(value), contents(name, links) or same_module(name, value, links)]
    elif inspect.isclass(value):
        bases = f"({', '.join(base.__name__ for base in value.__bases__)})"
        call = f"class {name}{bases if issubclass(value, Exception) else class_signature(value)}"
        parts += [f"```text\n{call}\n```", documentation(value), *methods(value)]
    elif callable(value) and (inspect.isroutine(value) or value.__doc__ != type(value).__doc__):
        parts += [f"```text\n{name}{signature(value)}\n```", documentation(value)]
    else:
        parts += [constant(value)]
    return "\n\n".join(part for part in parts if part) + "\n"


def defining_module(name: str, value: Any) -> str:
    """The module of plait that defines what a public name stands for, or else the one that shows it."""
    if name in PUBLIC:
        return f"plait.{PUBLIC[name]}"
    own = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    if isinstance(own, str) and own.partition(".")[0] == "plait":
        return own
    return public_names()[name.rpartition(".")[0]].__name__


def contents(name: str, links: dict[str, str]) -> str:
    """The members of a public module, each with a link to where it is described."""
    inside = [each for each in links if each.rpartition(".")[0] == name]
    return ", ".join(f"[`{each}`]({links[each]})" for each in sorted(inside, key=str.lower))


def same_module(name: str, module: Any, links: dict[str, str]) -> str:
    """For a module of two public names, the one whose members are listed."""
    others = [other for other, value in public_names().items() if value is module and contents(other, links)]
    return f"The same module as [`{others[0]}`]({links[others[0]]})." if others else ""


def foreign_name(value: Any) -> str | None:
    """The public name of something that another library defines; its text is not repeated here."""
    home = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(home, str) or not isinstance(name, str) or home.partition(".")[0] == "plait":
        return None
    public = (module for module in FOREIGN_HOMES if getattr(sys.modules.get(module), name, None) is value)
    return f"{next(public, home)}.{name}"


def constant(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, tuple)) and " at 0x" not in repr(value):
        return f"A constant: `{value!r}`."
    return f"A `{type(value).__name__}`."


def documentation(value: Any) -> str:
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return to_markdown(inspect.cleandoc(own)) if own else ""


def methods(cls: type) -> list[str]:
    """Methods and properties that the class itself documents, one line each."""
    lines = []
    for name, member in vars(cls).items():
        inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if (name.startswith("_") and name != "__call__") or not getattr(inner, "__doc__", None):
            continue
        if isinstance(member, property):
            call = name
        elif inspect.isfunction(inspect.unwrap(inner)):
            call = f"{name}{signature(inner, drop_first=not isinstance(member, staticmethod))}"
        else:
            continue
        first = inspect.cleandoc(inner.__doc__).partition("\n\n")[0]
        lines.append(f"- `{call}`: {to_markdown(first)}")
    return ["**Methods**", "\n".join(lines)] if lines else []


def class_signature(cls: type) -> str:
    for owner in cls.__mro__[:-1]:
        init = vars(owner).get("__init__")
        if init is not None and inspect.isfunction(inspect.unwrap(init)):
            return signature(init, drop_first=True, returns=False)
    return ""


def signature(function: Any, *, drop_first: bool = False, returns: bool = True) -> str:
    """The signature as the source has it, or as Python reports it where there is no source."""
    node = definition(inspect.unwrap(function))
    if node is None:
        return reported_signature(function, drop_first=drop_first)
    if drop_first:
        first = node.args.posonlyargs or node.args.args
        if first:
            del first[0]
    add_keywords(node.args, function)
    text = f"({ast.unparse(node.args)})"
    return text + (f" -> {ast.unparse(node.returns)}" if returns and node.returns else "")


def add_keywords(arguments: ast.arguments, function: Any) -> None:
    """Write the keywords into a signature that a wrapper adds to those of its source."""
    written = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    for parameter in inspect.signature(function).parameters.values() if "__signature__" in vars(function) else ():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in written:
            annotation = ast.parse(str(parameter.annotation), mode="eval").body
            arguments.kwonlyargs.append(ast.arg(parameter.name, annotation))
            arguments.kw_defaults.append(ast.Constant(parameter.default))


def definition(function: Any) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    node = tree.body[0] if tree.body else None
    return node if isinstance(node, ast.FunctionDef) else None


def reported_signature(function: Any, *, drop_first: bool) -> str:
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parameters = list(found.parameters.values())[1 if drop_first else 0 :]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
    text = str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", ANGLED.sub(r"\1", text))


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


def main() -> None:
    PAGES.mkdir(exist_ok=True)
    written = pages()
    for stale in set(PAGES.glob("*.md")) - {PAGES / name for name in written}:
        stale.unlink()
    for name, text in written.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    sys.stdout.write(f"{len(public_names())} names on {len(written)} pages in docs/reference\n")


if __name__ == "__main__":
    main()
