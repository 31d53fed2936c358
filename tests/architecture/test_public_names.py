"""What plait shows and the reference documents: ``plait._public.PUBLIC``, and the ``__all__`` of public modules."""

import ast
import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest

import plait
from plait._public import PUBLIC, RENAMED

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
# A heading with its anchor, or what mkdocstrings makes one of.
HEADING = re.compile(
    r"^## `([\w.]+)` \{#([\w.]+)\}$|^::: ([\w.]+)\n    options:\n      heading: plait\.([\w.]+)$", re.MULTILINE
)
LINK = re.compile(r"\[`([A-Za-z_][A-Za-z0-9_.]*)`\]\((\w+)\.md#([\w.]+)\)")


def headings(page: Path) -> list[tuple[str, str]]:
    """Name and anchor of each heading of a page of the reference."""
    found = HEADING.findall(page.read_text(encoding="utf-8"))
    return [(name or heading, anchor or place) for name, anchor, place, heading in found]


def documented() -> list[str]:
    """Each heading of the reference."""
    return [name for page in sorted(REFERENCE.glob("*.md")) for name, _ in headings(page)]


@functools.cache
def links() -> dict[str, tuple[str, str]]:
    """Name → page and anchor, for each link of the reference."""
    found = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for name, there, anchor in LINK.findall(page.read_text(encoding="utf-8")):
            assert found.setdefault(name, (there, anchor)) == (there, anchor), f"{name} is described in two places"
    return found


@functools.cache
def anchors() -> dict[tuple[str, str], str]:
    """Page and anchor → the name in that heading."""
    return {(page.stem, anchor): name for page in sorted(REFERENCE.glob("*.md")) for name, anchor in headings(page)}


def modules_that_list_their_names() -> set[types.ModuleType]:
    """Every module of plait that assigns ``__all__``, found in the source."""
    found = set()
    for file in (ROOT / "src" / "plait").rglob("*.py"):
        targets = [
            target
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        ]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            parts = file.relative_to(ROOT / "src").with_suffix("").parts
            found.add(importlib.import_module(".".join(parts).removesuffix(".__init__")))
    return found


@functools.cache
def public_modules() -> dict[str, types.ModuleType]:
    """Public name → module: those of ``PUBLIC``, and those that a public module lists in turn."""
    found = {name: getattr(plait, name) for name in PUBLIC if inspect.ismodule(getattr(plait, name))}
    queue = list(found)
    for name in queue:
        for member in getattr(found[name], "__all__", ()):
            value = getattr(found[name], member)
            if inspect.ismodule(value) and value not in found.values():
                found[f"{name}.{member}"] = value
                queue.append(f"{name}.{member}")
    return found


def test_the_package_shows_the_list():
    shown = {name for name in dir(plait) if not (name.startswith("__") and name.endswith("__"))}
    assert shown == set(PUBLIC)


def test_the_reference_documents_the_list():
    names = documented()
    assert sorted(name for name in names if "." not in name) == sorted(PUBLIC), "run `make reference`"
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_only_public_modules_list_their_names():
    assert modules_that_list_their_names() - set(public_modules().values()) == set()


def test_the_reference_documents_every_name_that_a_public_module_lists():
    known, modules = links(), public_modules()  # they load TensorFlow, so they are no parameters
    for name, module in sorted(modules.items()):
        mine = [other for other, value in modules.items() if value is module and f"{other}." in "".join(known)]
        for member in getattr(module, "__all__", ()):
            places = [known[f"{other}.{member}"] for other in mine if f"{other}.{member}" in known]
            assert places, f"{name}.{member} is not in the reference; run `make reference`"
            described = anchors()[places[0]]
            value = functools.reduce(getattr, described.split("."), plait)
            same = inspect.unwrap(value) is inspect.unwrap(getattr(module, member))
            assert same or value == getattr(module, member), f"{name}.{member} leads to {described}"


def test_every_link_of_the_reference_leads_to_a_heading():
    assert set(links().values()) - set(anchors()) == set()


@pytest.mark.slow
def test_a_module_shows_each_name_that_it_lists():
    for module in modules_that_list_their_names():
        assert sorted(set(module.__all__)) == sorted(module.__all__), module.__name__
        assert [name for name in module.__all__ if not hasattr(module, name)] == [], module.__name__


@pytest.mark.slow
def test_dir_of_a_public_module_shows_its_public_names():
    for name, module in public_modules().items():
        others = {each for each in dir(module) if each[:2] != "__"} - set(getattr(module, "__all__", ()))
        homes = {each: getattr(getattr(module, each), "__module__", "plait") for each in others}
        assert not [each for each, home in homes.items() if each[0] == "_" or not home.startswith("plait")], name


def test_every_error_is_listed():
    defined = {name for name, value in vars(plait.errors).items() if inspect.isclass(value)} - {"Any"}
    assert defined == set(plait.errors.__all__)


def test_every_name_comes_from_the_module_that_the_list_gives():
    for name, home in PUBLIC.items():
        value, module = getattr(plait, name), importlib.import_module(f"plait.{home}")
        given = module if inspect.ismodule(value) else getattr(module, RENAMED.get(name, ("", name))[1])
        assert given is value, f"plait.{name} is not that of {home}"


def test_every_name_is_documented_where_it_is_defined():
    for name, home in PUBLIC.items():
        value = getattr(plait, name)
        if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
            own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
            assert own, f"{home} defines {name} without a docstring"


def test_every_name_that_a_public_module_lists_is_documented_where_it_is_defined():
    for name, module in public_modules().items():
        for member in getattr(module, "__all__", ()):
            value = getattr(module, member)
            if inspect.isroutine(value) or inspect.isclass(value) or inspect.ismodule(value):
                own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
                assert own, f"{name}.{member} has no docstring"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        plait.no_such_name
