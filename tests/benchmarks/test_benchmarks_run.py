"""The benchmarks run and give tables; their figures are nothing that a test could hold."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks.__main__ import NAMES

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
QUICK = ("dispatch", "graph", "imports")


@pytest.mark.parametrize("name", [pytest.param(each, marks=[pytest.mark.long] * (each not in QUICK)) for each in NAMES])
def test_a_benchmark_gives_its_tables(name, tmp_path):
    written = tmp_path / "tables.json"
    steps = ["--steps=block"] if name == "dispatch" else []
    command = [sys.executable, "-m", "benchmarks", name, "--quick", *steps, f"--json={written}"]
    subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(written.read_text())
    assert {"python", "jax"} <= set(found["versions"])
    for table in found["tables"]:
        assert table["benchmark"] == name
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
