"""Who waits for a first call is told what it is doing; nobody else is. (rule D14)"""

import os
import pty
import re
import subprocess
import sys
import threading
import time

import jax.numpy as jnp
import pytest

import plait
from plait.inspect.observe import first_calls
from tests.environment import environment


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(first_calls, "PATIENCE", 0.05)
    monkeypatch.setattr(first_calls, "is_shown", True)


def slow(x):
    time.sleep(0.5)
    return x + 1


def said(capsys):
    """What is on standard error, once all threads that may write are over."""
    for thread in threading.enumerate():
        if getattr(thread, "_target", None) is first_calls._show:
            thread.join(10)
    return capsys.readouterr().err


def test_d14_a_slow_first_call_says_what_it_does_and_the_second_nothing(impatient, capsys):
    jitted = plait.jit(slow)
    jitted(jnp.ones(3))
    lines = said(capsys).splitlines()
    assert re.fullmatch(r"slow: (tracing|lowering|compiling), \d+ s so far", lines[0])
    found = re.fullmatch(r"slow: first call took (.*) s: traced (.*), lowered (.*), compiled (.*)", lines[-1])
    assert found is not None, lines
    took, *parts = map(float, found.groups())
    assert 0.5 <= parts[0] <= sum(parts) <= took + 0.2  # each is rounded
    jitted(jnp.ones(3))
    assert said(capsys) == ""


def test_d14_a_donating_function_is_one_call(impatient, capsys):
    @plait.jit(donate=True)
    def step(model, x):
        time.sleep(0.3)
        model.kernel.value = model.kernel.value * 2
        return model(x)

    step(plait.Linear(2, 2, rngs=plait.Rngs(0)), jnp.ones((1, 2)))
    assert said(capsys).count("step: first call took") == 1


@pytest.mark.parametrize("case", ["fast", "not shown", "only lowered"])
def test_d14_otherwise_nothing_is_said(impatient, capsys, monkeypatch, case):
    if case == "fast":
        monkeypatch.setattr(first_calls, "PATIENCE", 30.0)
    elif case == "not shown":
        monkeypatch.setattr(first_calls, "is_shown", False)
    (plait.jit(slow).lower if case == "only lowered" else plait.jit(slow))(jnp.ones(3))
    waiting = [thread for thread in threading.enumerate() if getattr(thread, "_target", None) is first_calls._show]
    assert case == "fast" or not waiting
    assert said(capsys) == ""


@pytest.mark.parametrize(
    ("setting", "terminal", "shown"), [(None, True, True), (None, False, False), ("0", True, False), ("1", False, True)]
)
def test_d14_it_is_said_in_terminals_and_by_a_setting(monkeypatch, setting, terminal, shown):
    monkeypatch.delenv("PLAIT_PROGRESS", raising=False)
    if setting is not None:
        monkeypatch.setenv("PLAIT_PROGRESS", setting)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    assert first_calls._is_shown() == shown


def test_d14_a_call_that_fails_is_over(impatient, capsys):
    def failing(x):
        time.sleep(0.2)
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        plait.jit(failing)(jnp.ones(3))
    assert "failing: first call took" in said(capsys)
    assert first_calls._here.call is None


@pytest.mark.slow
def test_d14_in_a_terminal_it_is_said_without_a_setting(tmp_path):
    program = """
import time, jax.numpy as jnp, plait
from plait.inspect.observe import first_calls
first_calls.PATIENCE = 0.05
def slow(x):
    time.sleep(5)
    return x
plait.jit(slow)(jnp.ones(3))
time.sleep(0.5)
"""
    ours, theirs = pty.openpty()
    settings = environment(TERM="xterm")
    subprocess.run([sys.executable, "-c", program], stderr=theirs, env=settings, timeout=120, check=True)
    os.close(theirs)
    assert re.search(rb"slow: tracing, \d+ s", os.read(ours, 1 << 16))
    os.close(ours)
