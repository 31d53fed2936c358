"""The heart of the library is made of files and functions that can be read at once."""

import ast
import io
import tokenize

import pytest

from tests.architecture.house import SOURCE

AREAS = ("core", "transforms", "compat")
FILES = sorted(file for area in AREAS for file in (SOURCE / area).rglob("*.py"))
LONGEST_FILE, LONGEST_FUNCTION = 500, 60
CODE_LINES = {"core": 5_000, "transforms": 4_900, "compat": 1_300}
NAMES_OF_TRANSFORMS = 170  # of plait's own, that files of transforms/ import
NOT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


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


def code_lines(text):
    """The number of lines without docstrings, comments and blanks."""
    docstrings = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


@pytest.mark.parametrize("area", CODE_LINES)
def test_the_heart_is_small(area):
    """A new feature is a guest; what has to be in the heart takes the place of something else."""
    assert sum(code_lines(file.read_text()) for file in (SOURCE / area).rglob("*.py")) <= CODE_LINES[area]


def test_a_transform_needs_few_names():
    found = {
        alias.name
        for file in (SOURCE / "transforms").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.level
        and not (node.module or "").endswith(("errors", "words", "typing"))
        for alias in node.names
    }
    assert len(found) <= NAMES_OF_TRANSFORMS


def test_lines_of_code_are_counted():
    text = '"""A docstring\nof two lines."""\n\n# A comment.\nx = 1  # another\ny = """\ntext"""\n'
    assert code_lines(text) == 3
