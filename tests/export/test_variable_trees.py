"""Mesh and specs go together, and parameters are arrays of numbers. (rule E26)"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from plait.errors import ArgumentError, ArgumentTypeError
from plait.export import variable_trees
from plait.export.variable_trees import resolve_placement, resolve_values


@pytest.fixture
def on_a_mesh(monkeypatch):
    class Mesh:
        jax_mesh = jax.sharding.AbstractMesh((2,), ("x",))

    monkeypatch.setattr(variable_trees, "get_current_mesh", lambda: Mesh)


def test_a_mesh_is_ignored_with_a_warning_if_a_parameter_is_no_jax_array(on_a_mesh):
    params = {"a": jnp.ones(2), "b": np.ones(2), "c": 3}
    with (
        pytest.warns(UserWarning, match=r"the parameters have a leaf that is an ndarray and not a jax\.Array"),
        pytest.raises(ArgumentError, match="pspecs needs a DTensor context") as caught,
    ):
        resolve_placement(params, {"a": None, "b": None, "c": None}, consolidate=False)
    assert caught.value.parts["found"] == "pspecs, and no mesh"


def test_a_mesh_needs_specs(on_a_mesh):
    with pytest.raises(ArgumentError, match="a DTensor context needs pspecs") as caught:
        resolve_placement({"a": jnp.ones(2)}, None, consolidate=False)
    assert caught.value.parts["found"] == "pspecs=None, and a mesh of {'x': 2}"


def test_on_a_mesh_each_leaf_has_its_spec(on_a_mesh):
    params, specs = {"b": jnp.ones(2), "a": [jnp.ones(2), jnp.ones(2)]}, {"b": P("x"), "a": [None, P()]}
    placement = resolve_placement(params, specs, consolidate=True)
    assert (placement.pspecs, placement.consolidate) == ([None, P(), P("x")], True)
    assert placement.mesh is variable_trees.get_current_mesh()


def test_without_a_mesh_there_is_nothing_to_place():
    placement = resolve_placement({"a": 1.0}, None, consolidate=True)
    assert (placement.mesh, placement.pspecs, placement.consolidate) == (None, [], True)


def test_values_are_arrays_of_numbers():
    array, matrix = jnp.ones(2), np.ones((2, 2))
    values = resolve_values({"a": array, "b": matrix, "c": 3, "d": np.float32(2)})
    assert values[0] is array
    assert values[1] is matrix
    assert [type(each) for each in values[2:]] == [np.ndarray, np.float32]
    assert (values[2].tolist(), values[2].dtype) == (3, jnp.asarray(3).dtype)
    with pytest.raises(ArgumentTypeError) as caught:
        resolve_values({"a": {"b": ["text"]}})
    assert caught.value.parts["at"] == "params['a']['b'][0]"
