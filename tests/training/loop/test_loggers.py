"""Where numbers go: what is in the files."""

import os
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import plait
from plait.errors import ArgumentError
from plait.training import JsonLines, TensorBoard, fit


def records(file):
    """What a file of TFRecords holds: length, checksum, data, checksum."""
    data, place = file.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield data[place + 12 : place + 12 + length]
        place += 16 + length


@pytest.mark.slow
def test_tensorboard_gets_each_number_at_its_step(tmp_path):
    from tensorboardX.proto.event_pb2 import Event

    logger = TensorBoard(tmp_path)
    for step in (10, 20):
        logger.write(step, {"loss": step / 4, "eval/accuracy": 0.5})
    logger.close()
    (file,) = tmp_path.iterdir()
    found = []
    for record in records(file):
        event = Event.FromString(record)
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    assert found == [(10, "loss", 2.5), (10, "eval/accuracy", 0.5), (20, "loss", 5.0), (20, "eval/accuracy", 0.5)]


@pytest.mark.parametrize("text", ["no line end", "no JSON\n", '{"step": 1}\n[1, 2]\n', '{"loss": 1}\n'])
def test_a_file_of_something_else_stays(tmp_path, text):
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(ArgumentError, match="the log cannot be written"):
        JsonLines(file).write(1, {"loss": 2.0})
    assert file.read_text() == text


def test_lines_of_the_same_step_are_replaced_by_their_metrics(tmp_path):
    """A run that has ended and is evaluated again keeps the last line of its steps."""
    for value in (1.0, 2.0):
        log = JsonLines(tmp_path / "log")
        if value == 1.0:
            log.write(3, {"loss": 0.5})
        log.write(3, {"eval/loss": value})
        log.close()
    assert log.path.read_text().splitlines() == ['{"step": 3, "loss": 0.5}', '{"step": 3, "eval/loss": 2.0}']


def test_the_log_is_where_it_was_asked_for(tmp_path, monkeypatch):
    """Also if the program goes elsewhere before the first line."""
    monkeypatch.chdir(tmp_path)
    log = JsonLines("log.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.write(1, {"loss": 2.0})
    log.close()
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": 2.0}\n'


def test_what_is_replaced_is_kept_beside_the_log(tmp_path):
    """It may be of another run, whose log this is by mistake."""
    path = tmp_path / "log"
    text = '{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo'
    path.write_text(text)
    for step in (2, 1):
        log = JsonLines(path)
        log.write(step, {"loss": 0.5})
        log.close()
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n'
    kept = (tmp_path / "log.replaced").read_text()
    assert kept == text[text.index("\n") + 1 :] + '\n{"step": 1, "loss": 3.0}\n{"step": 2, "loss": 0.5}\n'


@pytest.mark.parametrize(("index", "wrote"), [(0, ["first", "all"]), (1, ["all"])])
def test_loggers_write_on_process_0_unless_they_ask_for_all(monkeypatch, index, wrote):
    found = []

    class Rows:
        def __init__(self, name):
            self.name = name
            if name == "all":
                self.every_process = True

        def write(self, step, values):
            found.append(self.name)

        def close(self):
            pass

    monkeypatch.setattr(jax, "process_index", lambda: index)
    fit(lambda model, batch: 1.0, {"model": plait.Param(1.0)}, [1], steps=1, loggers=[Rows("first"), Rows("all")])
    assert found == wrote


def test_a_last_line_that_was_cut_off_is_replaced(tmp_path):
    """By a process that was killed, or a machine that lost power, which leaves zeros."""
    for rest in ("", '{"st', '{"step": 2, "lo', "\0" * 9):
        (tmp_path / "log").write_text('{"step": 1}\n' + rest)
        log = JsonLines(tmp_path / "log")
        log.write(2, {"loss": np.float32(0.5), "counts": jnp.int32(2)})
        log.close()
        assert log.path.read_text() == '{"step": 1}\n{"step": 2, "loss": 0.5, "counts": 2.0}\n'


def test_a_pipe_beside_the_log_is_not_waited_for(tmp_path):
    (tmp_path / "log").write_text('{"step": 9}\n')
    os.mkfifo(tmp_path / "log.replaced")
    with pytest.raises(ArgumentError, match=r"at +\S*log\n +found +a pipe"):
        JsonLines(tmp_path / "log").write(1, {"loss": 2.0})
    assert (tmp_path / "log").read_text() == '{"step": 9}\n'
