"""The closing table: aligned text into a pipe, drawn on a terminal."""

from plait.demo import table

ROWS = [("accuracy", "98.9%: [bold]"), ("output", "runs/digits")]


def test_into_a_pipe_it_is_aligned_text(capsys):
    table.print_table("demo", ROWS)
    assert capsys.readouterr().out == "demo\n  accuracy  98.9%: [bold]\n  output    runs/digits\n"


def test_on_a_terminal_it_is_drawn_and_text_is_kept_as_it_is(capsys, monkeypatch):
    monkeypatch.setattr(table.sys.stdout, "isatty", lambda: True, raising=False)
    table.print_table("demo", ROWS)
    printed = capsys.readouterr().out
    assert "╭" in printed
    assert "98.9%: [bold]" in printed
