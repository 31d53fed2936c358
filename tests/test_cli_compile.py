"""``plait compile`` and ``plait cache``: what they print, their exit statuses, and what they refuse."""

import pytest

from tests.commands import plait_command

SOURCE = """
from types import SimpleNamespace


class Jitted:
    def __init__(self, path, **counts):
        self.path, self.counts, self.jitted_fn = path, {"stored": 0, "loaded": 0, "not stored": 0, **counts}, self

    def __call__(self):
        raise AssertionError("nothing is run")

    def store(self, *args, **kwargs):
        print(args, kwargs)
        return self.counts

    def stores(self):
        return SimpleNamespace(folder=SimpleNamespace(path=self.path))


def plain(x):
    return x


step, again, failing = Jitted("a", stored=1), Jitted("b", loaded=1), Jitted("c", **{"not stored": 1, "loaded": 1})
both = Jitted("d", **{"stored": 1, "not stored": 1})
step.__qualname__, again.__qualname__ = "step", "Model.again"


def calls():
    return RETURNED
"""
SUCCEEDING = {
    "[(step, (1, 2)), [again, [3], {'x': 4}]]": (
        "(1, 2) {}\n1. step: stored, a\n(3,) {'x': 4}\n2. Model.again: there already, b\n", 0,
    ),
    "(step, (1,))": ("(1,) {}\n1. step: stored, a\n", 0),
    "((step, ()),)": ("() {}\n1. step: stored, a\n", 0),
    "[(failing, ()), (step, ())]": ("() {}\n1. Jitted: not stored, c\n() {}\n2. step: stored, a\n", 1),
    "[(both, ())]": ("() {}\n1. Jitted: not stored, d\n", 1),
    "[]": ("", 0),
    "()": ("", 0),
}  # fmt: skip


def compiled(folder, returned):
    (folder / "fake_calls.py").write_text(SOURCE.replace("RETURNED", returned))
    return plait_command("compile", "fake_calls", cwd=folder)


@pytest.mark.parametrize("returned", SUCCEEDING)
def test_each_call_is_stored_and_told(returned, tmp_path):
    done = compiled(tmp_path, returned)
    assert (done.stdout, done.returncode, done.stderr) == (*SUCCEEDING[returned], "")


REFUSED = {
    "3": "an int",
    "[3]": "an int",
    "[(plain, (1,))]": "a tuple of 2 parts",
    "[(step,)]": "a tuple of 1 parts",
    "[(step, 1)]": "a tuple of 2 parts",
    "[(step, (1,), 2)]": "a tuple of 3 parts",
    "[[step, (1,), {}, 4]]": "a list of 4 parts",
}


@pytest.mark.parametrize("returned", REFUSED)
def test_what_is_no_call_of_a_jitted_function_is_refused(returned, tmp_path):
    done = compiled(tmp_path, returned)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "plait: compile takes calls of jitted functions\n"
        "  at        fake_calls\n"
        f"  found     {REFUSED[returned]}\n"
        "  expected  (function, args) or (function, args, kwargs), with a function from plait.jit\n"
        "  do        plait compile train:calls, where calls() returns [(step, (model, optimizer, batch))]\n"
    )


def test_a_function_that_is_not_there_is_named(tmp_path):
    done = plait_command("compile", "no_such_module:calls", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("plait: the function that returns the calls cannot be found\n  at        no_such_mod")
    assert "do        plait compile train:calls, where calls() returns" in done.stderr


def test_cache_prints_the_report_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("plait.warm.contents.contents", lambda path: [f"of {path}", "", "programs"])
    done = plait_command("cache", "a/b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "of a/b\n\nprograms\n", "")
