"""The weights by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plait.errors import ExportError
from plait.export import save
from plait.export.program.weights import by_name, named_weights


def test_names_are_key_paths():
    params = {"conv/kernel": jnp.ones(2), "layers": [{"bias": jnp.zeros(3)}, {"bias": 1.0}]}
    assert list(named_weights(params)) == ["conv/kernel", "layers.0.bias", "layers.1.bias"]


def test_parameters_that_are_one_array_have_a_name_too():
    assert list(named_weights(jnp.ones(2))) == ["weights"]


def test_a_function_of_named_weights_gives_what_the_function_gives():
    params = {"b": [jnp.ones(2), jnp.full(2, 3.0)], "a": jnp.zeros(2)}
    apply = by_name(lambda params, x: params["a"] + params["b"][1] * x, params)
    np.testing.assert_array_equal(apply(named_weights(params), jnp.full(2, 2.0)), [6.0, 6.0])


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"a": {"b": 1.0}, "a.b": 2.0}, r"same name in the file\n  at +a\.b"),
        ({"rng": {"key": jax.random.key(0)}}, r"not an array\n  at +rng\.key\n  found +a random key"),
        ({"name": "digits"}, r"not an array\n  at +name\n  found +a str"),
        ({"layer": object()}, r"not an array\n  at +layer\n  found +an object"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(params, reason):
    with pytest.raises(ExportError, match=reason):
        named_weights(params)


def test_a_dtype_that_safetensors_has_not_got_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"(?s)do not support this dtype.*at +w\n.*int4"):
        save(({"w": jnp.ones(4, "int4")}, lambda params, x: x), tmp_path / "m", inputs=(4,))
    assert list(tmp_path.iterdir()) == []
