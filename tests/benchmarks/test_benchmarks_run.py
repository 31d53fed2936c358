"""The benchmarks run and give tables of the promised shape; their figures are nothing that a test could hold."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks.__main__ import NAMES

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
# The columns of the first table of each benchmark, and how many tables there are.
SHAPES = {
    "dispatch": (2 + 2 + 2 + 1, 1),
    "graph": (4, 1),
    "transitions": (3, 3),
    "tracing": (5, 1),
    "memory": (4, 3),
    "imports": (3, 1),
    "whole_models": (6, 1),
    "scaling": (7, 3),
    "exports": (5, 2),
    "export_zoo": (3, 2),
    "warm": (6, 1),
    "compare": (6, 2),
    "build": (5, 2),
    "stack": (6, 2),
    "tabulate": (5, 1),
    "loop": (4, 7),
    "eager": (5, 1),
}
LONG = {
    "build",
    "compare",
    "memory",
    "scaling",
    "stack",
    "warm",
    "whole_models",
    "export_zoo",
    "eager",
    "exports",
    "tracing",
}


def test_every_benchmark_has_a_row():
    assert set(SHAPES) == set(NAMES)


def run(name, folder):
    """What ``python -m benchmarks NAME`` writes as JSON, with the fewest repetitions."""
    written = folder / "tables.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--steps=block", f"--json={written}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(written.read_text())


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.long] * (each in LONG)) for each in SHAPES])
def test_a_benchmark_gives_its_tables(name, tmp_path):
    columns, count = SHAPES[name]
    found = run(name, tmp_path)
    assert {"python", "jax"} <= set(found["versions"])
    assert {table["benchmark"] for table in found["tables"]} == {name}
    assert len(found["tables"]) == count
    assert len(found["tables"][0]["columns"]) == columns
    for table in found["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
