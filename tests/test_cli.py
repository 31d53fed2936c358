"""The command: exit statuses and messages, as a user meets them."""

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

import plait
from plait import cli
from tests.commands import plait_command

SOURCE = Path(cli.__file__).parents[1]


def command(*arguments, cwd=None, **environment):
    """Run ``plait ARGUMENTS`` in a process of its own, in which warnings are errors as they are here."""
    return subprocess.run(
        [sys.executable, "-m", "plait.cli", *arguments],
        capture_output=True, text=True, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )  # fmt: skip


def check_refused(done, *words):
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_the_version_is_that_of_the_package():
    done = command("--version")
    assert (done.returncode, done.stdout) == (0, f"plait {plait.__version__}\n")


REFUSED = {
    "nothing": ((), "COMMAND"),
    "unknown command": (("train",), "train"),
    "no demo": (("demo",), "NAME"),
    "unknown demo": (("demo", "faces"), "faces"),
    "unknown flag": (("demo", "digits", "--speed"), "--speed"),
    "abbreviated flag": (("demo", "digits", "--epoch", "3"), "--epoch"),
    "no number": (("demo", "digits", "--epochs", "many"), "'many' is not a whole number"),
    "too few": (("demo", "digits", "--batch-size", "0"), "0 is not 1 or more"),
    "too large": (("demo", "digits", "--seed", "99999999999"), "is not from 0 to 2147483647"),
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
def test_an_unknown_demo_is_refused_by_the_process_too(tmp_path):
    check_refused(command("demo", "faces", cwd=tmp_path), "faces", "digits")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("--help",), ("demo", "--help"), ("demo", "digits", "--help")], ids=" ".join)
def test_help_is_there(arguments, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments)
    assert "usage: plait" in capsys.readouterr().out


def test_an_output_folder_that_cannot_be_written_is_refused(tmp_path):
    pytest.importorskip("sklearn")
    (tmp_path / "file").write_text("mine")
    check_refused(plait_command("demo", "digits", "--output", str(tmp_path / "file")), "not writable", str(tmp_path))
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path):
    pytest.importorskip("sklearn")
    place = tmp_path / "checkpoints" / "epoch-0001"
    place.mkdir(parents=True)
    (place / "plait.json").write_text("{")
    check_refused(
        plait_command("demo", "digits", "--resume", "--output", str(tmp_path)), "no intact checkpoint", "--resume"
    )
    assert [file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()] == [
        "checkpoints/epoch-0001/plait.json"
    ]


@pytest.mark.slow
def test_without_scikit_learn_the_extra_is_named(tmp_path):
    """A package that cannot be imported stands before the real one."""
    (tmp_path / "hidden" / "sklearn").mkdir(parents=True)
    (tmp_path / "hidden" / "sklearn" / "__init__.py").write_text("raise ModuleNotFoundError(name='sklearn')")
    done = command("demo", "digits", cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'hidden'}{os.pathsep}{SOURCE}")
    check_refused(done, "plait: sklearn is needed to load the handwritten digits", "pip install 'plait[demo]'")
    assert not (tmp_path / "runs").exists()


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

    monkeypatch.setattr("plait.demo.digits.run", fail)
    assert cli.main(["demo", "digits"]) == status
    assert capsys.readouterr().err == message


class Garbage:
    """Something that only the collector frees."""

    def __init__(self):
        self.self = self


@pytest.mark.slow
@pytest.mark.parametrize("where", ["collector", pytest.param("weak reference", marks=pytest.mark.long)])
def test_an_interruption_in_a_callback_is_not_lost(where, monkeypatch, capsys, request):
    """Python swallows what is raised there; JAX and plait have such callbacks, which run often while libraries load."""
    met = []

    def callback(*_):
        if not met:
            met.append(where)
            signal.raise_signal(signal.SIGINT)

    def work(options):
        garbage = Garbage()
        ref = weakref.ref(garbage, callback if where == "weak reference" else None)
        del garbage
        gc.collect()
        assert ref() is None
        time.sleep(10)

    monkeypatch.setattr("plait.demo.digits.run", work)
    if where == "collector":
        gc.callbacks.append(callback)
        request.addfinalizer(lambda: gc.callbacks.remove(callback))
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, outer))
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert cli.main(["demo", "digits"]) == 130
    assert capsys.readouterr().err == "plait: interrupted\n"
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook) == before
    assert met == [where]


def test_a_mistake_in_plait_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("plait.demo.digits.run", lambda options: 1 // 0)
    with pytest.raises(ZeroDivisionError, match="zero"):
        cli.main(["demo", "digits"])


def test_the_options_reach_the_demo(monkeypatch):
    asked = []
    monkeypatch.setattr("plait.demo.digits.run", lambda options: asked.append(options) or 0)
    words = "demo digits --epochs 3 --batch-size 8 --seed 5 --output a/b --resume --no-export"
    assert cli.main(words.split()) == 0
    from plait.demo.digits import Options

    assert asked == [Options(Path("a/b"), epochs=3, batch_size=8, seed=5, resume=True, export=False)]


def test_the_defaults_are_those_of_the_demo(monkeypatch):
    asked = []
    monkeypatch.setattr("plait.demo.digits.run", lambda options: asked.append(options) or 0)
    cli.main(["demo", "digits"])
    from plait.demo.digits import Options

    assert asked == [Options()]
