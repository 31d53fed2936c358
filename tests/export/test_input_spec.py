"""The input of an exported function."""

import jax.numpy as jnp
import pytest

from plait.errors import ArgumentError, ArgumentTypeError
from plait.export.input_spec import InputSpec, resolve_input_spec


def test_sizes_with_names_are_free():
    spec = InputSpec(("batch", 8, "length"), jnp.int32)
    assert spec.open_shape == (None, 8, None)
    assert str(spec.abstract().shape) == "(batch, 8, length)"
    assert spec.abstract().dtype == jnp.int32


def test_an_input_without_axes_is_a_scalar():
    assert InputSpec(()).abstract().shape == ()


def test_a_bare_shape_is_a_float32_input_x():
    assert resolve_input_spec(("batch", 3)) == InputSpec(("batch", 3), jnp.float32, "x")


@pytest.mark.parametrize(
    ("arguments", "error", "found"),
    [
        ({"shape": "batch, 8"}, ArgumentTypeError, r"found +shape='batch, 8'"),
        ({"shape": (None, 8)}, ArgumentTypeError, r"found +shape=\(None, 8\)"),
        ({"shape": ("batch", 0)}, ArgumentError, r"found +0 in shape"),
        ({"shape": ("2 * batch",)}, ArgumentError, r"found +'2 \* batch' in shape"),
        ({"shape": (8,), "name": "my input"}, ArgumentError, r"found +name='my input'"),
    ],
)
def test_a_wrong_spec_says_what_it_found(arguments, error, found):
    with pytest.raises(error, match=found):
        InputSpec(**arguments)
