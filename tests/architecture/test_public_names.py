"""One list of public names: ``plait._public.PUBLIC`` is what plait shows and the reference documents."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import plait
from plait._public import PUBLIC, RENAMED

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
HEADING = re.compile(r"^#{2,3} `([A-Za-z_][A-Za-z0-9_]*)`$", re.MULTILINE)


def documented() -> list[str]:
    pages = sorted(REFERENCE.glob("*.md"))
    return [name for page in pages for name in HEADING.findall(page.read_text(encoding="utf-8"))]


def test_the_package_shows_the_list():
    shown = {name for name in dir(plait) if not (name.startswith("__") and name.endswith("__"))}
    assert shown == set(PUBLIC)


def test_the_reference_documents_the_list():
    assert sorted(documented()) == sorted(PUBLIC), "run `make reference`"


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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        plait.no_such_name
