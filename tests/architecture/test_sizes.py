"""The heart of the library is made of files and functions that can be read at once."""

import ast

import pytest

from tests.architecture.house import SOURCE

AREAS = ("core", "transforms", "compat")
FILES = sorted(file for area in AREAS for file in (SOURCE / area).rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 500, 60


def long_functions(tree):
    """The functions with too many lines after their docstring, except those that write code."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            documented = ast.get_docstring(node) is not None
            first = node.body[1] if documented and len(node.body) > 1 else node.body[0]
            if (node.end_lineno or 0) - first.lineno >= LONGEST_FUNCTION and "generated" not in (
                ast.get_docstring(node) or ""
            ):
                yield node.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_files_and_functions_are_short(file):
    text = file.read_text()
    tree = ast.parse(text)
    assert len(text.splitlines()) <= LONGEST_FILE or "This file is long because" in ast.get_docstring(tree)
    assert [*long_functions(tree)] == []
