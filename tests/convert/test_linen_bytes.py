"""Linen's msgpack files: each extension is read, or refused if it does not hold what Linen writes."""

import numpy as np
import pytest

from plait.convert.linen_bytes import read_linen_bytes
from plait.errors import CheckpointError

msgpack = pytest.importorskip("msgpack")


def packed(code, inside):
    return msgpack.packb({"a": msgpack.ExtType(code, msgpack.packb(inside))})


FOUR = np.arange(2, dtype=np.int16).tobytes()
READ = {
    "an array": (1, ((2,), "int16", FOUR), np.array([0, 1], np.int16)),
    "a complex number": (2, (0.5, -1.5), 0.5 - 1.5j),
    "a scalar": (3, ((), "int16", FOUR[2:]), np.int16(1)),
}


@pytest.mark.parametrize("name", READ)
def test_an_extension_is_read(name):
    code, inside, expected = READ[name]
    found = read_linen_bytes(packed(code, inside))["a"]
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


WRONG = {
    "one part of a complex number": (2, [0.5]),
    "three parts": (2, [0.5, 1.5, 2.5]),
    "parts that are no numbers": (2, ["0.5", "1.5"]),
    "a complex text": (2, "1j"),
    "no shape": (1, ["int16", FOUR]),
    "a negative size": (1, [[-1], "int16", FOUR]),
    "no dtype": (1, [[2], "int17", FOUR]),
    "a dtype without numbers": (1, [[2], "O", FOUR]),
    "text for bytes": (1, [[2], "int16", "text"]),
    "too few bytes": (1, [[3], "int16", FOUR]),
    "another extension": (4, [[2], "int16", FOUR]),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_extension_with_other_contents_is_damage(name):
    with pytest.raises(CheckpointError, match="the msgpack checkpoint is incomplete or damaged") as caught:
        read_linen_bytes(packed(*WRONG[name]), at="file")
    assert caught.value.parts["at"] == "file"


def test_what_is_no_map_is_no_checkpoint():
    with pytest.raises(CheckpointError, match="not a Linen msgpack checkpoint") as caught:
        read_linen_bytes(msgpack.packb([1, 2]))
    assert (caught.value.parts["at"], caught.value.parts["found"]) == ("the bytes", "[1, 2]")
