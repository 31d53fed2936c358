"""The hunt itself, in a tiny package of which one function is tested and one is not."""

import os
import py_compile
from pathlib import Path

import pytest

pytest.importorskip("mutmut")

from tools.mutants.areas import Area
from tools.mutants.faults import Fault, sample
from tools.mutants.hunt import _Tests, hunt
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


IN_A_PROCESS = """
import subprocess
import sys


def test_total_in_a_process():
    code = "from tiny.sums import total; print(total([1, 2]))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout == "3\\n"
"""

ENDINGS = {
    "an endless loop": "def total(numbers):\n    while True:\n        pass\n",
    "a crash": "import os, signal\n\ndef total(numbers):\n    os.kill(os.getpid(), signal.SIGSEGV)\n",
    "an exit": "import os\n\ndef total(numbers):\n    os._exit(0)\n",
    "an error while it is imported": "raise OSError\n",
    "an interrupt": "def total(numbers):\n    raise KeyboardInterrupt\n",
    "nothing": TESTED,
    "an error in a process of its own": f"import sys\n{TESTED}\nif sys.argv[0] == '-c':\n    del total\n",
}


def test_a_fault_is_noticed_however_it_ends_the_tests(tree, monkeypatch):
    """And the next one finds a process that stands by."""
    (tree / "tests/test_process.py").write_text(IN_A_PROCESS)
    faults = [Fault("src/tiny/sums.py", 1, "a", name, source, "") for name, source in ENDINGS.items()]
    monkeypatch.setattr("tools.mutants.hunt.sample", lambda *args: faults)
    monkeypatch.setattr("tools.mutants.hunt.EACH", 2.0)
    result = hunt(AREA, tree, len(faults), 0, known={})
    assert [fault.after for fault in result.survivors] == ["nothing"]
    noticed = {fault.after: test for fault, test in result.killed}
    assert noticed["an endless loop"] == "tests/test_sums.py::test_total"
    assert noticed["an error in a process of its own"] == "tests/test_process.py::test_total_in_a_process"


OTHERS = {
    "test_largest.py": "from tiny.sums import largest\n\ndef test_largest():\n    largest([])\n",
    "test_nothing.py": "def test_nothing():\n    pass\n",
    "test_thread.py": """
import threading
from tiny.sums import total

def test_total_in_a_thread():
    thread = threading.Thread(target=total, args=([],))
    thread.start()
    thread.join()
""",
    "test_process.py": "import subprocess\n\ndef test_process():\n    subprocess.run(['true'])\n",
    "test_watched.py": "import sys\n\ndef test_nobody_watches():\n    assert sys.gettrace() is None\n",
    "test_import.py": "from tiny.sums import total\n\ntotal([1])\n\ndef test_import():\n    pass\n",
}


def test_only_tests_that_reach_a_fault_run_and_what_was_found_is_kept(tree, monkeypatch):
    """The second hunt asks no test; after a change in the tests, the one that noticed a fault is tried first."""
    for name, text in OTHERS.items():
        (tree / "tests" / name).write_text(text)
    asked, ask = [], _Tests.ask

    def asking(self, tests, **options):
        asked.append([Path(test).relative_to(self.root).as_posix() if "::" not in test else test for test in tests])
        return ask(self, tests, **options)

    monkeypatch.setattr(_Tests, "ask", asking)
    faults = [
        Fault("src/tiny/sums.py", 6, "a", "b", TESTED.replace("result = 0", "result = 1") + UNTESTED, ""),
        Fault("src/tiny/sums.py", 14, "a", "c", TESTED + UNTESTED.replace("None", "0"), ""),
    ]
    monkeypatch.setattr("tools.mutants.hunt.sample", lambda *args: faults)
    first = hunt(AREA, tree, 2, 0, known={})
    assert (first.killed, first.survivors) == ([(faults[0], "tests/test_sums.py::test_total")], [faults[1]])
    settled, *rest = asked
    assert settled == ["tests"]
    assert rest.pop(0) == ["tests/test_watched.py::test_nobody_watches"]  # which fails only while it is watched
    assert [sorted(tests) for tests in rest] == [
        ["tests/test_sums.py"],
        [f"tests/test_{name}.py" for name in ("largest", "process", "watched")],
    ]
    asked.clear()
    assert hunt(AREA, tree, 2, 0, known={}) == first
    assert asked == []
    (tree / "tests/test_largest.py").write_text("def test_nothing():\n    pass\n")
    asked.clear()
    hunt(AREA, tree, 2, 0, known={})
    assert asked[2] == ["tests/test_sums.py::test_total"]


SLOW = """
import pytest

from tiny.sums import total, largest


def test_sums():
    total([])


@pytest.mark.slow
def test_largest():
    assert largest([1, 2]) == EXPECTED
"""


@pytest.mark.filterwarnings("ignore:Unknown pytest.mark.slow")
@pytest.mark.parametrize("expected", [2, 3])
def test_what_fast_tests_let_through_is_planted_for_slow_ones(tree, monkeypatch, expected):
    (tree / "tests/test_more.py").write_text(SLOW.replace("EXPECTED", str(expected)))
    fault = Fault("src/tiny/sums.py", 14, "a", "b", TESTED + UNTESTED.replace("max(", "min("), "")
    monkeypatch.setattr("tools.mutants.hunt.sample", lambda *args: [fault])
    if expected == 2:
        assert hunt(AREA, tree, 1, 0, known={}).killed == [(fault, "tests/test_more.py::test_largest")]
    else:
        with pytest.raises(SystemExit, match=r"do not pass without a fault(?s:.*)test_largest"):
            hunt(AREA, tree, 1, 0, known={})


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


OF_ITS_AGE = """

import contextlib
import os
import time

import tiny.sums


def test_age():
    with contextlib.suppress(Exception):
        tiny.sums.largest([1])
    assert os.stat(tiny.sums.__file__).st_mtime < time.time() - 1000
"""


def test_a_fault_is_not_noticed_by_the_age_of_its_file(tree):
    """A stored program is refused if its sources are newer than the process, whatever they say."""
    file = tree / "src/tiny/sums.py"
    os.utime(file, (0, 0))
    (tree / "tests/test_sums.py").write_text(TESTS + OF_ITS_AGE)
    untested = [fault for fault in sample(tree, [file], 20, 0) if fault.before.startswith("return max")]
    result = hunt(AREA, tree, 20, 0, known={})
    assert len(result.survivors) >= len(untested) >= 2
