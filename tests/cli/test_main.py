"""The command: exit statuses and messages, as a user meets them."""

import subprocess
import sys
from pathlib import Path

import pytest

import plait
from plait.cli import launch, main as cli
from tests.command_line import FILE, interface
from tests.environment import environment

SOURCE = Path(plait.__file__).parents[1]
LAUNCH = ["launch", "--processes", "1", "--", "x"]


def command(*arguments, cwd=None, **settings):
    """Run ``plait ARGUMENTS`` in a process of its own, in which warnings are errors as they are here."""
    return subprocess.run(
        [sys.executable, "-m", "plait.cli.main", *arguments],
        capture_output=True, text=True, cwd=cwd,
        env=environment(**settings),
    )  # fmt: skip


def check_refused(done, *words):
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.slow
def test_the_version_is_that_of_the_package():
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"plait {plait.__version__}\n")


REFUSED = {
    "nothing": ((), "COMMAND"),
    "unknown command": (("train",), "train"),
    "unknown flag": (("explore", "x", "--speed"), "--speed"),
    "abbreviated flag": (("launch", "--process", "3", "--", "x"), "--process"),
    "no number": (("launch", "--processes", "many", "--", "x"), "'many' is not a whole number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_makes_no_sense_is_refused(case, capsys):
    arguments, word = REFUSED[case]
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert word in printed.err


@pytest.mark.slow
def test_an_unknown_command_is_refused_by_the_process_too(tmp_path):
    check_refused(command("train", cwd=tmp_path), "train", "launch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--help",), ("launch", "--help")], ids=" ".join)
def test_help_is_there(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments)
    assert "usage: plait" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (plait.errors.CheckpointError("bad", at="x"), 2, "plait: bad\n  at        x\n"),
        (OSError(28, "No space left on device", "a/b"), 2, "plait: a/b: No space left on device\n"),
        (KeyboardInterrupt(), 130, "plait: interrupted\n"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_a_message_and_a_status(monkeypatch, capsys, error, status, message):
    def fail(options):
        raise error

    monkeypatch.setattr("plait.cli.launch.run", fail)
    assert cli.main(LAUNCH) == status
    assert capsys.readouterr().err == message


def test_a_mistake_in_plait_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("plait.cli.launch.run", lambda options: 1 // 0)
    with pytest.raises(ZeroDivisionError, match="zero"):
        cli.main(LAUNCH)


def test_the_interface_is_the_one_that_users_have():
    """Commands, options, defaults and help texts; see ``tests/command_line.py`` after a change."""
    assert interface().splitlines() == FILE.read_text(encoding="utf-8").splitlines()


REACHED = {
    "launch": (
        "plait.cli.launch.run",
        "launch --processes 1 --devices 1 --port 65535 --grace 0 -- python train.py --steps 3",
        lambda: launch.Options(["python", "train.py", "--steps", "3"], 1, 1, 65535, 0),
    ),
    "launch, defaults": (
        "plait.cli.launch.run", "launch --processes 2 -- train", lambda: launch.Options(["train"], 2, None, None, 30),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REACHED)
def test_the_options_reach_what_is_run(case, monkeypatch):
    """Each at its lowest or highest value; the status is the one that is returned."""
    function, words, expected = REACHED[case]
    asked = []
    monkeypatch.setattr(function, lambda options: asked.append(options) or 7)
    assert cli.main(words.split()) == 7
    assert asked == [expected()]


WRONG_NUMBERS = {
    "launch --processes 0 -- x": "0 is not 1 or more",
    "launch --processes 1 --devices 0 -- x": "0 is not 1 or more",
    "launch --processes 1 --port 0 -- x": "0 is not from 1 to 65535",
    "launch --processes 1 --port 65536 -- x": "65536 is not from 1 to 65535",
    "launch --processes 1 --grace -1 -- x": "-1 is not 0 or more",
}


@pytest.mark.parametrize("words", WRONG_NUMBERS)
def test_a_value_just_outside_of_its_limits_is_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split(" "))
    assert capsys.readouterr().err.endswith(f": {WRONG_NUMBERS[words]}\n")


def test_launch_needs_dashes_before_the_command(capsys):
    """Its options would be taken for those of launch; ``--help`` is not a command."""
    assert cli.main(["launch", "--processes", "2", "python", "train.py"]) == 2
    assert capsys.readouterr().err == (
        "plait: launch needs `--` before its COMMAND, such as: "
        "plait launch --processes 2 -- python train.py --steps 10\n"
    )
    for word in ("-h", "--help"):
        with pytest.raises(SystemExit, match="0"):
            cli.main(["launch", word])
        assert capsys.readouterr().out.startswith("usage: plait launch --processes N")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(5, "Input/output error"), "plait: a file: Input/output error\n"),
        (OSError("no more"), "plait: a file: no more\n"),
    ],
    ids=["no name", "no number"],
)
def test_an_error_of_the_system_is_a_message_whatever_it_says(error, message, monkeypatch, capsys):
    def fail(options):
        raise error

    monkeypatch.setattr("plait.cli.launch.run", fail)
    assert cli.main(LAUNCH) == 2
    assert capsys.readouterr().err == message
