"""The input of an exported function."""

import jax.numpy as jnp
import pytest

from plait.errors import ArgumentError, ArgumentTypeError
from plait.export.program.input_spec import InputSpec, resolve_input_specs, symbolic


def test_sizes_with_names_are_free():
    spec = InputSpec(("batch", 8, "length"), jnp.int32)
    assert spec.open_shape == (None, 8, None)
    abstract = symbolic([spec])["x"]
    assert str(abstract.shape) == "(batch, 8, length)"
    assert abstract.dtype == jnp.int32


def test_an_input_without_axes_is_a_scalar():
    assert symbolic([InputSpec(())])["x"].shape == ()


def test_one_name_is_one_size_in_all_inputs():
    found = symbolic([InputSpec(("n",)), InputSpec(("n", 2), name="z")])
    assert found["x"].shape[0] == found["z"].shape[0]


def test_inputs_in_several_forms():
    specs = resolve_input_specs({"x": ("n", 2), "ids": jnp.zeros(3, jnp.int32), "y": InputSpec((1,), name="z")})
    assert [(spec.name, spec.shape) for spec in specs] == [("x", ("n", 2)), ("ids", (3,)), ("z", (1,))]
    assert specs[1].dtype == jnp.int32


def test_a_bare_shape_is_a_float32_input_x():
    assert resolve_input_specs(("batch", 3)) == (InputSpec(("batch", 3), jnp.float32, "x"),)


@pytest.mark.parametrize(
    ("arguments", "error", "found"),
    [
        ({"shape": "batch, 8"}, ArgumentTypeError, r"found +shape='batch, 8'"),
        ({"shape": (None, 8)}, ArgumentTypeError, r"found +shape=\(None, 8\)"),
        ({"shape": ("batch", 0)}, ArgumentError, r"found +0 in shape"),
        ({"shape": ("2 * batch",)}, ArgumentError, r"found +'2 \* batch' in shape"),
        ({"shape": (8,), "name": "my input"}, ArgumentError, r"found +name='my input'"),
        ({"shape": (8,), "name": "class"}, ArgumentError, r"found +name='class'"),
    ],
)
def test_a_wrong_spec_says_what_it_found(arguments, error, found):
    with pytest.raises(error, match=found):
        InputSpec(**arguments)
