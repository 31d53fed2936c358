"""Progress: plain lines into a pipe, a live bar on a terminal."""

import pytest

from plait.training import progress as module
from plait.training.progress import progress


def run():
    with progress("training", 4, done=2) as show:
        for epoch in (1, 2):
            show.advance()
            show.say(f"epoch {epoch} [red] 0.5")


def test_into_a_pipe_it_is_the_lines_alone(capsys):
    run()
    assert capsys.readouterr().out == "epoch 1 [red] 0.5\nepoch 2 [red] 0.5\n"


def test_on_a_terminal_the_lines_stay_above_the_bar(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: True, raising=False)
    run()
    printed = capsys.readouterr().out
    assert printed.index("epoch 1 [red] 0.5") < printed.index("epoch 2 [red] 0.5")
    assert "training" in printed


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_inside_comes_out(monkeypatch, terminal):
    monkeypatch.setattr(module.sys.stdout, "isatty", lambda: terminal, raising=False)
    with pytest.raises(ZeroDivisionError, match="zero"), progress("training", 1):
        _ = 1 // 0
