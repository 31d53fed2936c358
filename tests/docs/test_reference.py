"""The committed reference pages are those that the docstrings give today."""

import importlib.util

import pytest

from tests.docs.examples import ROOT


def module_of(name):
    """A program of docs/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def make_reference():
    pytest.importorskip("griffe")
    return module_of("make_reference")


@pytest.mark.slow
def test_the_reference_is_up_to_date(make_reference):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    committed = {page.name: page.read_text(encoding="utf-8") for page in pages}
    assert committed == make_reference.pages(), "run `make reference`"


def test_the_reference_holds_no_addresses_and_no_paths(make_reference):
    text = "\n".join(make_reference.pages().values())
    assert " at 0x" not in text
    assert str(ROOT) not in text


def test_a_docstring_becomes_markdown(make_reference):
    arguments = "Args:\n    x: what is scaled,\n        and more.\n    y: how much."
    example = "Example:\n    >>> 1 + 1\n    2"
    assert make_reference.to_markdown(f"Scale by ``y``.\n\n{arguments}\n\n{example}").split("\n\n") == [
        "Scale by `y`.",
        "**Args**",
        "- `x`: what is scaled,\n  and more.\n- `y`: how much.",
        "**Example**",
        "```pycon\n>>> 1 + 1\n2\n```",
    ]
