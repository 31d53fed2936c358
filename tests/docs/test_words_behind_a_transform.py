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
