"""Readable text: lines, sizes, arrays, and objects that were printed already."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.util.repr import format_bytes, repr_fields, repr_leaf, size_comment


def top_level():
    pass


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.ones((2, 3)), "Array(shape=(2, 3), dtype=float32)"),
        (np.ones(2, np.int8), "Array(shape=(2,), dtype=int8)"),
        (jnp.ones(()), "Array(1.0, dtype=float32)"),
        (np.full((1, 1), 3), "Array([[3]], dtype=int64)"),
        (jax.random.key(0), "Array(shape=(), dtype=key<fry>)"),
        (jax.ShapeDtypeStruct((2,), jnp.float32), "ShapeDtypeStruct(shape=(2,), dtype=float32)"),
        (top_level, "<function top_level>"),
        ((top_level, print), "(<function top_level>, <built-in function print>)"),
        (functools.partial(top_level, 1), "functools.partial(<function top_level>, 1)"),
        ("<at 0x1f>", "'<at 0x1f>'"),
        ("a", "'a'"),
        (None, "None"),
        (int, "<class 'int'>"),
    ],
)
def test_one_value(value, text):
    """G66: arrays with more than one element show shape and dtype; no text has an address in memory."""
    assert repr_leaf(value) == text


def test_an_array_that_was_donated_can_be_printed():
    """G66: its value is gone."""
    x = jnp.ones(())
    x.delete()
    assert repr_leaf(x) == "Array(shape=(), dtype=float32)"


def test_tracers_show_shape_and_dtype():
    """G66."""
    texts = []
    jax.jit(lambda x: texts.append(repr_leaf(x)))(1.0)
    assert texts == ["Array(shape=(), dtype=float32)"]


def test_short_calls_stand_on_one_line_and_long_ones_on_several():
    """G66."""
    assert repr_fields("A", [("x", 1), ("", 2)]) == "A(x=1, 2)"
    assert repr_fields("A", [("x", "long" * 30)]) == f"A(\n  x={'long' * 30!r}\n)"
    assert repr_fields("A", [("x", 1)], comment="note") == "A( # note\n  x=1\n)"
    assert repr_fields("A", []) == "A()"
    assert repr_fields("A", [], comment="note") == "A()  # note"
    assert repr_fields("A", [("x: ", 1)], brackets="([])", separator="", multiline=True) == "A([\n  x: 1\n])"


class Broken:
    def __repr__(self):
        raise RuntimeError("broken")


def test_a_value_whose_repr_raises_is_named():
    """G66: an object can always be printed."""
    assert repr_fields("Node", [("", Broken()), ("", 1)]) == "Node(<Broken, whose repr raises RuntimeError>, 1)"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (5000, "4.9 KB"),
        (3 * 2**20, "3.0 MB"),
        (2**30, "1.0 GB"),
        (2**41, "2.0 TB"),
    ],
)
def test_bytes_in_the_largest_unit(size, text):
    """G66."""
    assert format_bytes(size) == text


def test_a_size_counts_elements_and_bytes():
    """V47, G66."""
    assert size_comment([jnp.ones((1000, 2)), np.ones(3, np.int8), "text", 3]) == "2,003 (7.8 KB)"
    assert size_comment([3]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (jnp.array([1.0, 0.25]), "A(x=Array([1.  , 0.25], dtype=float32))"),
        (np.array([[1, 2], [3, 4]], np.int8), "A(\n  x=Array([[1, 2],\n           [3, 4]], dtype=int8)\n)"),
        (jnp.arange(2000), "A(x=Array([   0,    1,    2, ..., 1997, 1998, 1999], dtype=int32))"),
        (jnp.ones((2, 0)), "A(x=Array([[], []], dtype=float32))"),
        (jax.random.split(jax.random.key(0)), "A(x=Array(shape=(2,), dtype=key<fry>))"),
    ],
)
def test_fields_show_the_numbers_of_arrays(value, text):
    """G66."""
    assert repr_fields("A", [("x", value)]) == text


def test_traced_and_donated_fields_show_shapes():
    """G66."""
    texts = []
    jax.jit(lambda x: texts.append(repr_fields("A", [("x", x)])))(jnp.ones(2))
    x = jnp.ones(2)
    x.delete()
    assert {repr_fields("A", [("x", x)]), *texts} == {"A(x=Array(shape=(2,), dtype=float32))"}
