"""Write docs/reference, the list of the public names: one page for each area of the library.

A public name is one of ``plait._public.PUBLIC``, or one of the ``__all__`` of a public module, such as ``export.save``.
``::: plait.nn.linear.Linear`` is where mkdocstrings puts signature, docstring and methods when the site is built.
"""

import ast
import functools
import inspect
import sys
import typing
from pathlib import Path
from typing import Any

import plait
from plait._public import FOR_FLAX, OWN, PUBLIC

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docstrings import to_markdown

PAGES = Path(__file__).resolve().parent / "reference"
# Where another library's object is looked for, so that its public name is shown instead of its private home.
FOREIGN_HOMES = ("jax", "jax.nn", "jax.nn.initializers", "jax.numpy", "jax.tree", "jax.sharding", "numpy")
FOLDERS = {
    "core": "Objects, state and the crossing",
    "transforms": "Transforms",
    "partitioning": "Axis names and sharding",
    "nn": "Layers",
    "edit": "Changing a model",
    "generation": "Generating",
    "checkpoint": "Checkpoints",
    "convert": "Checkpoints of other libraries",
    "models": "Published models",
    "bridge": "Linen interoperation",
    "export": "Export",
    "explorer": "Looking in a browser",
    "inspect": "Looking inside",
    "comparison": "Comparing implementations",
    "training": "Training",
    "compat": "Kept for Flax",
}
# Folders with a page of another name than that of their room.
SHOWN_WITH = {
    "flax.bridge": "bridge",
    "inspect.compare": "comparison",
    "inspect.explore": "explorer",
    "util": "transforms",
}
APART = "Names that programs written for Flax look for. A program written for plait does without them.\n\n"


def pages() -> dict[str, str]:
    """Text of each page, by file name."""
    names, described = public_names(), described_names()
    areas: dict[str, list[str]] = {}
    for name in sorted(set(described.values()), key=lambda name: (name.lower(), name)):
        areas.setdefault(area_of(name), []).append(name)
    places = {name: f"{area}.md#{anchor(name, names[name])}" for area, listed in areas.items() for name in listed}
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


def anchor(name: str, value: Any) -> str:
    """The anchor of a name: mkdocstrings gives a definition the one of its place."""
    place = place_in_source(value)
    return place if place and is_shown_by(name, value) else f"plait.{name}"


def is_shown_by(name: str, value: Any) -> bool:
    """Whether the definition is shown under this name; of two public names for it, under the one that it has itself."""
    place = place_in_source(value)
    if place is None:
        return False
    own = [other for other, it in described_names().items() if other == it and public_names()[other] is value]
    return name == next((other for other in own if place.endswith(f".{other}")), own[0])


def area_of(name: str) -> str:
    top = name.partition(".")[0]
    if top in FOR_FLAX:
        return "compat"
    place = home(top)
    return next(
        (page for folder, page in SHOWN_WITH.items() if f"{place}.".startswith(f"{folder}.")), place.partition(".")[0]
    )


def home(name: str) -> str:
    """The module of a name; of one whose module is about Flax the module of what is behind it."""
    if not PUBLIC[name].startswith("flax.compat."):
        return PUBLIC[name]
    value = inspect.unwrap(getattr(plait, name))
    return "core" if inspect.ismodule(value) else getattr(value, "__module__", "plait.core").partition(".")[2]


def index(areas: dict[str, list[str]], links: dict[str, str]) -> str:
    how = "`make reference` writes these lists of names, and `make docs` fills in signatures and docstrings."
    lines = ["# API reference", "", f"Every public name of plait. {how}", ""]
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
    place = place_in_source(value)
    if is_shown_by(name, value):
        return f"::: {place}\n    options:\n      heading: plait.{name}\n      toc_label: {name}\n"
    parts = [f"## `{name}` {{#{anchor(name, value)}}}", f"Defined in `{defining_module(name, value)}`."]
    elsewhere = foreign_name(value)
    if elsewhere:
        parts += [f"The same object as `{elsewhere}`."]
    elif place:
        parts += [f"The same as [`{place.rpartition('.')[2]}`]({links[place.rpartition('.')[2]]})."]
    elif inspect.ismodule(value):
        parts += [documentation(value), contents(name, links) or same_module(name, value, links)]
    else:
        parts += [constant(value)]
    return "\n\n".join(part for part in parts if part) + "\n"


def place_in_source(value: Any) -> str | None:
    """Module and name under which the source defines a class or function; None for what is made when plait runs."""
    original = inspect.unwrap(value) if callable(value) else value
    home, name = getattr(original, "__module__", None), getattr(original, "__qualname__", None)
    if not (isinstance(home, str) and isinstance(name, str)):
        return None
    file = getattr(sys.modules.get(home), "__file__", None)
    if file is None or not home.startswith("plait") or name not in defined_in(file):
        return None
    return f"{home}.{name}"


@functools.cache
def defined_in(file: str) -> set[str]:
    """The classes and functions at the top level of a file."""
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))}


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
    name = None if typing.get_origin(value) else getattr(value, "__qualname__", None)  # an alias borrows its origin's
    if not isinstance(home, str) or not isinstance(name, str) or home.partition(".")[0] == "plait":
        return None
    public = (module for module in FOREIGN_HOMES if getattr(sys.modules.get(module), name, None) is value)
    return f"{next(public, home)}.{name}"


def constant(value: Any) -> str:
    if isinstance(value, (str, int, float, bool, tuple)) and " at 0x" not in repr(value):
        return f"A constant: `{value!r}`."
    return f"An annotation: `{value!r}`." if typing.get_origin(value) else f"A `{type(value).__name__}`."


def documentation(value: Any) -> str:
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return to_markdown(inspect.cleandoc(own)) if own else ""


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
