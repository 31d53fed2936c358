"""The heart works without its guests: its own tests pass in a process that can import nothing above it."""

import re
import subprocess
import sys

import pytest

from tests.architecture.house import SOURCE

ROOT = SOURCE.parents[1]
# What runs → how many of its tests, at the least, ask for nothing above the heart.
PARTS = [
    pytest.param(("tests/core/graph", "tests/transforms/call"), 140, id="graphs and calls"),
    pytest.param(("tests/core", "tests/transforms"), 800, id="everything", marks=[pytest.mark.slow, pytest.mark.long]),
]
# They show what a guest does in the heart.
OF_A_GUEST = (
    "tests/transforms/test_loops.py::test_what_is_sown_in_a_carried_module_is_stacked_where_an_axis_says_so",
    "tests/transforms/test_pickling.py::test_a_function_that_uses_plait_goes_by_value",
)
A_GUEST_IN_THE_HEART = """
import tests.architecture.heart_alone as alone
exec(compile("from plait.stacks import stack", str(alone.SOURCE / "core" / "file.py"), "exec"))
"""


@pytest.mark.parametrize(("files", "fewest"), PARTS)
def test_the_heart_passes_its_own_tests_alone(files, fewest):
    options = ["-q", "-m", "not slow and not long", "-p", "tests.architecture.heart_alone"]
    options += [f"--deselect={test}" for test in OF_A_GUEST]
    command = [sys.executable, "-m", "pytest", *options, *files]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:]
    passed = re.search(r"(\d+) passed", result.stdout)
    assert passed is not None
    assert int(passed[1]) >= fewest


def test_a_guest_in_the_heart_is_seen():
    result = subprocess.run([sys.executable, "-c", A_GUEST_IN_THE_HEART], cwd=ROOT, capture_output=True, text=True)
    assert "core/file.py:1 imports plait.stacks, a stranger to the heart" in result.stderr
