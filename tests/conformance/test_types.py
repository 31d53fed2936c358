"""What type checkers know of a user's program: ``typed_program.py`` says it line by line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import plait

PROGRAM = Path(__file__).with_name("typed_program.py")
SOURCE = Path(plait.__file__).parents[1]
LINES = PROGRAM.read_text(encoding="utf-8").splitlines()
ERRORS = {number for number, line in enumerate(LINES, 1) if line.endswith("# error")}
REVEALS = {number: line.partition("# reveals: ")[2] for number, line in enumerate(LINES, 1) if "# reveals: " in line}


def pyright(folder):
    """Lines with errors, and line → type."""
    settings = {
        "include": [os.path.relpath(PROGRAM, folder)],
        "extraPaths": [str(SOURCE)],
        "reportUnusedExpression": False,
    }
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    said = json.loads(run("pyright", "--outputjson", "--project", config, "--pythonpath", sys.executable))
    found = [(d["severity"], d["range"]["start"]["line"] + 1, d["message"]) for d in said["generalDiagnostics"]]
    return (
        {line for severity, line, _ in found if severity == "error"},
        {line: re.findall(r'is "(.*)"', text)[0] for severity, line, text in found if severity == "information"},
    )


def mypy(folder):
    """The same; errors in plait itself are pyright's to find."""
    text = run("mypy", "--follow-imports=silent", "--cache-dir", folder, PROGRAM)
    return (
        {int(line) for line in re.findall(r":(\d+): error: ", text)},
        {
            int(line): re.sub(r"(\w+\.)+(?=\w)", "", kind)
            for line, kind in re.findall(r':(\d+): note: Revealed type is "(.*)"', text)
        },
    )


def run(*command):
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=1200,
    ).stdout


@pytest.mark.slow
@pytest.mark.parametrize("checker", [pyright, mypy])
def test_errors_are_where_the_user_errs_and_types_are_known(checker, tmp_path):
    pytest.importorskip(checker.__name__)
    errors, revealed = checker(tmp_path)
    assert sorted(errors) == sorted(ERRORS)
    assert revealed == REVEALS
