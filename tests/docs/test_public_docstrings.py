"""A public docstring is for users: it cites no rule of the specification by its number."""

import inspect
import re

import pytest

import plait
from plait._public import PUBLIC
from tests.docs.test_reference import module_of

RULE = re.compile(r"\b(?:rules?|ask) [A-Z]{0,2}\d+|\([A-Z]{1,2}\d{1,3}(?:, [A-Z]{1,2}\d{1,3})*\)")


def documented():
    """Public names, and the public members of public classes, with their docstrings."""
    pytest.importorskip("griffe")
    for name, value in module_of("make_reference").public_names().items():
        home = inspect.unwrap(value) if callable(value) else value
        yield name, getattr(home, "__doc__", None) or ""
        if inspect.isclass(value) and value.__module__.startswith("plait"):
            for member, inside in vars(value).items():
                if not member.startswith("_") or member in ("__call__", "__init__"):
                    yield f"{name}.{member}", getattr(inside, "__doc__", None) or ""


def test_no_public_docstring_cites_a_rule():
    assert len(PUBLIC) < len(list(documented()))
    assert {name for name, text in documented() if RULE.search(text)} == set(), plait.__name__
