"""The runners that stand by do what a fresh process does."""

import subprocess
import sys

import pytest

from plait.export.proof.apart import RUNNERS
from tests.standing import StandingProcesses

SCRIPTS = {
    "says": "import sys; print(*sys.argv[1:])",
    "fails": "import sys; print('so far'); 1 / 0",
    "ends": "import sys; sys.exit(3)",
    "complains": "import sys; sys.exit('no such file')",
    "imports": "import json, colorsys",
    "dies": "import os; os.write(2, b'killed\\n'); os._exit(7)",
}


@pytest.fixture
def processes():
    standing = StandingProcesses()
    yield standing
    standing.end()


def command(tmp_path, name, *arguments, blocked="colorsys"):
    script = tmp_path / "script.py"  # one place: one process
    script.write_text(SCRIPTS[name])
    return [sys.executable, "-I", str(RUNNERS / "isolated.py"), blocked, str(script), *arguments]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_as_in_a_process_of_its_own(processes, tmp_path, name):
    asked = command(tmp_path, name, "a", "b c")
    fresh = subprocess.run(asked, capture_output=True, text=True)
    found = processes.run(asked)
    last = (fresh.stdout + fresh.stderr).strip().splitlines()[-1:]
    assert (found.returncode, found.stdout.strip().splitlines()[-1:]) == (fresh.returncode, last)


def test_one_process_runs_all_until_it_dies(processes, tmp_path):
    for name, started in (("says", 1), ("fails", 1), ("imports", 1), ("says", 1), ("dies", 1), ("says", 2)):
        processes.run(command(tmp_path, name))
        assert processes.started == started


def test_a_script_that_takes_too_long_is_ended(processes, tmp_path):
    asked = command(tmp_path, "says")
    (tmp_path / "script.py").write_text("import time; time.sleep(600)")
    with pytest.raises(subprocess.TimeoutExpired):
        processes.run(asked, timeout=0.2)
    assert processes.run(command(tmp_path, "says", "again")).stdout == "again\n"
