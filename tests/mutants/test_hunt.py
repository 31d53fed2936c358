"""The hunt itself, in a tiny package of which one function is tested and one is not."""

import py_compile
from pathlib import Path

import pytest

pytest.importorskip("mutmut")

from tools.mutants.areas import Area
from tools.mutants.faults import sample
from tools.mutants.hunt import hunt
from tools.mutants.process import planted

TESTED = '''"""Sums."""


def total(numbers):
    """The sum; nothing counts as zero."""
    result = 0
    for number in numbers:
        result += number
    return result
'''

UNTESTED = '''

def largest(numbers):
    """The largest; nothing has none."""
    return max(numbers) if numbers else None
'''

TESTS = """
from tiny.sums import total


def test_total():
    assert (total([1, 2]), total([])) == (3, 0)
"""

pytestmark = pytest.mark.slow

AREA = Area("src/tiny", ("tests",), package="src/tiny", preload=("hypothesis",))


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "root"
    for file, text in (("src/tiny/sums.py", TESTED + UNTESTED), ("tests/test_sums.py", TESTS)):
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text(text)
    return root


def test_faults_that_tests_notice_are_told_from_those_that_they_do_not(tree, capsys):
    faults = sample(tree, [tree / "src/tiny/sums.py"], 20, 0)
    untested = [fault for fault in faults if fault.before.startswith("return max")]
    tested = [fault for fault in faults if fault not in untested]
    assert len(untested) >= 2
    # What somebody has judged is not planted, and counts neither way.
    known = {(untested[0].file, untested[0].before, untested[0].after): "because"}
    result = hunt(AREA, tree, 20, 0, known=known)
    assert result.judged == [(fault, "because") for fault in untested if fault.after == untested[0].after]
    assert result.survivors == [fault for fault in untested if fault.after != untested[0].after]
    assert [fault.after for fault, _ in result.killed] == [fault.after for fault in tested]
    assert {fault.before for fault in tested} == {"result = 0", "result += number", "return result"}
    assert {test for _, test in result.killed} == {"tests/test_sums.py::test_total"}
    printed = capsys.readouterr().out
    assert f"{len(tested)} of {len(tested) + len(result.survivors)} faults were noticed" in printed
    assert "-    return max(numbers) if numbers else None\n+    return " in printed
    assert (tree / "src/tiny/sums.py").read_text() == TESTED + UNTESTED


def test_tests_that_fail_without_a_fault_are_told(tree):
    (tree / "tests/test_sums.py").write_text(TESTS.replace("(3, 0)", "(4, 0)"))
    with pytest.raises(SystemExit, match=r"do not pass without a fault(?s:.*)test_total"):
        hunt(AREA, tree, 1, 0, known={})


def test_nothing_that_was_compiled_of_a_fault_remains(tree):
    """Python compares times by the second, and the text with a fault may be as long as the one without."""
    file = tree / "src/tiny/sums.py"
    with planted(file, file.read_text().replace("max(", "min(")):
        compiled = Path(py_compile.compile(str(file)))  # type: ignore[arg-type]
        assert compiled.exists()
    assert not compiled.exists()
