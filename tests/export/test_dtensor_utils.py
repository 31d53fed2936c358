"""DTensors: what needs no devices here, and the checks of ``dtensor_program.py`` in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from plait.export import get_pspec_from_jax_arrays
from plait.export.dtensor_utils import spec_axes

PROGRAM = Path(__file__).parent / "dtensor_program.py"
CHECKS = (
    "e25_nothing_happens_before_the_start",
    "e25_the_context_is_a_stack_of_this_thread",
    "e25_a_second_start_is_refused",
    "e26_variables_are_laid_out_by_their_specs",
    "e29_a_saved_model_has_the_values_and_serves_without_a_mesh",
    "e46_a_function_jitted_over_the_mesh_of_its_parameters",
    "e26_mesh_and_specs_go_together",
    "e27_tuples_are_reduced_to_the_axes_that_divide",
    "e27_several_axes_need_leave_and_then_the_largest_stays_also_on_update",
    "e27_what_cannot_be_laid_out_is_named",
    "e27_a_mesh_of_reordered_devices_keeps_its_order",
    "e27_a_mesh_is_found_for_an_array",
    "e25_shutdown",
    "e25_after_shutdown",
    "e25_other_clients",
    "e25_again",
)


def outcomes(*arguments):
    done = subprocess.run([sys.executable, str(PROGRAM), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.oracle
def test_e25_to_e29_hold_on_a_mesh_of_eight_devices(tmp_path):
    """E14, E25, E26, E27, E29, and their rows of section 8: outcomes by check."""
    pytest.importorskip("tensorflow")
    assert outcomes(tmp_path) == dict.fromkeys(CHECKS, "ok")


@pytest.mark.slow
@pytest.mark.oracle
def test_e25_a_late_start_takes_a_new_context(tmp_path):
    """E25: ``reset_context``."""
    pytest.importorskip("tensorflow")
    assert outcomes(tmp_path, "late") == {"e25_late": "ok"}


def test_e28_specs_are_those_of_the_arrays():
    """E28."""
    mesh = Mesh(jax.devices()[:4], "d")
    x = jax.device_put(jnp.ones((4, 2)), NamedSharding(mesh, P(None, None)))
    y = jax.device_put(jnp.ones(4), NamedSharding(mesh, P("d")))
    tree = {"x": x, "y": [y], "z": jax.ShapeDtypeStruct((2,), x.dtype)}
    assert get_pspec_from_jax_arrays(tree) == {"x": P(None, None), "y": [P("d")], "z": P()}


def test_e28_other_shardings_and_other_meshes_are_refused():
    """E28."""
    with pytest.raises(ValueError, match=r"at +\['a'\]\n +found +a SingleDeviceSharding"):
        get_pspec_from_jax_arrays({"a": jnp.ones(1)})
    arrays = [jax.device_put(jnp.ones(4), NamedSharding(Mesh(jax.devices()[:size], "d"), P("d"))) for size in (2, 4)]
    with pytest.raises(ValueError, match=r"different meshes\n +at +\[1\]"):
        get_pspec_from_jax_arrays(arrays)


AXES = st.permutations("abc").flatmap(
    lambda names: st.lists(st.integers(0, 2), min_size=2, max_size=2).map(
        lambda cuts: [names[: min(cuts)], names[min(cuts) : max(cuts)]]
    )
)


@given(groups=AXES, sizes=st.permutations([1, 2, 4]))
def test_e27_each_dimension_goes_to_the_largest_of_its_axes(groups, sizes):
    """E27: for any grouping of the axes of any mesh."""
    mesh = jax.sharding.AbstractMesh(tuple(sizes), tuple("abc"))
    spec = P(*(tuple(group) or None for group in groups))
    size_of = dict(zip("abc", sizes, strict=True))
    found = spec_axes((8, 8, 8), spec, mesh, consolidate=True)
    for group, axis in zip([*groups, []], found, strict=True):
        divided = [name for name in group if size_of[name] > 1]
        assert axis == (max(divided, key=lambda name: size_of[name]) if divided else None)
    many = any(sum(size_of[name] > 1 for name in group) > 1 for group in groups)
    if many:
        with pytest.raises(ValueError, match="several axes"):
            spec_axes((8, 8, 8), spec, mesh, consolidate=False)
    else:
        assert spec_axes((8, 8, 8), spec, mesh, consolidate=False) == found
