"""Where numbers go: what is in the files."""

import struct
import sys

import pytest

from plait.errors import ArgumentError, MissingDependencyError
from plait.training import JsonLines, TensorBoard


def records(file):
    """What a file of TFRecords holds: length, checksum, data, checksum."""
    data, place = file.read_bytes(), 0
    while place < len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        yield data[place + 12 : place + 12 + length]
        place += 16 + length


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


def test_without_tensorboardx_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingDependencyError) as caught:
        TensorBoard(tmp_path)
    assert caught.value.parts["do"] == "pip install 'plait[tensorboard]'"


@pytest.mark.parametrize("text", ["no JSON\n", '{"step": 1}\n[1, 2]\n', '{"loss": 1}\n'])
def test_a_file_of_something_else_stays(tmp_path, text):
    file = tmp_path / "log"
    file.write_text(text)
    with pytest.raises(ArgumentError, match="with other contents"):
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
