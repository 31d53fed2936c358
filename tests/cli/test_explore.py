"""``plait explore``, as a user runs it. (W18)"""

import io
import os
import sys

import jax.numpy as jnp
import pytest

import plait
from plait.cli.main import main
from tests.commands import plait_command


@pytest.fixture
def folder(tmp_path):
    for step in (1, 2):
        plait.checkpoint.save(tmp_path / "run" / f"step-{step}", plait.Param(jnp.full(3, step)), step=step)
    return tmp_path


@pytest.mark.parametrize("paths", [["run"], ["run/step-1", "run/step-2"]], ids=["one", "two"])
def test_it_writes_a_page_and_says_where(folder, paths):
    done = plait_command("explore", *paths, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "explore.html\n", "")
    assert "<!doctype html>" in (folder / "explore.html").read_text(encoding="utf-8")


def test_the_page_has_the_name_that_is_asked_for(folder):
    done = plait_command("explore", "run", "--output", "mine.html", cwd=folder)
    assert done.returncode == 0
    assert [path.name for path in folder.glob("*.html")] == ["mine.html"]


def test_what_is_nothing_is_named_and_writes_nothing(folder):
    done = plait_command("explore", "nowhere", cwd=folder)
    assert done.returncode == 2
    assert "plait: there is nothing here that can be explored\n  at        nowhere" in done.stderr
    assert not list(folder.glob("*.html"))


def test_a_name_that_is_not_utf8_is_printed(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdout", out := io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    assert main(["explore", str(folder / "run"), "--output", os.fsdecode(bytes(folder) + b"/\xff.html")]) == 0
    out.seek(0)
    assert out.read().endswith("\\udcff.html\n")
