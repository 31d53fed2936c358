"""The notice that process 0 does not answer."""

import threading

import jax
import pytest

from plait.partitioning.processes import coordinator_watchdog

HEARTBEAT = 0.04


@pytest.fixture
def told(monkeypatch, capsys):
    """What process 1 prints, for a list of answers; after the last one the connection is closed."""

    def run(answers):
        left = iter(answers)

        def await_entry(key, seconds, *, each):
            assert (key, seconds, each) == ("plait/answers", HEARTBEAT / 4, HEARTBEAT / 4)
            for answer in left:
                return answer
            raise jax.errors.JaxRuntimeError("CANCELLED")

        monkeypatch.setattr(coordinator_watchdog, "await_entry", await_entry)
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        coordinator_watchdog.watch_coordinator(HEARTBEAT)
        for thread in threading.enumerate():
            if thread.name == "plait listens to process 0":
                thread.join(10)
        return capsys.readouterr().err

    return run


def test_nothing_is_said_while_it_answers(told):
    assert told(["", "", ""]) == ""


def test_silence_is_said_once_and_so_is_its_end(told):
    said = told(["", None, None, "", None])
    assert said.count("process 0, which coordinates this run, does not answer") == 2
    assert said.count("process 0 answers again, after 0 s") == 1
    assert "at        process 1 of 2" in said
    assert f"an answer within {HEARTBEAT:g} s" in said


def test_process_0_answers(monkeypatch):
    posted = []
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    monkeypatch.setattr(coordinator_watchdog, "put_once", lambda *given: posted.append(given))
    coordinator_watchdog.watch_coordinator(HEARTBEAT)
    assert posted == [("plait/answers", "")]
