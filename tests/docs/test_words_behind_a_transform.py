"""The table of the words that one needs to know to change a transform: few, and each in its folder."""

import ast
import re

import pytest

from tests.architecture.house import SOURCE

MOST = 45
TABLE = (
    (SOURCE.parents[1] / "docs" / "design.md").read_text().split("## The words behind a transform")[1].split("\n## ")[0]
)
ROWS = re.findall(r"^\| `(\w+)` \| .* \| `([\w/]+/)` \|$", TABLE, re.MULTILINE)


def test_they_are_few():
    assert len(ROWS) == TABLE.count("\n| ") - 2 <= MOST
    assert f"these {len(ROWS)} words" in TABLE
    assert len(dict(ROWS)) == len(ROWS)


@pytest.mark.parametrize(("word", "folder"), ROWS, ids=[word for word, _ in ROWS])
def test_each_is_defined_in_its_folder(word, folder):
    defined = set()
    for file in (SOURCE / folder).glob("*.py"):
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            defined |= {getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)}
    assert word in defined


def test_the_drawing_of_the_routes_names_files_of_the_heart():
    drawing = (SOURCE.parents[1] / "docs" / "images" / "routes.svg").read_text()
    heart = [
        file.relative_to(SOURCE).as_posix() for area in ("core", "transforms") for file in (SOURCE / area).rglob("*.py")
    ]
    named = set(re.findall(r"[\w/]+\.py", drawing))
    assert len(named) > 10
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in heart)] == []
