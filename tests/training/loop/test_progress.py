"""Progress: plain lines into a pipe, a live bar on a terminal."""

import io
import re
import sys

import pytest

from plait.training.loop import progress as module
from plait.training.loop.progress import progress


def run():
    with progress(4, done=2) as show:
        for epoch in (1, 2):
            show.advance()
            show.say(f"epoch {epoch} [red] 0.5")


def test_into_a_pipe_it_is_the_lines_alone(capsys):
    run()
    assert capsys.readouterr().out == "epoch 1 [red] 0.5\nepoch 2 [red] 0.5\n"


def test_letters_that_the_output_does_not_have_are_escaped(monkeypatch):
    """A metric with an umlaut in its name ended the run."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    with progress(1) as show:
        show.say("größe 1.0 \udc80")
    assert written.getvalue() == b"gr\\xf6\\xdfe 1.0 \\udc80\n"


def test_on_a_terminal_the_lines_stay_above_the_bar(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    run()
    printed = capsys.readouterr().out
    assert printed.index("epoch 1 [red] 0.5") < printed.index("epoch 2 [red] 0.5")
    assert "training" in printed


def test_on_a_terminal_the_bar_is_gone_at_the_end(capsys, monkeypatch):
    """What is printed last moves up to the line of the bar, and erases it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    run()
    end = capsys.readouterr().out.rpartition("training")[2]
    assert re.search("\x1b\\[1A.*\x1b\\[2K$", end), end


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_inside_comes_out(monkeypatch, terminal):
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: terminal, raising=False)
    with pytest.raises(ZeroDivisionError, match="zero"), progress(1):
        _ = 1 // 0
