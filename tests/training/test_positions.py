"""Positions do not change when the iterator goes on, and numbers of things are checked."""

import re

import numpy as np
import pytest

from plait.errors import ArgumentError
from plait.training.batches import Batches
from plait.training.counts import check_count
from plait.training.positions import positions_of


class Live:
    """An iterator whose position is what it counts with."""

    def __init__(self):
        self.position = {
            "step": np.zeros((), np.int64),
            "epoch": 0,
            "files": [{"at": 3}, bytearray(b"ab")],
            "key": b"x",
            "name": "n",
            "none": None,
        }

    def get_state(self):
        return self.position

    def set_state(self, position):
        self.position = position


def test_a_position_is_a_copy_to_its_last_part():
    data = Live()
    before = positions_of(data)()
    assert before == {"step": 0, "epoch": 0, "files": [{"at": 3}, b"ab"], "key": b"x", "name": "n", "none": None}
    data.position["step"] += 1
    data.position["epoch"] += 1
    data.position["files"][0]["at"] += 1
    data.position["files"][1].extend(b"c")
    data.position["files"].append(4)
    assert (before["step"], before["epoch"]) == (0, 0)
    assert before["files"] == [{"at": 3}, b"ab"]
    assert type(before["files"][1]) is bytes
    batches = Batches([1, 2])
    next(batches)
    assert positions_of(batches)() == {"epoch": 0, "index": 1}


@pytest.mark.parametrize("value", [1, 7, np.int64(1), True])
def test_a_number_of_things_is_an_integer_of_one_or_more(value):
    check_count("steps", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, "3", None, np.float32(2), np.int32(0)])
def test_what_is_no_number_of_things_is_told(value):
    with pytest.raises(ArgumentError, match="this is not a number of steps") as caught:
        check_count("save_every", value)
    assert caught.value.parts == {
        "at": "save_every", "found": repr(value), "expected": "an integer of 1 or more",
        "do": "for example save_every=1_000",
    }  # fmt: skip
    with pytest.raises(ArgumentError, match=re.escape("not a number of parts")) as caught:
        check_count("parts", value, of="parts", example="4")
    assert caught.value.parts["do"] == "for example parts=4"
