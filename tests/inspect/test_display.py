"""``plait.display``: Treescope in IPython, text elsewhere."""

import builtins

import pytest

import plait


def test_outside_ipython_objects_are_printed(capsys):
    plait.display(plait.Dict(size=3), 4)
    assert capsys.readouterr().out == "Dict(size=3)\n4\n"


def test_in_ipython_treescope_shows_them(monkeypatch, capsys):
    treescope = pytest.importorskip("treescope")
    shown = []
    monkeypatch.setattr(builtins, "get_ipython", lambda: None, raising=False)
    monkeypatch.setattr(treescope, "display", lambda value, **_: shown.append(value))
    plait.display(1, "two")
    assert shown == [1, "two"]
    monkeypatch.setitem(__import__("sys").modules, "treescope", None)
    plait.display(1)
    assert capsys.readouterr().out == "1\n"
