"""Numbers of things are checked."""

import re

import numpy as np
import pytest

from plait.errors import ArgumentError
from plait.util.counts import check_count


@pytest.mark.parametrize("value", [1, 7, np.int64(1)])
def test_a_number_of_things_is_an_integer_of_one_or_more(value):
    check_count("steps", value)


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "3", None, np.float32(2), np.int32(0)])
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
